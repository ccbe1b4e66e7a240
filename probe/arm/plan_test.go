package arm

import (
	"slices"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const gi = int64(1) << 30

// snapshot returns a sample of a node that has nothing but its nodefs, and half of all
// left.
func snapshot() probe.Snapshot {
	s := probe.Snapshot{
		Time:   time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		NodeFs: probe.Filesystem{Path: "/", Reserved: 5 * gi},
	}
	for sig, capacity := range map[probe.Signal]int64{
		probe.MemoryAvailable: 8 * gi, probe.MemAvailable: 8 * gi, probe.NodeFsAvailable: 100 * gi, probe.NodeFsInodesFree: 1000, probe.PIDAvailable: 32768,
	} {
		s.Signals[sig] = probe.Observation{Available: capacity / 2, Capacity: capacity, OK: true}
	}
	return s
}

// estimates returns those of a first sample.
func estimates(t *testing.T, config pressure.Config, s *probe.Snapshot) []pressure.Estimate {
	t.Helper()
	thresholds, _, err := pressure.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(pressure.NewForecaster(thresholds).Observe(s))
}

// measure has the kernel see what the sample shows, and drift more.
func measure(l *bpf.Levels, ws []bpf.Watch, s *probe.Snapshot, drift int64) {
	signals := map[bpf.Figure]probe.Signal{
		bpf.WorkingSet: probe.MemoryAvailable, bpf.MemAvailable: probe.MemAvailable, bpf.CgroupMemory: probe.AllocatableMemoryAvailable, bpf.PIDs: probe.PIDAvailable,
		bpf.FreeBytes: probe.NodeFsAvailable, bpf.FreeInodes: probe.NodeFsInodesFree,
	}
	for i, w := range ws {
		l.Watches[i].Value = s.Signals[signals[w.Figure]].Available + drift
		if w.Figure == bpf.FreeBytes {
			l.Watches[i].Value += s.NodeFs.Reserved
		}
	}
}

// planScene is a plan, and a kernel that watches whatever it wants.
type planScene struct {
	plan
	snapshot  probe.Snapshot
	estimates []pressure.Estimate
	settled   [80]bool  // by estimate
	edges     bpf.Edges // of the first watch
	drift     int64     // of the kernel's figures
	invalid   bool      // at the next step

	levels bpf.Levels
	set    []bpf.Watch // latest
	sets   int         // how often
	err    error       // of the latest verification
}

func newPlanScene(t *testing.T, config pressure.Config) *planScene {
	t.Helper()
	s := &planScene{snapshot: snapshot()}
	s.estimates = estimates(t, config, &s.snapshot)
	return s
}

// after returns which limits are relied on, and when the next sample is due.
func (s *planScene) after(d time.Duration) (relied []bool, again time.Duration) {
	s.snapshot.Time = s.snapshot.Time.Add(d)
	s.levels.Watches[0].Pressure = s.edges
	due, again := s.step(input{&s.snapshot, s.estimates, s.settled[:len(s.estimates)], &s.levels, s.invalid})
	s.invalid = false
	if due {
		s.sets++
		s.set = nil
		for i := range s.limits {
			l := &s.limits[i]
			if l.slot = -1; l.want != (bpf.Watch{}) {
				l.slot = len(s.set)
				s.set = append(s.set, l.want)
			}
		}
		measure(&s.levels, s.set, &s.snapshot, s.drift)
		s.armed(&s.snapshot, nil)
		s.err = s.verify(&s.snapshot, &s.levels)
	}
	for i := range s.limits {
		relied = append(relied, s.limits[i].relied())
	}
	return relied, again
}

// The watches are set again when something changed that the kernel cannot know, and not at
// each sample.
func TestStepSets(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%"}})
	for _, step := range []struct {
		name   string
		change func()
		sets   int
	}{
		{"first", func() {}, 1},
		{"nothing", func() {}, 1},
		{"memory was plugged in", func() { s.snapshot.Signals[probe.MemoryAvailable].Capacity *= 2 }, 2},
		{"another filesystem", func() { s.snapshot.NodeFs.Path = "/elsewhere" }, 3},
		{"root keeps more", func() { s.snapshot.NodeFs.Reserved++ }, 4},
		{"mounts changed", func() { s.invalid = true }, 5},
		{"nothing again", func() {}, 5},
		{"memory cannot be read", func() { s.snapshot.Signals[probe.MemoryAvailable].OK = false }, 6},
	} {
		step.change()
		s.after(time.Second)
		if s.sets != step.sets {
			t.Errorf("%s: %d sets, want %d", step.name, s.sets, step.sets)
		}
	}
	s.after(rearmInterval)
	if s.sets != 7 {
		t.Errorf("%d sets after a minute, want 7", s.sets)
	}
}

// A limit is not relied on if the kernel's figure is not the sampled one, because memory was
// plugged in or the kernel counts in another way. A burst of allocations is no reason.
func TestStepDrift(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%"}})
	for _, step := range []struct {
		name   string
		drift  int64
		after  time.Duration
		relied bool
		sets   int
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
		got, _ := s.after(step.after)
		if slices.Contains(got, !step.relied) {
			t.Errorf("%s: relied on %v, want %v", step.name, got, step.relied)
		}
		if s.sets != step.sets {
			t.Errorf("%s: %d sets, want %d", step.name, s.sets, step.sets)
		}
		if (s.err == nil) != step.relied {
			t.Errorf("%s: %v", step.name, s.err)
		}
	}
}

// A filesystem that root has filled into its reserve has not drifted: nothing is available
// there.
func TestStepReserve(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"nodefs.available": "10%"}})
	s.snapshot.Signals[probe.NodeFsAvailable].Available = 0
	s.drift = -3 * gi // of the 5 in reserve
	for range 3 {
		if got, _ := s.after(rearmInterval); slices.Contains(got, false) {
			t.Errorf("relied on %v", got)
		}
	}
}

// While the kernel reports pressure that neither the sample nor the condition shows, it would
// not report a crossing: it is asked to report as soon as the figure is back at the limit, and
// until then the figure is polled.
func TestStepAhead(t *testing.T) {
	const (
		limit, above = int64(100 << 20), int64(110 << 20)
		ms           = time.Millisecond
	)
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}})
	for _, step := range []struct {
		name     string
		after    time.Duration
		edges    bpf.Edges // of memory, in the kernel
		headroom int64     // of memory, in the sample
		relied   bool
		above    int64 // where pressure ends for the kernel
		sets     int   // so far
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
		relied, again := s.after(step.after)
		if want := []bool{step.relied, true}; !slices.Equal(relied, want) || again != step.again {
			t.Errorf("%s: relied on %v, again after %s, want %v and %s", step.name, relied, again, want, step.again)
		}
		if s.sets != step.sets {
			t.Fatalf("%s: %d sets, want %d", step.name, s.sets, step.sets)
		}
		w := s.set
		if w[0].Below != limit || w[0].Above != step.above || w[1].Above == w[1].Below {
			t.Errorf("%s: the kernel watches %+v", step.name, w)
		}
	}
	// A condition that is held is looked at again when its period ends.
	s.edges, s.estimates[0].Headroom, s.settled[0] = 5, 1, true
	if relied, _ := s.after(time.Second); slices.Contains(relied, false) || s.sets != 7 {
		t.Errorf("held: relied on %v, %d sets", relied, s.sets)
	}
}

// A figure that is back above its limit, but not where pressure ends for the kernel, may go
// under again without an event.
func TestStepSilentReturn(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%", "nodefs.inodesFree": "5%"}})
	s.snapshot.Signals[probe.MemoryAvailable].OK = false // so that slots are not indexes of limits
	for _, step := range []struct {
		name     string
		headroom int64
		settled  bool
		edges    bpf.Edges
		want     bool
	}{
		{"fine", 1 << 30, false, 0, true},
		{"pressure", -1, true, 1, true},
		{"held: a sample is due at its end", 1, true, 1, true},
		{"over, but not for the kernel", gi, false, 1, false},
		{"on the line", 0, false, 1, false},
		{"over for both", gi, false, 2, true},
	} {
		s.estimates[1].Headroom, s.settled[1], s.edges = step.headroom, step.settled, step.edges
		want := []bool{false, step.want, true}
		if got, _ := s.after(time.Second); !slices.Equal(got, want) {
			t.Errorf("%s: relied on %v, want %v", step.name, got, want)
		}
	}
}

// Other thresholds, whether as many or not, are put to the kernel at once, and what it
// reported about the old ones does not matter any more.
func TestStepChangedLimits(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5Gi", "pid.available": "5%"}})
	s.edges = 1 // though the sample of the first look is as good as the limit
	s.snapshot.Signals[probe.MemoryAvailable].Available = 5 * gi
	s.estimates[0].Headroom = 0
	s.after(0)
	if s.after(time.Second); !s.limits[0].ahead {
		t.Fatal("the kernel is not ahead of the sample")
	}
	for _, hard := range []map[string]string{
		{"memory.available": "1Gi", "pid.available": "5%"},
		{"memory.available": "1Gi", "nodefs.available": "5%", "pid.available": "5%"},
		{"pid.available": "7%"},
		{},
	} {
		s.estimates = estimates(t, pressure.Config{Hard: hard}, &s.snapshot)
		sets := s.sets
		s.edges = 0
		relied, _ := s.after(time.Millisecond)
		if s.sets != sets+1 || len(relied) != len(hard) || slices.Contains(relied, false) {
			t.Errorf("%v: %d sets, relied on %v", hard, s.sets-sets, relied)
			continue
		}
		if len(s.set) != len(hard) || hard["memory.available"] != "" && s.set[0].Below != gi {
			t.Errorf("%v: the kernel watches %+v", hard, s.set)
		}
		if s.after(time.Millisecond); s.sets != sets+1 {
			t.Errorf("%v: set again", hard)
		}
	}
}

// Of more limits than the kernel takes, those are watched that a signal gets to next, from
// either side: however many there are, no limit is polled for want of a watch.
func TestStepMaxWatches(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"nodefs.available": "10%"}})
	for i := range 64 { // 0, which is never crossed, 512, ... 32256 of 32768
		threshold := pressure.Threshold{Signal: probe.PIDAvailable, Value: pressure.Value{Quantity: int64(i) * 512}}
		s.estimates = append(s.estimates, pressure.Estimate{Threshold: threshold, Signal: threshold.Signal})
	}
	for _, step := range []struct {
		available int64
		want      []int64 // the limits on PIDs that the kernel watches
	}{
		{16384, []int64{32 * 512, 33 * 512}},
		{16383, []int64{31 * 512, 32 * 512}}, // just crossed
		{16383, []int64{31 * 512, 32 * 512}},
		{1000, []int64{512, 1024}}, // many at once
		{0, []int64{512}},
		{32768, []int64{63 * 512}},
	} {
		s.snapshot.Signals[probe.PIDAvailable].Available = step.available
		for i := range s.estimates[1:] {
			e := &s.estimates[1+i]
			e.Headroom = step.available - e.Threshold.Value.Quantity
		}
		sets := s.sets
		relied, _ := s.after(time.Second)
		for i, got := range relied {
			if want := i != 1; got != want { // that of 0
				t.Errorf("%d left: limit %d: relied on %t, want %t", step.available, i, got, want)
			}
		}
		var got []int64
		for _, w := range s.set {
			if w.Figure == bpf.PIDs {
				got = append(got, w.Below)
			}
		}
		if !slices.Equal(got, step.want) || len(s.set) != len(step.want)+1 {
			t.Errorf("%d left: the kernel watches %v, want %v", step.available, got, step.want)
		}
		if s.after(time.Millisecond); s.sets > sets+1 {
			t.Errorf("%d left: set again", step.available)
		}
	}
}

// Two watches for each signal that the kernel has a figure for are no more than it takes.
func TestNearestFits(t *testing.T) {
	watches := 0
	for signal := range probe.Signal(probe.NumSignals) {
		if figureOf(signal) != 0 {
			watches += 2
		}
	}
	if watches > bpf.MaxWatches {
		t.Errorf("%d watches of %d", watches, bpf.MaxWatches)
	}
}

// Limits behind one that the kernel is ahead with, or does not watch, are polled too.
func TestStepBehind(t *testing.T) {
	s := newPlanScene(t, pressure.Config{})
	s.estimates = nil
	for i := range 20 {
		threshold := pressure.Threshold{Signal: probe.MemoryAvailable, Value: pressure.Value{Quantity: int64(i+1) << 20}}
		s.estimates = append(s.estimates, pressure.Estimate{Threshold: threshold, Signal: threshold.Signal, Headroom: gi - int64(i+1)<<20})
	}
	if relied, _ := s.after(0); slices.Contains(relied, false) || len(s.set) != 1 {
		t.Fatalf("relied on %v with %d watches", relied, len(s.set))
	}
	s.edges = 1
	if relied, again := s.after(time.Second); slices.Contains(relied, true) || again != minAgain {
		t.Errorf("ahead: relied on %v, again after %s", relied, again)
	}
	s.edges = 2
	if relied, _ := s.after(time.Second); slices.Contains(relied, false) {
		t.Errorf("not any more: relied on %v", relied)
	}
	s.drift = 2 * gi
	s.after(rearmInterval)
	if relied, _ := s.after(time.Second); slices.Contains(relied, true) {
		t.Errorf("drifted: relied on %v", relied)
	}
}

// Nothing is left of a drift when its limit cannot be watched for a while: the watches are
// not set at each sample to look at it again.
func TestStepDriftOfAbsentSignal(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "pid.available": "5%"}})
	s.after(0)
	s.drift = gi
	s.after(rearmInterval)
	s.drift = 0
	s.snapshot.Signals[probe.MemoryAvailable].OK = false
	s.after(time.Second)
	sets := s.sets
	if s.after(time.Second); s.sets != sets {
		t.Errorf("set again: %+v", s.limits)
	}
}

// A hint brings samples, and the pace does not rely on it. It is moved along with the
// sampled figure where the two part, and not each time.
func TestStepHint(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"nodefs.available": "10%"}})
	limit := pressure.Value{Percentage: 0.1}.Of(100 * gi)
	s.levels.Watches[0].Filesystem = bpf.Btrfs
	for _, step := range []struct {
		name  string
		drift int64
		after time.Duration
		edges bpf.Edges
		above int64 // the sampled limit, in the kernel
		sets  int
	}{
		{"not known to be one", 20 * gi, 0, 0, 5 * gi, 1}, // the reserve
		{"moved", 20 * gi, time.Second, 0, 25 * gi, 2},
		{"nothing new", 20 * gi, time.Second, 0, 25 * gi, 2},
		{"about the same", 20*gi + 1<<20, rearmInterval, 0, 25 * gi, 3},
		{"parted", 10 * gi, rearmInterval, 0, 25 * gi, 4},
		{"moved again", 10 * gi, time.Second, 0, 15 * gi, 5},
		{"ahead of the sample", 10 * gi, time.Second, 1, 15 * gi, 5},
	} {
		s.drift, s.edges = step.drift, step.edges
		relied, again := s.after(step.after)
		if relied[0] || again != 0 || s.err != nil {
			t.Errorf("%s: relied on %v, again after %s, %v", step.name, relied, again, s.err)
		}
		if got := s.set[0].Below - limit; got != step.above || s.sets != step.sets {
			t.Errorf("%s: %d above the limit, %d sets; want %d, %d", step.name, got, s.sets, step.above, step.sets)
		}
	}
}

// What the CPUs may not have added yet is no drift, however many there are.
func TestStepLag(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"nodefs.available": "10%"}})
	s.snapshot.Capacity.CPUs = 128
	s.levels.Watches[0].Filesystem = bpf.XFS
	s.drift = 32<<20 + 100*1024 // in blocks of one byte, as a test may not set them
	for _, step := range []struct {
		cpus   int64
		relied bool
	}{{128, true}, {0, false}} { // 0: as if it were not known
		s.snapshot.Capacity.CPUs = step.cpus
		for range 2 {
			s.after(rearmInterval)
		}
		if got, _ := s.after(time.Second); got[0] != step.relied {
			t.Errorf("%d CPUs: relied on %v", step.cpus, got)
		}
	}
}
