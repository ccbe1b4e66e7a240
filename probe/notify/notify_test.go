package notify

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/nodeprobe/nodeprobe/probe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func newTestNotifier(t *testing.T, cfg Config) *Notifier {
	t.Helper()
	n, err := New(cfg)
	probetest.Must(t, err)
	return n
}

func TestNotifyCauseNames(t *testing.T) {
	names := map[string]bool{}
	for i := range NumCauses {
		names[Cause(i).String()] = true
	}
	if len(names) != NumCauses || names[""] {
		t.Errorf("causes must have a name each: %v", names)
	}
	for i := range probe.NumResources {
		s := stallSource{trigger: StallTrigger{Resource: probe.Resource(i)}}
		if want := probe.Resource(i).String() + "_stall"; s.cause().String() != want {
			t.Errorf("a stall on %s has cause %s, want %s", probe.Resource(i), s.cause(), want)
		}
	}
}

func TestNotifierConfigErrors(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want string
	}{
		{Config{Procfs: "proc", Sysfs: "/sys"}, `Procfs: "proc" is not an absolute path`},
		{Config{Procfs: "/proc"}, `Sysfs: "" is not an absolute path`},
		{Config{Procfs: "/proc", Sysfs: "/sys", Stalls: []StallTrigger{{Share: 1}, {Share: 1.5}}}, "stalls[1]: share: 1.5 is not above 0 and up to 1"},
		{Config{Procfs: "/proc", Sysfs: "/sys", Stalls: []StallTrigger{{}}}, "stalls[0]: share: 0 is not above 0 and up to 1"},
		{Config{Procfs: "/proc", Sysfs: "/sys", Stalls: []StallTrigger{{Resource: 7, Share: 1}}}, "stalls[0]: resource: 7 is unknown"},
		{Config{Procfs: "/proc", Sysfs: "/sys", Stalls: []StallTrigger{{Share: 1, Window: time.Minute}}}, "stalls[0]: window: 1m0s is not up to 2s"},
	} {
		if _, err := New(test.cfg); err == nil || err.Error() != test.want {
			t.Errorf("New(%+v): got %v, want %s", test.cfg, err, test.want)
		}
	}
}

// A machine without any of it is told what is missing, and waits in peace.
func TestNotifierWithoutSources(t *testing.T) {
	dir := t.TempDir()
	n := newTestNotifier(t, Config{Procfs: filepath.Join(dir, "proc"), Sysfs: filepath.Join(dir, "sys")})
	check := func() {
		t.Helper()
		var names []string
		for _, s := range n.Sources() {
			names = append(names, s.Name)
			if s.Active || s.Err == nil || s.Remedy == "" || s.Detail != "" {
				t.Errorf("%+v: want inactive, an error and a remedy", s)
			}
		}
		want := []string{"pressure_memory_some", "pressure_io_full", "mounts", "task_limits", "pods_memory_events_local", "pods_memory_events"}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
	}
	check()

	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx, func(c Cause) { t.Errorf("notified of %s", c) }) }()
	check()
	n.Refresh()
	why := errors.New("enough")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("Run: got %v, want the cause of the context's end", err)
	}
	check()
}

// A rule about stalls gets a trigger of its own unless another one fires no later.
func TestWithRule(t *testing.T) {
	for _, test := range []struct {
		name     string
		resource probe.Resource
		full     bool
		share    float64
		want     *StallTrigger // that is added
	}{
		{"none about the CPU", probe.CPU, false, 0.8, &StallTrigger{Resource: probe.CPU, Share: 0.8, Window: 2 * time.Second}},
		{"anything", probe.CPU, false, 0, &StallTrigger{Resource: probe.CPU, Share: 0.01, Window: 2 * time.Second}},
		{"covered", probe.IO, true, 0.5, nil},
		{"just as much", probe.IO, true, 0.25, nil},
		{"less", probe.IO, true, 0.2, &StallTrigger{Resource: probe.IO, Full: true, Share: 0.2, Window: 2 * time.Second}},
		{"some, and the other is full", probe.IO, false, 0.5, &StallTrigger{Resource: probe.IO, Share: 0.5, Window: 2 * time.Second}},
		{"full, and the other is some", probe.MemoryResource, true, 0.2, nil},
	} {
		want := DefaultStallTriggers()
		if test.want != nil {
			want = append(want, *test.want)
		}
		got := WithRule(DefaultStallTriggers(), test.resource, test.full, test.share)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		for _, trigger := range got {
			probetest.Must(t, trigger.validate())
		}
	}
}

// Other rules change the triggers, whether or not Run runs; what stays is not opened again.
func TestSetStalls(t *testing.T) {
	more := WithRule(DefaultStallTriggers(), probe.CPU, false, 0.8)
	n := newTestNotifier(t, Config{Procfs: t.TempDir(), Sysfs: t.TempDir()})
	names := func() (names []string) {
		for _, s := range n.Sources() {
			if strings.HasPrefix(s.Name, "pressure_") {
				names = append(names, s.Name)
			}
		}
		return names
	}
	check := func(want ...string) {
		t.Helper()
		if got := names(); !slices.Equal(got, want) {
			t.Errorf("sources %v, want %v", got, want)
		}
	}
	memory := n.watches[0]
	n.SetStalls(more)
	check("pressure_memory_some", "pressure_io_full", "pressure_cpu_some_rule")
	n.SetStalls([]StallTrigger{})
	check()
	n.SetStalls(more)
	check("pressure_memory_some", "pressure_io_full", "pressure_cpu_some_rule")
	if n.watches[0] == memory {
		t.Error("a trigger that was taken away is still there")
	}
	memory = n.watches[0]

	ctx, cancel := context.WithCancel(t.Context())
	looked := make(chan int)
	n.poll = func(fds []unix.PollFd, timeout int) (int, error) {
		looked <- len(fds)
		return unix.Poll(fds, timeout)
	}
	done := make(chan error)
	go func() { done <- n.Run(ctx, func(Cause) {}) }()
	if got := <-looked; got != 7+1 {
		t.Errorf("polls %d descriptors", got)
	}
	n.SetStalls(nil)
	if got := <-looked; got != 6+1 {
		t.Errorf("polls %d descriptors after one was taken away", got)
	}
	check("pressure_memory_some", "pressure_io_full")
	n.SetStalls(more)
	if got := <-looked; got != 7+1 {
		t.Errorf("polls %d descriptors after it came back", got)
	}
	cancel()
	<-done
	if n.watches[0] != memory {
		t.Error("a trigger that stayed was made anew")
	}
}

func TestStallSourceErrors(t *testing.T) {
	for _, errno := range []unix.Errno{
		unix.ENOENT, unix.EOPNOTSUPP, unix.EPERM, unix.EACCES, unix.EROFS, unix.EINVAL, unix.EIO, unix.EBUSY,
	} {
		s := stallSource{}
		if s.remedy(&fs.PathError{Op: "open", Path: "x", Err: errno}) == "" {
			t.Errorf("%v: no remedy", errno)
		}
	}

	// What is no PSI file does not take a trigger, or does and never fires.
	dir := t.TempDir()
	s := stallSource{trigger: StallTrigger{Resource: probe.IO, Share: 0.5}, procfs: dir}
	probetest.Must(t, os.MkdirAll(filepath.Join(dir, "pressure/io"), 0o700))
	if fd, _, err := s.open(); err == nil {
		unix.Close(fd)
		t.Error("a directory took a trigger")
	}

	// POLLERR would come back at once, for ever.
	for revents, ok := range map[int16]bool{
		unix.POLLPRI: true, unix.POLLPRI | unix.POLLERR: false, unix.POLLNVAL: false, unix.POLLHUP: false,
	} {
		if worth, err := s.heard(0, revents); worth != ok || (err == nil) != ok {
			t.Errorf("heard(%#x): got %t, %v", revents, worth, err)
		}
	}
}

// tellingSource stands for a file with news at every moment.
type tellingSource struct {
	mountsSource
	worth bool
	heards,
	opens int
	fails error
}

func (s *tellingSource) open() (int, string, error) {
	s.opens++
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return fd, "", err
}

func (s *tellingSource) heard(int, int16) (bool, error) {
	s.heards++
	return s.worth, s.fails
}

// newStormNotifier has one source, and a kernel that reports all that it is
// asked about and keeps time by the bubble's clock.
func newStormNotifier(s *tellingSource) *Notifier {
	n, _ := New(Config{Procfs: "/proc", Sysfs: "/sys"})
	n.watches = nil
	n.add(s)
	n.poll = func(fds []unix.PollFd, timeout int) (int, error) {
		if count, err := unix.Poll(fds[:1], 0); count != 0 || err != nil {
			return count, err
		}
		fds[0].Revents = 0
		if fds[1].Fd >= 0 {
			fds[1].Revents = unix.POLLPRI | unix.POLLERR
			return 1, nil
		}
		if timeout < 0 {
			timeout = 100 // as nothing else wakes it, but the context
		}
		time.Sleep(time.Duration(timeout) * time.Millisecond)
		return 0, nil
	}
	return n
}

func TestNotifierCoalesces(t *testing.T) {
	for name, test := range map[string]struct {
		worth            bool
		notified, heards int
	}{
		// At once, and then every 500 ms of 10 s.
		"worth a sample": {true, 20, 20},
		// After 0, 1, 3, 7 s: it is asked ever more rarely.
		"nothing new": {false, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
				defer cancel()
				source := &tellingSource{worth: test.worth}
				notified := 0
				err := newStormNotifier(source).Run(ctx, func(Cause) { notified++ })
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Run: %v", err)
				}
				if notified != test.notified || source.heards != test.heards {
					t.Errorf("asked %d times and notified %d times, want %d and %d", source.heards, notified, test.heards, test.notified)
				}
			})
		})
	}
}

// A source that fails is left alone until somebody asks to look again.
func TestNotifierLosesSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		source := &tellingSource{fails: errors.New("broken")}
		n := newStormNotifier(source)
		time.AfterFunc(5*time.Second, func() {
			if s := n.Sources()[0]; s.Active || !errors.Is(s.Err, source.fails) {
				t.Errorf("%+v: want inactive and the error", s)
			}
			n.Refresh()
		})
		n.Run(ctx, func(c Cause) { t.Errorf("notified of %s", c) })
		if source.opens != 2 || source.heards != 2 {
			t.Errorf("opened %d times and asked %d times, want 2 and 2", source.opens, source.heards)
		}
	})
}

// Run is late where what it calls never returns, and not while it waits in the kernel.
func TestAlive(t *testing.T) {
	for name, test := range map[string]struct {
		worth, stuck bool // stuck: notify does not return
		late         bool
	}{
		"nothing to report":        {},
		"reports":                  {worth: true},
		"the caller never returns": {worth: true, stuck: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStormNotifier(&tellingSource{worth: test.worth})
				var mu sync.Mutex
				var due time.Time // zero while nothing is
				overdue := func() bool { return !due.IsZero() && time.Now().After(due) }
				n.alive = func(within time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					if overdue() {
						t.Errorf("%v late", time.Since(due))
					}
					if due = (time.Time{}); within > 0 {
						due = time.Now().Add(within)
					}
				}
				poll := n.poll
				n.poll = func(fds []unix.PollFd, timeout int) (int, error) {
					time.Sleep(time.Minute) // nothing happens for a while
					return poll(fds, timeout)
				}
				never := make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					n.Run(ctx, func(Cause) {
						if test.stuck {
							<-never
						}
					})
				}()
				time.Sleep(time.Hour + time.Second)
				mu.Lock()
				if overdue() != test.late {
					t.Errorf("after an hour: late is %t, want %t", overdue(), test.late)
				}
				due = time.Time{}
				mu.Unlock()
				cancel()
				close(never)
				<-ended
			})
		})
	}
}

func TestNotifierPollFails(t *testing.T) {
	n := newTestNotifier(t, Config{Procfs: t.TempDir(), Sysfs: t.TempDir()})
	n.poll = func([]unix.PollFd, int) (int, error) { return 0, unix.ENOMEM }
	err := n.Run(t.Context(), func(Cause) {})
	if !errors.Is(err, unix.ENOMEM) || !strings.HasPrefix(err.Error(), "wait for notifications: ") {
		t.Errorf("Run: got %v", err)
	}
	if n.wakeFD != -1 {
		t.Error("Run left its eventfd behind")
	}
}

// A trigger is set by writing, and a file that only looks like the kernel's is
// somebody's data.
func TestNotifierLeavesCopiesAlone(t *testing.T) {
	dir := t.TempDir()
	const content = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	for _, name := range []string{"memory", "io"} {
		path := filepath.Join(dir, "pressure", name)
		probetest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		probetest.Must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	n, err := New(Config{Procfs: dir, Sysfs: dir})
	probetest.Must(t, err)
	for _, s := range n.Sources() {
		if s.Active || (s.Cause == MemoryStall && !errors.Is(s.Err, errNotProcfs)) {
			t.Errorf("%+v", s)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "pressure/memory")); err != nil || string(got) != content {
		t.Errorf("the file holds %q now, %v", got, err)
	}
}
