package logind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// machine plays logind, and the handlers of an Inhibitor.
type machine struct {
	mu     sync.Mutex
	down   bool          // a shutdown is being prepared
	sudden bool          // one begins after preparing was read next
	refuse error         // what connecting or a call fails with
	known  bool          // whether the API server hears of anything
	hints  chan struct{} // of the connection; nil if there is none
	locks  int           // held at present
	events []string      // calls of the handlers

	never chan struct{} // what is stuck waits for it; nil if nothing is

	logs  strings.Builder
	due   time.Time // of the next call of Alive; zero while nothing is
	ended time.Time // when Run returned
}

// alive is Config.Alive.
func (m *machine) alive(t *testing.T) func(time.Duration) {
	return func(within time.Duration) {
		if m.overdue() {
			t.Errorf("alive late")
		}
		m.do(func() {
			if m.due = (time.Time{}); within > 0 {
				m.due = time.Now().Add(within)
			}
		})
	}
}

// overdue reports whether Run seems to be stuck.
func (m *machine) overdue() (overdue bool) {
	m.do(func() { overdue = !m.due.IsZero() && time.Now().After(m.due) })
	return overdue
}

func (m *machine) do(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *machine) called(handler string) { m.do(func() { m.events = append(m.events, handler) }) }

type lock struct{ m *machine }

func (l lock) Close() error {
	l.m.do(func() { l.m.locks-- })
	return nil
}

func (m *machine) inhibit(context.Context) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, fmt.Errorf("take lock: %w", errInProgress)
	}
	if m.refuse != nil {
		return nil, m.refuse
	}
	m.locks++
	return lock{m}, nil
}

func (m *machine) preparing(context.Context) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	down := m.down
	if m.sudden {
		m.sudden, m.down = false, true
		m.signal()
	}
	return down, m.refuse
}

func (m *machine) changes() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hints
}

func (m *machine) close() {}

func (m *machine) connect(context.Context) (bus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	m.hints = make(chan struct{}, 1)
	return m, nil
}

// What may happen to the machine. A signal goes nowhere while nobody is connected.
func (m *machine) begin()                { m.do(func() { m.down = true; m.signal() }) }
func (m *machine) cancel()               { m.do(func() { m.down = false; m.signal() }) }
func (m *machine) signalled()            { m.do(m.signal) }
func (m *machine) disconnect()           { m.do(func() { close(m.hints); m.hints = nil }) }
func (m *machine) failing(reason string) { m.do(func() { m.refuse = errors.New(reason) }) }
func (m *machine) working()              { m.do(func() { m.refuse = nil }) }

func (m *machine) signal() {
	select {
	case m.hints <- struct{}{}:
	default: // nobody is connected, or one is waiting already
	}
}

const grace = 30 * time.Second

func (m *machine) run(t *testing.T, script func()) {
	synctest.Test(t, func(t *testing.T) {
		i := New(Config{
			GracePeriod: grace,
			Begin: func(ctx context.Context) error {
				m.called("begin")
				if m.never != nil {
					<-m.never
				}
				if m.known {
					time.Sleep(time.Second)
					return nil
				}
				<-ctx.Done()
				return context.Cause(ctx)
			},
			Cancel: func() { m.called("cancel") },
			Alive:  m.alive(t),
			Logger: slog.New(slog.NewTextHandler(&m.logs, nil)),
		})
		i.connect = m.connect
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() { ended <- i.Run(ctx) }()
		synctest.Wait()
		script()
		cause := errors.New("stop")
		stop(cause)
		if err := <-ended; !errors.Is(err, cause) {
			t.Errorf("Run returned %v", err)
		}
		m.ended = time.Now()
		if m.locks != 0 {
			t.Errorf("%d locks held after Run", m.locks)
		}
	})
}

// A step changes something, and some time passes. Then the handlers have been called as
// in events, and so many locks are held.
type step struct {
	name   string
	do     func(*machine)
	wait   time.Duration
	events []string
	locks  int
}

func TestInhibitor(t *testing.T) {
	begin, cancel, disconnect := (*machine).begin, (*machine).cancel, (*machine).disconnect
	for _, test := range []struct {
		name  string
		start *machine
		steps []step
	}{
		{"shutdown", &machine{known: true}, []step{
			{name: "idle", wait: time.Hour, locks: 1},
			{"begins", begin, 900 * time.Millisecond, []string{"begin"}, 1},
			{"the API server knows", nil, 100 * time.Millisecond, []string{"begin"}, 0},
			{"repeated signal", (*machine).signalled, time.Hour, []string{"begin"}, 0},
		}},
		{"API server does not answer", &machine{}, []step{
			{"begins", begin, grace - 1, []string{"begin"}, 1},
			{"grace period is over", nil, 1, []string{"begin"}, 0},
		}},
		{"cancelled, and again", &machine{known: true}, []step{
			{"begins", begin, time.Minute, []string{"begin"}, 0},
			{"cancelled", cancel, 0, []string{"begin", "cancel"}, 1},
			{"begins", begin, time.Minute, []string{"begin", "cancel", "begin"}, 0},
			{"cancelled", cancel, 0, []string{"begin", "cancel", "begin", "cancel"}, 1},
		}},
		{"cancelled while the API server does not answer", &machine{}, []step{
			{"begins", begin, time.Second, []string{"begin"}, 1},
			{"cancelled", cancel, grace, []string{"begin", "cancel"}, 1},
		}},
		{"signal that anybody could have sent", &machine{known: true}, []step{
			{"signal", (*machine).signalled, time.Hour, nil, 1},
		}},
		{"started during a shutdown", &machine{known: true, down: true}, []step{
			{"start", nil, time.Minute, []string{"begin"}, 0},
			{"cancelled", cancel, 0, []string{"begin", "cancel"}, 1},
		}},
		{"cancelled while disconnected", &machine{known: true}, []step{
			{"begins", begin, time.Minute, []string{"begin"}, 0},
			{"lost", disconnect, 0, []string{"begin"}, 0},
			{"cancelled", cancel, retryInterval, []string{"begin", "cancel"}, 1},
		}},
		{"began while disconnected", &machine{known: true}, []step{
			{"lost", disconnect, 0, nil, 0},
			{"begins", begin, time.Minute, []string{"begin"}, 0},
			{"lost again", disconnect, time.Minute, []string{"begin"}, 0},
		}},
		{"begins before the lock is taken", &machine{known: true, sudden: true}, []step{
			{"start", nil, time.Second, []string{"begin"}, 0},
			{"cancelled", cancel, 0, []string{"begin", "cancel"}, 1},
		}},
		{"no bus at first", &machine{refuse: errors.New("no bus")}, []step{
			{name: "none", wait: time.Hour},
			{"there it is", (*machine).working, retryInterval, nil, 1},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := test.start
			m.run(t, func() {
				for _, s := range test.steps {
					if s.do != nil {
						s.do(m)
					}
					time.Sleep(s.wait)
					synctest.Wait()
					m.mu.Lock()
					if !slices.Equal(m.events, s.events) || m.locks != s.locks {
						t.Errorf("%s: handlers %v, %d locks; want %v, %d", s.name, m.events, m.locks, s.events, s.locks)
					}
					m.mu.Unlock()
				}
			})
		})
	}
}

// Run is stuck where its caller never returns, and only there.
func TestAlive(t *testing.T) {
	for name, test := range map[string]struct {
		start *machine
		do    func(*machine)
		late  bool
	}{
		"idle":                       {&machine{}, nil, false},
		"no bus":                     {&machine{refuse: errors.New("no bus")}, nil, false},
		"shutdown":                   {&machine{known: true}, (*machine).begin, false},
		"API server does not answer": {&machine{}, (*machine).begin, false},
		"the caller never returns":   {&machine{}, (*machine).begin, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := test.start
			m.run(t, func() {
				if test.late {
					m.do(func() { m.never = make(chan struct{}) })
					defer func() { close(m.never); m.do(func() { m.due = time.Time{} }) }()
				}
				if test.do != nil {
					test.do(m)
				}
				time.Sleep(time.Hour)
				if m.overdue() != test.late {
					t.Errorf("after an hour: late is %t, want %t", m.overdue(), test.late)
				}
			})
		})
	}
}

// A bus that takes connections and does not answer is given up.
func TestSilentBus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, _, err := connect(t.Context(), "unix:path="+path, time.Millisecond); !errors.Is(err, errSilent) {
		t.Errorf("connect: %v, want %v", err, errSilent)
	}
}

// Where Run is to end during a shutdown, it does so at once.
func TestStopDuringShutdown(t *testing.T) {
	m := &machine{}
	var stopped time.Time
	m.run(t, func() {
		m.begin()
		synctest.Wait()
		stopped = time.Now()
	})
	if took := m.ended.Sub(stopped); took != 0 || !slices.Equal(m.events, []string{"begin"}) {
		t.Errorf("ended after %s; handlers %v", took, m.events)
	}
}

// Each error is logged once, until a connection has worked.
func TestInhibitorLogs(t *testing.T) {
	m := &machine{refuse: errors.New("no bus")}
	m.run(t, func() {
		time.Sleep(time.Hour)
		m.failing("no logind")
		time.Sleep(time.Hour)
		m.working()
		time.Sleep(time.Minute)
		m.disconnect()
		time.Sleep(time.Minute)
		m.disconnect()
		m.failing("no logind")
		time.Sleep(time.Hour)
	})
	for text, want := range map[string]int{`err="no bus"`: 1, `err="no logind"`: 2, `err="connection is lost"`: 2, "delaying shutdown until": 2} {
		if got := strings.Count(m.logs.String(), text); got != want {
			t.Errorf("%s: logged %d times, want %d:\n%s", text, got, want, m.logs.String())
		}
	}
}

func TestSystemBus(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "")
	if got, want := SystemBus("/host"), "unix:path=/host/run/dbus/system_bus_socket"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/elsewhere")
	if got, want := SystemBus("/host"), "unix:path=/elsewhere"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
