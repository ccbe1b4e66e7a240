package main

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const gi = int64(1) << 30

// limitsScene is a kernel that notes what it is to watch.
type limitsScene struct {
	*kernelLimits
	calls     [][]bpf.Watch
	refuse    error
	again     time.Duration
	levels    bpf.Levels
	log       strings.Builder
	snapshot  probe.Snapshot
	estimates []pressure.Estimate
}

func newLimitsScene(t *testing.T, config pressure.Config) *limitsScene {
	t.Helper()
	thresholds, _, err := pressure.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &limitsScene{}
	s.kernelLimits = &kernelLimits{log: slog.New(slog.NewTextHandler(&s.log, nil)), watch: func(ws []bpf.Watch) error {
		s.calls = append(s.calls, slices.Clone(ws))
		return s.refuse
	}}
	s.kernelLimits.levels = func(l *bpf.Levels) { *l = s.levels }
	s.snapshot.Time = begin
	for sig, capacity := range map[probe.Signal]int64{
		probe.MemoryAvailable: 8 * gi, probe.NodeFsAvailable: 100 * gi, probe.NodeFsInodesFree: 1000, probe.PIDAvailable: 32768,
	} {
		s.snapshot.Signals[sig] = probe.Observation{Available: capacity / 2, Capacity: capacity, OK: true}
	}
	s.snapshot.NodeFs = probe.Filesystem{Path: t.TempDir(), Reserved: 5 * gi}
	s.estimates = slices.Clone(pressure.NewForecaster(thresholds).Observe(&s.snapshot))
	return s
}

func (s *limitsScene) after(d time.Duration) []bool {
	s.snapshot.Time = s.snapshot.Time.Add(d)
	var watched []bool
	watched, s.again = s.update(&s.snapshot, s.estimates)
	return watched
}

// Every limit is put to the kernel in the kernel's own figures.
func TestWatches(t *testing.T) {
	s := newLimitsScene(t, pressure.Config{
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
	s := newLimitsScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%"}})
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
		{"mounts changed", func() { s.stale.Store(true) }, 5},
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
	s := newLimitsScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%", "pid.available": "5%"}})
	notExt4 := errors.New("not ext4")
	s.refuse = bpf.WatchErrors{{Watch: 1, Figure: bpf.FreeBytes, Err: notExt4}}
	for range 3 {
		if got, want := s.after(rearmInterval), []bool{true, false, true}; !slices.Equal(got, want) {
			t.Errorf("watched %v, want %v", got, want)
		}
	}
	if n := strings.Count(s.log.String(), "limits in the kernel"); n != 1 || !strings.Contains(s.log.String(), "not ext4") {
		t.Errorf("logged %d times: %s", n, s.log.String())
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

// While the kernel says that there is pressure and the sample that there is not,
// the kernel would not report a crossing: it is asked to say at once when the
// figure is back, and until then there are samples, ever fewer.
func TestKernelAheadOfSample(t *testing.T) {
	const (
		limit, above = int64(100 << 20), int64(110 << 20)
		ms           = time.Millisecond
	)
	s := newLimitsScene(t, pressure.Config{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}})
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
		{"below", ms, 3, -1, true, above, 5, 0},
		{"still below", time.Second, 3, -1, true, above, 5, 0},
		{"back, but not by much", time.Second, 3, 1, false, limit, 6, 10 * ms},
		{"that was reported", ms, 4, 1, true, above, 7, 0},
	} {
		s.levels.Watches[0].Pressure = step.edges
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
}
