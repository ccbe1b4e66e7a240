//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Thresholds that a figure is always, and never, below.
const (
	always = math.MaxInt64 / 4
	never  = -always
)

// watch puts watches into force.
func watch(t testing.TB, s *Sensor, ws ...Watch) {
	t.Helper()
	if err := s.Watch(ws); err != nil {
		t.Fatal(err)
	}
}

func levels(s *Sensor) *Levels {
	var l Levels
	s.Levels(&l)
	return &l
}

// event returns the next event about a watch, nil if there is none for a while.
func event(t testing.TB, s *Sensor, wait time.Duration) *Event {
	t.Helper()
	s.kernel.events.SetDeadline(time.Now().Add(wait))
	for {
		var e Event
		switch err := s.ReadEvent(&e); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			t.Fatal(err)
		case e.Kind != OOMKill: // Others' victims are not this test's.
			return &e
		}
	}
}

// wantEvent waits for an event that is like want in all but time and value, and
// returns it.
func wantEvent(t testing.TB, s *Sensor, want Event) *Event {
	t.Helper()
	e := event(t, s, 20*time.Second)
	if e == nil {
		t.Fatalf("no event, want %v %+v; levels %+v", want.Kind, want, levels(s).Watches[want.Watch])
	}
	got := *e
	got.Time, got.Value = want.Time, want.Value
	if got != want {
		t.Fatalf("event\n%+v, want\n%+v", got, want)
	}
	return e
}

func TestWatchIsValidated(t *testing.T) {
	s := Open(Options{Disabled: true})
	defer closeSensor(t, s)
	for name, ws := range map[string][]Watch{
		"17 watches":  make([]Watch, MaxWatches+1),
		"no figure":   {{}},
		"next figure": {{Figure: CgroupMemory + 1}},
		"crossed":     {{Figure: MemAvailable, Below: 2, Above: 1}},
		"no total":    {{Figure: WorkingSet, Below: 1, Above: 2}},
		"bad file":    {{Figure: FreeBytes, FD: -1}},
		"below all":   {{Figure: MemAvailable, Below: math.MinInt64}},
		"above all":   {{Figure: MemAvailable, Above: MaxFigure + 1}},
		"total":       {{Figure: PIDs, Total: math.MaxInt64}},
		"rate":        {{Figure: MemAvailable, MaxRate: maxRate + 1}},
	} {
		err := s.Watch(ws)
		var refused WatchErrors
		if err == nil || errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Without the timer each watch has the same reason, and it is the hook's.
func TestWatchWithoutTimer(t *testing.T) {
	s := Open(Options{Disabled: true})
	defer closeSensor(t, s)
	err := s.Watch([]Watch{{Figure: PIDs, Total: 1}, {Figure: MemAvailable}})
	var refused WatchErrors
	if !errors.As(err, &refused) || len(refused) != 2 || refused[1].Watch != 1 || refused[1].Figure != MemAvailable {
		t.Fatalf("%v", err)
	}
	if !errors.Is(refused[0], ErrDisabled) || !errors.Is(err, ErrDisabled) || !strings.Contains(err.Error(), "bpf_timer/tick") {
		t.Errorf("%v", err)
	}
	if err := s.Refresh(); !errors.Is(err, ErrDisabled) {
		t.Errorf("Refresh: %v", err)
	}
	if *levels(s) != (Levels{}) {
		t.Errorf("%+v", levels(s))
	}
}

func TestWatchAfterClose(t *testing.T) {
	s := open(t, Tasks, Pressure)
	watch(t, s, Watch{Figure: MemAvailable})
	closeSensor(t, s)
	var refused WatchErrors
	if err := s.Watch(nil); !errors.Is(err, os.ErrClosed) || errors.As(err, &refused) {
		t.Errorf("Watch: %v", err)
	}
	if err := s.Refresh(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Refresh: %v", err)
	}
	if levels(s).MemAvailable == 0 {
		t.Error("the last levels are lost")
	}
}

// Some watches cannot be had, and the others work.
func TestRefusedWatchesAreNamed(t *testing.T) {
	s := open(t, Tasks, Pressure)
	proc, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	err = s.Watch([]Watch{
		{Figure: FreeBytes, FD: int(proc.Fd())},
		{Figure: MemAvailable, Below: always, Above: always},
		{Figure: FreeInodes, FD: 1 << 20},
		{Figure: FreeInodes, FD: math.MaxInt32},
	})
	var refused WatchErrors
	if !errors.As(err, &refused) || len(refused) != 3 {
		t.Fatalf("%v", err)
	}
	t.Log(err)
	if e := refused[0]; e.Watch != 0 || e.Figure != FreeBytes || !errors.Is(e, errors.ErrUnsupported) {
		t.Errorf("%+v", e)
	}
	for i, e := range refused[1:] {
		if e.Watch != i+2 || !errors.Is(e, unix.EBADF) {
			t.Errorf("%+v", e)
		}
	}
	wantEvent(t, s, Event{Kind: Crossing, Watch: 1, Seq: 1, On: true, Limit: always})
}

func TestPIDsNeedTasks(t *testing.T) {
	s := open(t, Tasks, Pressure)
	s.hooks[0].Attached, s.hooks[0].Err = false, errors.ErrUnsupported
	err := s.Watch([]Watch{{Figure: MemAvailable}, {Figure: PIDs, Total: 1, Below: always, Above: always}})
	var refused WatchErrors
	if !errors.As(err, &refused) || len(refused) != 1 || refused[0].Watch != 1 || !errors.Is(refused[0], errors.ErrUnsupported) {
		t.Fatalf("%v", err)
	}
	if levels(s).Watches[1] != (Level{}) {
		t.Errorf("%+v", levels(s).Watches[1])
	}
}

// New thresholds count at once, however long the timer sleeps, and an event says
// what they change.
func TestThresholdsChange(t *testing.T) {
	s := open(t, Tasks, Pressure)
	fine := Watch{Figure: MemAvailable, Below: never, Above: never}
	bad := Watch{Figure: MemAvailable, Below: always, Above: always}
	watch(t, s, fine)
	if l := levels(s); l.Period != time.Second || l.Watches[0].Value != l.MemAvailable || l.MemAvailable == 0 {
		t.Errorf("%+v", l)
	}
	for n := uint64(1); n < 20; n += 2 {
		before := levels(s).Ticks
		watch(t, s, bad)
		if l := levels(s); l.Watches[0].Pressure != Edges(n) || l.Period != 100*time.Millisecond {
			t.Errorf("%+v", l)
		}
		// The timer that slept for a second now ticks ten times as often.
		eventually(t, "ticks", func() bool { return levels(s).Ticks >= before+2 })
		watch(t, s, fine)
		wantEvent(t, s, Event{Kind: Crossing, Seq: n, On: true, Limit: always})
		wantEvent(t, s, Event{Kind: Crossing, Seq: n + 1, Limit: never})
	}
	watch(t, s)
	if got := levels(s).Period; got != 0 {
		t.Errorf("period %v without watches", got)
	}
}

// Thresholds that are never, or always, reached are like any other, and so is a
// total that is less than what is in use.
func TestExtremeThresholds(t *testing.T) {
	s := open(t, Tasks, Pressure)
	for _, tt := range []struct {
		name string
		Watch
		on     bool
		period time.Duration
	}{
		{"never, at the least", Watch{Figure: MemAvailable, Below: -MaxFigure, Above: -MaxFigure}, false, time.Second},
		{"never left again", Watch{Figure: MemAvailable, Below: -MaxFigure, Above: MaxFigure}, false, time.Second},
		{"always", Watch{Figure: MemAvailable, Below: MaxFigure, Above: MaxFigure}, true, 100 * time.Millisecond},
		{"always, of little memory", Watch{Figure: WorkingSet, Total: 1, Below: MaxFigure, Above: MaxFigure}, true, 100 * time.Millisecond},
		{"never, of endless memory", Watch{Figure: WorkingSet, Total: MaxFigure, Below: -MaxFigure, Above: MaxFigure}, false, time.Second},
		{"always, of few PIDs", Watch{Figure: PIDs, Total: 1, Below: MaxFigure, Above: MaxFigure}, true, 100 * time.Millisecond},
		{"all PIDs in use", Watch{Figure: PIDs, Total: 1, Below: 0, Above: 0}, true, 10 * time.Millisecond},
		{"never, of endless PIDs", Watch{Figure: PIDs, Total: MaxFigure, Below: -MaxFigure, Above: MaxFigure}, false, time.Second},
		{"a threshold above the capacity", Watch{Figure: PIDs, Total: 1000, Below: 2000, Above: 3000}, true, 10 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			watch(t, s) // so that nothing is taken over
			watch(t, s, tt.Watch)
			if l := levels(s); l.Watches[0].Pressure.On() != tt.on || l.Period != tt.period {
				t.Errorf("period %v, %+v", l.Period, l.Watches[0])
			}
			e := event(t, s, 0)
			if (e != nil) != tt.on || e != nil && (!e.On || e.Limit != tt.Below) {
				t.Errorf("%+v", e)
			}
			// Forks go on comparing.
			threads(10)()
			if e := event(t, s, 0); e != nil {
				t.Errorf("another event: %+v", e)
			}
		})
	}
}

// As when an administrator lowers kernel.pid_max below what is in use, and raises it
// again: each is an event at once.
func TestTotalChanges(t *testing.T) {
	s := open(t, Tasks, Pressure)
	for n := uint64(1); n < 10; n += 2 {
		watch(t, s, Watch{Figure: PIDs, Total: 1 << 22, Below: 100, Above: 200})
		if n > 1 {
			wantEvent(t, s, Event{Kind: Crossing, Seq: n - 1, Limit: 200})
		}
		watch(t, s, Watch{Figure: PIDs, Total: 2, Below: 100, Above: 200})
		e := wantEvent(t, s, Event{Kind: Crossing, Seq: n, On: true, Limit: 100})
		if e.Value >= 2 {
			t.Errorf("%+v", e)
		}
		threads(10)()
	}
	if e := event(t, s, 0); e != nil {
		t.Errorf("%+v", e)
	}
}

// An event of an earlier watch is none of the one that took its index.
func TestEventsOfReplacedWatches(t *testing.T) {
	s := open(t, Tasks, Pressure)
	watch(t, s, Watch{Figure: MemAvailable, Below: always, Above: always})
	watch(t, s, Watch{Figure: WorkingSet, Total: 1, Below: never, Above: never})
	if l := levels(s).Watches[0]; l.Pressure.On() || l.Pressure == 0 {
		t.Errorf("%+v", l)
	}
	watch(t, s, Watch{Figure: WorkingSet, Total: 1, Below: always, Above: always})
	e := wantEvent(t, s, Event{Kind: Crossing, Seq: 3, On: true, Limit: always})
	if e.Value != levels(s).Watches[0].Value && e.Value >= 0 {
		t.Errorf("%+v", e)
	}
	if e := event(t, s, 50*time.Millisecond); e != nil {
		t.Errorf("%+v", e)
	}
}

// What two CPUs noticed at once is reported once.
func TestDuplicateEvents(t *testing.T) {
	s := open(t, Tasks, Pressure)
	e := Event{Kind: Crossing, Watch: 3, Seq: 5}
	for i, want := range []bool{true, false, false} {
		if got := s.kernel.isNews(&e, 0); got != want {
			t.Errorf("time %d: %v", i, got)
		}
	}
	e.Kind = ReadOnly
	if !s.kernel.isNews(&e, 0) {
		t.Error("another kind is no news")
	}
	e.Seq++
	if s.kernel.isNews(&e, 1) || !s.kernel.isNews(&e, 0) {
		t.Error("it is not the epoch that counts")
	}
}

// With nobody reading, the ring buffer overflows. Levels knows better.
func TestLossIsNoticed(t *testing.T) {
	s := open(t, Tasks, OOM, Pressure)
	lost := s.Counters().Lost
	n := Edges(0)
	for limit := int64(always); s.Counters().Lost < lost+10 || !n.On(); limit = -limit {
		watch(t, s, Watch{Figure: MemAvailable, Below: limit, Above: limit})
		n++
	}
	var seq uint64
	for e := event(t, s, 0); e != nil; e = event(t, s, 0) {
		if e.Seq != seq+1 {
			t.Errorf("event %d follows event %d", e.Seq, seq)
		}
		seq = e.Seq
	}
	l := levels(s).Watches[0]
	if l.Pressure != n || !l.Pressure.On() || seq >= uint64(n) || seq == 0 {
		t.Errorf("last event %d, level %+v, want %d edges", seq, l, n)
	}
	t.Logf("%d of %d events lost", uint64(n)-seq, n)
	watch(t, s, Watch{Figure: MemAvailable, Below: never, Above: never})
	wantEvent(t, s, Event{Kind: Crossing, Seq: uint64(n) + 1, Limit: never})
}

func TestLevelsAllocateNothing(t *testing.T) {
	s := open(t, Tasks, Pressure)
	watch(t, s, Watch{Figure: MemAvailable})
	var l Levels
	if n := testing.AllocsPerRun(100, func() { s.Levels(&l) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestReadCrossingAllocatesNothing(t *testing.T) {
	s := open(t, Tasks, Pressure)
	const n = 50
	for i := range 2 * n {
		limit := int64(always)
		if i%2 == 1 {
			limit = never
		}
		watch(t, s, Watch{Figure: MemAvailable, Below: limit, Above: limit})
	}
	var e Event
	if got := testing.AllocsPerRun(n, func() {
		if err := s.ReadEvent(&e); err != nil {
			t.Error(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// The timer's own account.
func TestTicksAreAccounted(t *testing.T) {
	s := open(t, Tasks, Pressure)
	watch(t, s, Watch{Figure: MemAvailable, Below: always, Above: always})
	eventually(t, "ticks", func() bool { return levels(s).Ticks >= 5 })
	if l := levels(s); l.TickTime <= 0 || l.Lateness <= 0 {
		t.Errorf("%+v", l)
	}
}
