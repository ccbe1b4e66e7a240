package pressure

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// testConfig uses every kind of threshold on every condition.
var testConfig = Config{
	Hard: entries{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "1k", "pid.available": "5%",
	},
	Soft:                   entries{"memory.available": "1Gi", "nodefs.available": "20%", "pid.available": "10%"},
	SoftGracePeriod:        entries{"memory.available": "1m", "nodefs.available": "20s", "pid.available": "0s"},
	MinimumReclaim:         entries{"memory.available": "500Mi", "nodefs.available": "5%"},
	EnforceNodeAllocatable: []string{"pods"},
	TransitionPeriod:       5 * time.Minute,
}

func mustParse(t testing.TB, c Config) []Threshold {
	t.Helper()
	thresholds, _, err := Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return thresholds
}

// snapshotAt returns a snapshot in which each signal has this share available.
func snapshotAt(now time.Time, share float64) probe.Snapshot {
	s := probe.Snapshot{Time: now}
	for i := range s.Signals {
		s.Signals[i] = probe.Observation{Available: int64(share * float64(8*gi)), Capacity: 8 * gi, OK: true}
	}
	return s
}

func TestObserveReturnsAllConditionsInOrder(t *testing.T) {
	s := snapshotAt(start, 0.5)
	for _, thresholds := range [][]Threshold{nil, mustParse(t, testConfig)} {
		verdicts := NewEvaluator(thresholds, 0).Observe(&s)
		var got []string
		for _, v := range verdicts {
			got = append(got, v.Condition.String()+"="+v.Status.String())
		}
		want := []string{"MemoryPressure=False", "DiskPressure=False", "PIDPressure=False"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func TestVerdictEvidence(t *testing.T) {
	threshold := Threshold{
		Signal: probe.MemoryAvailable, Value: Value{Quantity: gi}, MinReclaim: Value{Quantity: 500 * mi},
	}
	e := NewEvaluator([]Threshold{threshold}, time.Minute)
	met := snapshotAt(start, 0.01)
	e.Observe(&met)
	reclaiming := snapshotAt(start.Add(10*time.Second), 0.13) // of 8Gi: more than 1Gi, less than 1524Mi
	e.Observe(&reclaiming)
	later := snapshotAt(start.Add(20*time.Second), 0.5)
	got := e.Observe(&later)[MemoryPressure]
	want := Verdict{
		Condition: MemoryPressure, Status: True, Since: met.Time, Held: true, LastMet: reclaiming.Time,
		Threshold: threshold, Observation: reclaiming.Signals[probe.MemoryAvailable], Limit: gi + 500*mi,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("held: -want +got:\n%s", diff)
	}
	end := snapshotAt(start.Add(70*time.Second), 0.5)
	got = e.Observe(&end)[MemoryPressure]
	want = Verdict{Condition: MemoryPressure, Status: False, Since: end.Time}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ended: -want +got:\n%s", diff)
	}
}

// More in use than there is meets every threshold, even that of 0.0%, and limits
// that do not fit into an int64 neither wrap around nor hide it.
func TestObserveExtremes(t *testing.T) {
	for _, test := range []struct {
		name      string
		threshold Threshold
		available int64
		capacity  int64
		want      Status
	}{
		{"negative", Threshold{Value: Value{Quantity: 1}}, -1, gi, True},
		{"least", Threshold{Value: Value{Quantity: math.MaxInt64}}, math.MinInt64, gi, True},
		{"negative for 0.0%", Threshold{}, -1, gi, True},
		{"nothing left for 0.0%", Threshold{}, 0, gi, False},
		{"nothing left of nothing", Threshold{Value: Value{Percentage: 0.1}}, 0, 0, False},
		{"greatest capacity", Threshold{Value: Value{Percentage: 1}}, math.MaxInt64 - 1, math.MaxInt64, True},
		{"greatest capacity, all available", Threshold{Value: Value{Percentage: 1}}, math.MaxInt64, math.MaxInt64, False},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := probe.Snapshot{Time: start}
			s.Signals[test.threshold.Signal] = probe.Observation{Available: test.available, Capacity: test.capacity, OK: true}
			e := NewEvaluator([]Threshold{test.threshold}, 0)
			if got := e.Observe(&s)[MemoryPressure]; got.Status != test.want {
				t.Errorf("got %v, want %v", got.Status, test.want)
			}
		})
	}
}

// The minimum reclaim may not fit either.
func TestMinReclaimSaturates(t *testing.T) {
	e := NewEvaluator([]Threshold{{
		Signal: probe.MemoryAvailable, Value: Value{Quantity: gi}, MinReclaim: Value{Quantity: math.MaxInt64},
	}}, 0)
	met, never := snapshotAt(start, 0), snapshotAt(start.Add(time.Second), 1)
	e.Observe(&met)
	if got := e.Observe(&never)[MemoryPressure]; !got.Met || got.Limit != math.MaxInt64 {
		t.Errorf("got met %v below %d", got.Met, got.Limit)
	}
}

// A seed has no monotonic reading; after the first snapshot its hold must have
// one, so that a machine that boots with a wrong clock may set it right.
func TestSeedBecomesMonotonic(t *testing.T) {
	now := time.Now()
	e := NewEvaluator(mustParse(t, testConfig), 5*time.Minute)
	e.Seed(MemoryPressure, True, now.Add(-time.Minute).Round(0))
	s := snapshotAt(now, 0.5)
	got := e.Observe(&s)[MemoryPressure]
	if !got.Held || !strings.Contains(got.LastMet.String(), " m=") {
		t.Fatalf("held %v since %v", got.Held, got.LastMet)
	}
	if age := now.Sub(got.LastMet); age != time.Minute {
		t.Errorf("last met %v ago, want 1m", age)
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	e := NewEvaluator(mustParse(t, testConfig), time.Minute)
	now := time.Now()
	snapshots := []probe.Snapshot{snapshotAt(now, 0.5), snapshotAt(now, 0.001), snapshotAt(now, 0.12), {}}
	for i := range snapshots[3].Signals {
		snapshots[3].Signals[i].Err = errAbsent
	}
	i := 0
	allocs := testing.AllocsPerRun(1000, func() {
		s := &snapshots[i%len(snapshots)]
		s.Time = now.Add(time.Duration(i) * 10 * time.Second)
		e.Observe(s)
		i++
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkObserve(b *testing.B) {
	for _, bench := range []struct {
		name  string
		share float64
	}{{"idle", 0.5}, {"pressure", 0.001}} {
		b.Run(bench.name, func(b *testing.B) {
			e := NewEvaluator(mustParse(b, testConfig), 5*time.Minute)
			s := snapshotAt(time.Now(), bench.share)
			b.ReportAllocs()
			for b.Loop() {
				s.Time = s.Time.Add(10 * time.Second)
				e.Observe(&s)
			}
		})
	}
}
