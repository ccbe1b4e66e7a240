package pressure

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

func TestForecastKeepsTheOrder(t *testing.T) {
	thresholds := mustParse(t, testConfig)
	s := snapshotAt(start, 0.5)
	for _, thresholds := range [][]Threshold{nil, thresholds} {
		got := []Threshold{}
		for _, e := range NewForecaster(thresholds).Observe(&s) {
			if e.Signal != e.Threshold.Signal {
				t.Errorf("%v: signal %v", e.Threshold, e.Signal)
			}
			got = append(got, e.Threshold)
		}
		if diff := cmp.Diff(append([]Threshold{}, thresholds...), got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func TestEstimate(t *testing.T) {
	limit := Threshold{Signal: probe.MemoryAvailable, Value: Value{Quantity: 100}, MinReclaim: Value{Quantity: 50}}
	half := Threshold{Signal: probe.MemoryAvailable, Value: Value{Percentage: 0.5}}
	const s = time.Second
	for _, test := range []struct {
		name      string
		threshold Threshold
		available int64
		rate      float64
		evidence  evidence
		still     time.Duration
		want      Estimate
	}{
		{"steady", limit, 200, 0, evidence{}, 0, Estimate{Headroom: 100}},
		{"grows", limit, 200, 5, evidence{}, 0, Estimate{Headroom: 100, Rate: 5}},
		{"may be noise", limit, 200, -5, evidence{}, 0, Estimate{Headroom: 100, Rate: -5, Earliest: 20 * s}},
		{"shrinks", limit, 200, -5, evidence{-4, 25, 0}, 0, Estimate{Headroom: 100, Rate: -5, Earliest: 20 * s, TimeToLimit: 25 * s, OK: true}},
		{"shrinks, unseen by the rate", limit, 200, 0, evidence{-4, 25, 0}, 0, Estimate{Headroom: 100, Earliest: 25 * s, TimeToLimit: 25 * s, OK: true}},
		{"has not taken a quarter yet", limit, 200, -5, evidence{-4, 24, 0}, 0, Estimate{Headroom: 100, Rate: -5, Earliest: 20 * s}},
		{"has taken less than usual", limit, 200, -5, evidence{-4, 50, 60}, 0, Estimate{Headroom: 100, Rate: -5, Earliest: 20 * s}},
		{"has taken more than is left", limit, 200, -5, evidence{-4, 100, 200}, 0, Estimate{Headroom: 100, Rate: -5, Earliest: 20 * s, TimeToLimit: 25 * s, OK: true}},
		{"percentage", half, 700, -5, evidence{-5, 100, 0}, 0, Estimate{Headroom: 200, Rate: -5, Earliest: 40 * s, TimeToLimit: 40 * s, OK: true}},
		{"has stood still", limit, 200, -5, evidence{-4, 50, 0}, time.Minute, Estimate{Headroom: 100, Rate: -5, Earliest: time.Minute, TimeToLimit: time.Minute, OK: true}},
		{"reached", limit, 100, -5, evidence{-4, 50, 0}, time.Minute, Estimate{Headroom: 0, Rate: -5, OK: true}},
		{"passed, and coming back", limit, 50, 5, evidence{}, 0, Estimate{Headroom: -50, Rate: 5, OK: true}},
		{"just before", limit, 101, -1e300, evidence{-1e300, 1, 0}, 0, Estimate{Headroom: 1, Rate: -1e300, Earliest: 1, TimeToLimit: 1, OK: true}},
		{"horizon", limit, 100 + 30*24*3600, -1, evidence{}, 0, Estimate{Headroom: 30 * 24 * 3600, Rate: -1, Earliest: Horizon}},
		{"beyond the horizon", limit, 101 + 30*24*3600, -1, evidence{-1, 30 * 24 * 3600, 0}, 0, Estimate{Headroom: 1 + 30*24*3600, Rate: -1}},
		{"infinitely far", limit, 200, -math.SmallestNonzeroFloat64, evidence{}, 0, Estimate{Headroom: 100, Rate: -math.SmallestNonzeroFloat64}},
		{"least", limit, math.MinInt64, 0, evidence{}, 0, Estimate{Headroom: math.MinInt64, OK: true}},
		{"most", limit, math.MaxInt64, 0, evidence{}, 0, Estimate{Headroom: math.MaxInt64 - 100}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.want.Signal, test.want.Threshold, test.want.Capacity = probe.MemoryAvailable, test.threshold, 1000
			obs := probe.Observation{Available: test.available, Capacity: 1000, OK: true}
			if diff := cmp.Diff(test.want, estimate(test.threshold, obs, test.rate, test.evidence, test.still)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMinusSaturates(t *testing.T) {
	for _, test := range []struct{ a, b, want int64 }{
		{5, 3, 2},
		{math.MinInt64, 1, math.MinInt64},
		{math.MinInt64, math.MaxInt64, math.MinInt64},
		{-2, math.MaxInt64, math.MinInt64},
		{-1, math.MaxInt64, math.MinInt64},
		{0, math.MinInt64, math.MaxInt64},
		{-1, math.MinInt64, math.MaxInt64},
		{math.MaxInt64, -1, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64, 0},
	} {
		if got := minus(test.a, test.b); got != test.want {
			t.Errorf("%d-%d = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

// The rate shows a burst after a sample or two, wherever the sampler was.
func TestForecastReactsToABurst(t *testing.T) {
	const rate = 200 * float64(1<<20)
	for _, every := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			f := NewForecaster([]Threshold{{Signal: probe.MemoryAvailable, Value: Value{Quantity: 100 * mi}}})
			level := 6 * float64(gi)
			now := start
			var got Estimate
			for i := range 102 {
				if i >= 100 {
					level -= rate * every.Seconds()
				}
				now = now.Add(every)
				s := probe.Snapshot{Time: now}
				jitter := int64(stray(i) * float64(mi))
				s.Signals[probe.MemoryAvailable] = probe.Observation{Available: int64(level) + jitter, Capacity: 8 * gi, OK: true}
				got = f.Observe(&s)[0]
			}
			// Two steps of the fast average, whatever its time constant.
			share := -math.Expm1(-2 * every.Seconds() / fastSeconds)
			if got.Earliest == 0 || got.Rate > -0.8*rate*share || got.Rate < -1.2*rate*share {
				t.Errorf("after two samples: %+v, want a rate of %g", got, -rate*share)
			}
		})
	}
}

// What is known of a rate does not depend on the number of limits, nor they on
// one another.
func TestForecastIndependence(t *testing.T) {
	thresholds := mustParse(t, testConfig)
	all := NewForecaster(thresholds)
	alone := make([]*Forecaster, len(thresholds))
	for i := range thresholds {
		alone[i] = NewForecaster(thresholds[i : i+1])
	}
	for i := range 200 {
		s := snapshotAt(start.Add(time.Duration(i)*700*time.Millisecond), 0.6-float64(i)*0.001)
		for k := range s.Signals {
			s.Signals[k].Available += int64(stray(i*probe.NumSignals+k) * float64(mi))
		}
		for k, e := range all.Observe(&s) {
			if diff := cmp.Diff(alone[k].Observe(&s)[0], e); diff != "" {
				t.Fatalf("sample %d: -alone +together:\n%s", i, diff)
			}
		}
	}
}

func TestForecastDoesNotAllocate(t *testing.T) {
	f := NewForecaster(mustParse(t, testConfig))
	now := time.Now()
	snapshots := []probe.Snapshot{snapshotAt(now, 0.5), snapshotAt(now, 0.4), snapshotAt(now, 0.001), {}}
	for i := range snapshots[3].Signals {
		snapshots[3].Signals[i].Err = errAbsent
	}
	i := 0
	var interval time.Duration
	allocs := testing.AllocsPerRun(1000, func() {
		s := &snapshots[i%len(snapshots)]
		s.Time = now.Add(time.Duration(i) * time.Second)
		interval = NextSample(f.Observe(s), interval, Pace{})
		i++
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkForecast(b *testing.B) {
	for _, bench := range []struct {
		name  string
		every time.Duration
		step  int64
	}{{"idle", 10 * time.Second, 0}, {"burst", 100 * time.Millisecond, -mi}} {
		b.Run(bench.name, func(b *testing.B) {
			thresholds := mustParse(b, testConfig)
			f := NewForecaster(thresholds)
			s := snapshotAt(time.Now(), 0.5)
			var interval time.Duration
			b.ReportAllocs()
			for b.Loop() {
				s.Time = s.Time.Add(bench.every)
				for i := range s.Signals {
					s.Signals[i].Available += bench.step
				}
				interval = NextSample(f.Observe(&s), interval, Pace{})
			}
			b.ReportMetric(float64(len(thresholds)), "limits")
		})
	}
}

func ExampleForecaster() {
	thresholds, _, _ := Parse(Config{Hard: map[string]string{"nodefs.available": "10Gi"}})
	f := NewForecaster(thresholds)
	for i := range int64(7) {
		s := probe.Snapshot{Time: time.Unix(10*i, 0)}
		s.Signals[probe.NodeFsAvailable] = probe.Observation{Available: 26<<30 - i<<30, Capacity: 100 << 30, OK: true}
		for _, e := range f.Observe(&s) {
			fmt.Println(e.Threshold, e.Headroom>>30, e.OK, e.TimeToLimit.Round(time.Second), e.Earliest.Round(time.Second))
		}
	}
	// Output:
	// nodefs.available<10Gi 16 false 0s 0s
	// nodefs.available<10Gi 15 false 0s 2m30s
	// nodefs.available<10Gi 14 false 0s 2m20s
	// nodefs.available<10Gi 13 false 0s 2m10s
	// nodefs.available<10Gi 12 true 2m0s 2m0s
	// nodefs.available<10Gi 11 true 1m50s 1m50s
	// nodefs.available<10Gi 10 true 1m40s 1m40s
}
