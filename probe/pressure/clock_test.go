package pressure

import (
	"testing"
	"time"
	"unsafe"

	"github.com/nodeprobe/nodeprobe/probe"
)

// A wall clock that is set, by an hour in either direction and at any sample,
// changes no condition, and no hold or grace period by a second.
func TestClockSteps(t *testing.T) {
	const transition = 30 * time.Second
	thresholds := []Threshold{{Signal: probe.MemoryAvailable, Value: Value{Quantity: gi}, Grace: 20 * time.Second}}
	// What is available, in samples ten seconds apart.
	available := []int64{2 * gi, 0, 0, 2 * gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi}
	start := time.Now()
	watch := func(stepAt int, step time.Duration) (verdicts []Verdict) {
		e := NewEvaluator(thresholds, transition)
		for i, a := range available {
			at := start.Add(time.Duration(i) * 10 * time.Second)
			if i >= stepAt {
				at = stepped(t, at, step)
			}
			s := probe.Snapshot{Time: at}
			s.Signals[probe.MemoryAvailable] = probe.Observation{Available: a, Capacity: 4 * gi, OK: true}
			verdicts = append(verdicts, e.Observe(&s)[MemoryPressure])
		}
		return verdicts
	}
	want := watch(len(available), 0)
	if want[2].Status != True || !want[4].Held || want[5].Status != False {
		t.Fatalf("without a step: %+v", want)
	}
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		for stepAt := range available {
			for i, got := range watch(stepAt, step) {
				if got.Status != want[i].Status || got.Held != want[i].Held || got.Since.Sub(want[i].Since) != 0 || got.LastMet.Sub(want[i].LastMet) != 0 {
					t.Errorf("clock set by %v at sample %d: sample %d says %+v, want %+v", step, stepAt, i, got, want[i])
				}
			}
		}
	}
}

// stepped is a time as it would have been read had the wall clock been set by d
// before: another wall time with the same monotonic reading. Package time cannot
// make one, so this goes into its insides, and checks that they are as expected.
func stepped(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	after := at
	*(*uint64)(unsafe.Pointer(&after)) += uint64(d/time.Second) << 30 // below are the nanoseconds
	if after.Sub(at) != 0 || after.Round(0).Sub(at.Round(0)) != d {
		t.Fatalf("package time has changed: %v became %v", at, after)
	}
	return after
}
