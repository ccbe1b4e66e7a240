package arm

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const gi = int64(1) << 30

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// scene is a node whose kernel keeps a record of what it is asked to watch.
type scene struct {
	*Limits
	calls     [][]bpf.Watch
	refuse    error
	edges     bpf.Edges // of the first watch
	verdicts  [pressure.NumConditions]pressure.Verdict
	again     time.Duration // after the latest update
	logs      strings.Builder
	snapshot  probe.Snapshot
	estimates []pressure.Estimate
	drift     int64 // of the kernel's figures
}

func newScene(t *testing.T, config pressure.Config) *scene {
	t.Helper()
	s := &scene{}
	s.Limits = New(Config{
		Logger: slog.New(slog.NewTextHandler(&s.logs, nil)), Levels: s.seen,
		Watch: func(ws []bpf.Watch) error {
			s.calls = append(s.calls, slices.Clone(ws))
			return s.refuse
		},
	})
	s.snapshot.Time = begin
	for sig, capacity := range map[probe.Signal]int64{
		probe.MemoryAvailable: 8 * gi, probe.NodeFsAvailable: 100 * gi, probe.NodeFsInodesFree: 1000, probe.PIDAvailable: 32768,
	} {
		s.snapshot.Signals[sig] = probe.Observation{Available: capacity / 2, Capacity: capacity, OK: true}
	}
	s.snapshot.NodeFs = probe.Filesystem{Path: t.TempDir(), Reserved: 5 * gi}
	s.limit(t, config)
	return s
}

// limit replaces the limits.
func (s *scene) limit(t *testing.T, config pressure.Config) {
	t.Helper()
	thresholds, _, err := pressure.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	s.estimates = slices.Clone(pressure.NewForecaster(thresholds).Observe(&s.snapshot))
}

// seen is what the kernel sees.
func (s *scene) seen(l *bpf.Levels) {
	l.Watches[0].Pressure = s.edges
	if len(s.calls) == 0 {
		return
	}
	signals := map[bpf.Figure]probe.Signal{
		bpf.WorkingSet: probe.MemoryAvailable, bpf.PIDs: probe.PIDAvailable,
		bpf.FreeBytes: probe.NodeFsAvailable, bpf.FreeInodes: probe.NodeFsInodesFree,
	}
	for i, w := range s.calls[len(s.calls)-1] {
		l.Watches[i].Value = s.snapshot.Signals[signals[w.Figure]].Available + s.drift
		if w.Figure == bpf.FreeBytes {
			l.Watches[i].Value += s.snapshot.NodeFs.Reserved
		}
	}
}

func (s *scene) after(d time.Duration) []bool {
	s.snapshot.Time = s.snapshot.Time.Add(d)
	var relied []bool
	relied, s.again = s.Update(&s.snapshot, s.estimates, s.verdicts[:])
	return relied
}

// A limit that is beyond everything is put to the kernel too, and takes no other
// along.
func TestAbsurdLimits(t *testing.T) {
	s := newScene(t, pressure.Config{
		Hard:           map[string]string{"memory.available": "8Ei", "nodefs.available": "8Ei", "nodefs.inodesFree": "8Ei", "pid.available": "8Ei"},
		MinimumReclaim: map[string]string{"memory.available": "8Ei", "pid.available": "1000%"},
	})
	if got := s.after(0); len(got) != 4 || slices.Contains(got, false) {
		t.Errorf("watched %v", got)
	}
	for _, w := range s.calls[0] {
		if w.Below != bpf.MaxFigure || w.Above != bpf.MaxFigure {
			t.Errorf("%+v", w)
		}
	}
}

// Every limit is put to the kernel in the kernel's own figures.
func TestWatches(t *testing.T) {
	s := newScene(t, pressure.Config{
		Hard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "pid.available": "50%",
			"imagefs.available": "15%", // could not be read
		},
		MinimumReclaim: map[string]string{"nodefs.inodesFree": "100"},
	})
	if got, want := s.after(0), []bool{true, true, true, false, true}; !slices.Equal(got, want) {
		t.Errorf("watched %v, want %v", got, want)
	}
	nodefs := pressure.Value{Percentage: 0.1}.Of(100 * gi)
	want := []bpf.Watch{
		{Figure: bpf.WorkingSet, Total: 8 * gi, Below: 100 << 20, Above: 110 << 20},
		// What only root may fill is free, and not available.
		{Figure: bpf.FreeBytes, Below: nodefs + 5*gi, Above: nodefs + gi + 5*gi},
		{Figure: bpf.FreeInodes, Below: 50, Above: 150},
		{Figure: bpf.PIDs, Total: 32768, Below: 16384, Above: 16384 + 327},
	}
	if len(s.calls) != 1 {
		t.Fatalf("%d calls", len(s.calls))
	}
	for i := range s.calls[0] {
		w := &s.calls[0][i]
		if disk := w.Figure == bpf.FreeBytes || w.Figure == bpf.FreeInodes; disk != (w.FD > 0) {
			t.Errorf("%v has descriptor %d", w.Figure, w.FD)
		}
		w.FD = 0
	}
	if diff := cmp.Diff(want, s.calls[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The kernel is told anew when something changed that it cannot know, and not at
// each sample.
func TestWatchesAreSetAnew(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%"}})
	for _, step := range []struct {
		name   string
		change func()
		calls  int
	}{
		{"first", func() {}, 1},
		{"nothing", func() {}, 1},
		{"memory was plugged in", func() { s.snapshot.Signals[probe.MemoryAvailable].Capacity *= 2 }, 2},
		{"another filesystem", func() { s.snapshot.NodeFs.Path = t.TempDir() }, 3},
		{"root keeps more", func() { s.snapshot.NodeFs.Reserved++ }, 4},
		{"mounts changed", func() { s.Invalidate() }, 5},
		{"nothing again", func() {}, 5},
		{"memory cannot be read", func() { s.snapshot.Signals[probe.MemoryAvailable].OK = false }, 6},
	} {
		step.change()
		s.after(time.Second)
		if len(s.calls) != step.calls {
			t.Errorf("%s: %d calls, want %d", step.name, len(s.calls), step.calls)
		}
	}
	s.after(rearmInterval)
	if len(s.calls) != 7 {
		t.Errorf("%d calls after a minute, want 7", len(s.calls))
	}
}

// What the kernel cannot watch is polled, and said once.
func TestRefusedWatchesArePolled(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%", "pid.available": "5%"}})
	notExt4 := errors.New("not ext4")
	s.refuse = bpf.WatchErrors{{Watch: 1, Figure: bpf.FreeBytes, Err: notExt4}}
	for range 3 {
		if got, want := s.after(rearmInterval), []bool{true, false, true}; !slices.Equal(got, want) {
			t.Errorf("watched %v, want %v", got, want)
		}
	}
	if n := strings.Count(s.logs.String(), "limits in the kernel"); n != 1 || !strings.Contains(s.logs.String(), "not ext4") {
		t.Errorf("logged %d times: %s", n, s.logs.String())
	}
	s.refuse = errors.New("sensor is closed")
	if got := s.after(rearmInterval); slices.Contains(got, true) {
		t.Errorf("watched %v although nothing is in force", got)
	}
	s.refuse = nil
	if got := s.after(time.Second); slices.Contains(got, false) {
		t.Errorf("watched %v after the kernel took them", got)
	}
}

// A figure of the kernel's that is not the sampled one is not relied on, be it
// because memory was plugged in or because the kernel counts otherwise; a burst
// of allocations is nothing of the kind.
func TestDriftIsPolled(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%"}})
	for _, step := range []struct {
		name    string
		drift   int64
		after   time.Duration
		watched bool
		calls   int
	}{
		{"agreed", 0, 0, true, 1},
		{"a little off", 1 << 20, rearmInterval, true, 2},
		{"burst", -gi, rearmInterval, true, 3},
		{"looked again at once", 0, time.Second, true, 4},
		{"and no more", 0, time.Second, true, 4},
		{"two bursts", gi, rearmInterval, true, 5},
		{"that differ", 2 * gi, time.Second, true, 6},
		{"the same again", 2 * gi, time.Second, false, 7},
		{"polled", 2 * gi, time.Second, false, 7},
		{"still off", 2 * gi, rearmInterval, false, 8},
		{"mended", 0, rearmInterval, true, 9},
	} {
		s.drift = step.drift
		got := s.after(step.after)
		if slices.Contains(got, !step.watched) {
			t.Errorf("%s: watched %v, want %v", step.name, got, step.watched)
		}
		if len(s.calls) != step.calls {
			t.Errorf("%s: %d calls, want %d", step.name, len(s.calls), step.calls)
		}
	}
	if want := "memory.available: the kernel's figure is off by 2147483648 bytes"; !strings.Contains(s.logs.String(), want) {
		t.Errorf("not logged: %s", s.logs.String())
	}
}

// A filesystem that is filled into what root may have is not off: nothing is
// available there.
func TestNoDriftInReserve(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"nodefs.available": "10%"}})
	s.snapshot.Signals[probe.NodeFsAvailable].Available = 0
	s.drift = -3 * gi // of the 5 in reserve
	for range 3 {
		if got := s.after(rearmInterval); slices.Contains(got, false) {
			t.Errorf("watched %v", got)
		}
	}
}

// A sample that changes nothing about the limits costs no garbage.
func TestWatchesAllocateNothing(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%", "pid.available": "5%"}})
	s.after(0)
	s.cfg.Levels = func(*bpf.Levels) {} // the scene's own makes some
	if n := testing.AllocsPerRun(100, func() { s.Update(&s.snapshot, s.estimates, s.verdicts[:]) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// While the kernel says that there is pressure, and neither the sample nor the
// condition does, the kernel would not report a crossing: it is asked to say at
// once when the figure is back, and until then the figure is polled.
func TestKernelAheadOfSample(t *testing.T) {
	const (
		limit, above = int64(100 << 20), int64(110 << 20)
		ms           = time.Millisecond
	)
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}})
	for _, step := range []struct {
		name     string
		after    time.Duration
		edges    bpf.Edges // of memory, in the kernel
		headroom int64     // of memory, in the sample
		watched  bool
		above    int64 // what the kernel waits for
		calls    int   // so far
		again    time.Duration
	}{
		{"calm", 0, 0, gi, true, above, 1, 0},
		{"below for a moment", time.Second, 1, 1, false, limit, 2, 10 * ms},
		{"still", 15 * ms, 1, 1, false, limit, 2, 15 * ms},
		{"back", ms, 2, 1, true, above, 3, 0},
		{"below for a moment again", ms, 3, 1, false, above, 3, 10 * ms}, // is too soon
		{"a little later", 100 * ms, 3, 0, false, limit, 4, 100 * ms},
		{"for long", 3 * time.Second, 3, 0, false, limit, 4, 500 * ms},
		{"below", ms, 3, -1, true, above, 5, 0},
		{"still below", time.Second, 3, -1, true, above, 5, 0},
		{"back, but not by much", time.Second, 3, 1, false, limit, 6, 10 * ms},
		{"that was reported", ms, 4, 1, true, above, 7, 0},
	} {
		s.edges = step.edges
		s.estimates[0].Headroom = step.headroom
		watched := s.after(step.after)
		if want := []bool{step.watched, true}; !slices.Equal(watched, want) || s.again != step.again {
			t.Errorf("%s: watched %v, again after %s, want %v and %s", step.name, watched, s.again, want, step.again)
		}
		if len(s.calls) != step.calls {
			t.Fatalf("%s: %d calls, want %d", step.name, len(s.calls), step.calls)
		}
		w := s.calls[len(s.calls)-1]
		if w[0].Below != limit || w[0].Above != step.above || w[1].Above == w[1].Below {
			t.Errorf("%s: the kernel is told %+v", step.name, w)
		}
	}
	// A condition that is held is looked at again when its period ends.
	s.edges, s.estimates[0].Headroom, s.verdicts[pressure.MemoryPressure].Status = 5, 1, pressure.True
	if watched := s.after(time.Second); slices.Contains(watched, false) || len(s.calls) != 7 {
		t.Errorf("held: watched %v, %d calls", watched, len(s.calls))
	}
}

// A figure that is back, but not as far as the kernel wants it to be, may go under
// again without a word from the kernel.
func TestSilentReturnIsPolled(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%", "nodefs.inodesFree": "5%"}})
	s.snapshot.Signals[probe.MemoryAvailable].OK = false // so that the kernel's indexes are not ours
	for _, step := range []struct {
		name     string
		headroom int64
		status   pressure.Status
		edges    bpf.Edges
		want     bool
	}{
		{"fine", 1 << 30, pressure.False, 0, true},
		{"pressure", -1, pressure.True, 1, true},
		{"held: a sample is due at its end", 1, pressure.True, 1, true},
		{"over, but not for the kernel", 1, pressure.False, 1, false},
		{"on the line", 0, pressure.False, 1, false},
		{"never told", 1, pressure.Unknown, 1, false},
		{"over for both", 1, pressure.False, 2, true},
	} {
		s.estimates[1].Headroom, s.verdicts[pressure.DiskPressure].Status, s.edges = step.headroom, step.status, step.edges
		if got, want := s.after(time.Second), []bool{false, step.want, true}; !slices.Equal(got, want) {
			t.Errorf("%s: watched %v, want %v", step.name, got, want)
		}
	}
}

// Other thresholds, be they as many or not, are put to the kernel at once, and what
// it said of the old ones counts no more.
func TestChangedLimits(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5Gi", "pid.available": "5%"}})
	s.edges = 1 // though the sample of the first look is as good as the limit
	s.snapshot.Signals[probe.MemoryAvailable].Available = 5 * gi
	s.estimates[0].Headroom = 0
	s.after(0)
	if s.after(time.Second); !s.plan.limits[0].ahead {
		t.Fatal("the kernel is not ahead of the sample")
	}
	for _, hard := range []map[string]string{
		{"memory.available": "1Gi", "pid.available": "5%"},
		{"memory.available": "1Gi", "nodefs.available": "5%", "pid.available": "5%"},
		{"pid.available": "7%"},
		{},
	} {
		s.limit(t, pressure.Config{Hard: hard})
		calls := len(s.calls)
		s.edges = 0
		watched := s.after(time.Millisecond)
		if len(s.calls) != calls+1 || len(watched) != len(hard) || slices.Contains(watched, false) {
			t.Errorf("%v: %d calls, watched %v", hard, len(s.calls)-calls, watched)
			continue
		}
		if got := s.calls[calls]; len(got) != len(hard) {
			t.Errorf("%v: told to watch %+v", hard, got)
		}
		if s.after(time.Millisecond); len(s.calls) != calls+1 {
			t.Errorf("%v: told again", hard)
		}
	}
}

// A filesystem that hangs when it is opened costs its own watches: the others are set,
// it is waited for once, opened once, and watched again when it is back.
func TestHungFilesystemIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}})
		var opens atomic.Int32
		gate := make(chan struct{})
		s.cfg.Open = func(path string) (*os.File, error) {
			opens.Add(1)
			<-gate
			return openDirectory(path)
		}
		start := time.Now()
		for range 5 {
			watched := s.after(10 * time.Second)
			for i, e := range s.estimates {
				if want := e.Signal == probe.MemoryAvailable || e.Signal == probe.PIDAvailable; watched[i] != want {
					t.Errorf("%s: watched %t, want %t", e.Threshold, watched[i], want)
				}
			}
		}
		if took := time.Since(start); took != openTimeout || opens.Load() != 1 {
			t.Errorf("took %s for %d calls, want %s for 1", took, opens.Load(), openTimeout)
		}
		close(gate)
		synctest.Wait()
		s.after(10 * time.Second)
		if last := s.calls[len(s.calls)-1]; !slices.ContainsFunc(last, func(w bpf.Watch) bool { return w.Figure == bpf.FreeBytes }) {
			t.Errorf("not watched when it is back: %+v", last)
		}
	})
}
