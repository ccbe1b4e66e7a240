package judge

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// begin is any moment.
var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at is a snapshot so long after begin, with so many percent of memory available. All
// PIDs are.
func at(after time.Duration, memory int64) *probe.Snapshot {
	s := &probe.Snapshot{Time: begin.Add(after)}
	s.Machine.BootID = "this-boot"
	s.Signals[probe.MemoryAvailable] = probe.Observation{Available: memory, Capacity: 100, OK: true}
	s.Signals[probe.PIDAvailable] = probe.Observation{Available: 100, Capacity: 100, OK: true}
	return s
}

// thresholds parses hard ones, as evictionHard has them.
func thresholds(t testing.TB, hard map[string]string) []pressure.Threshold {
	t.Helper()
	parsed, _, err := pressure.Parse(pressure.Config{Hard: hard})
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// rule is a condition of one's own, with one clause.
func rule(t testing.TB, kind, when string) pressure.Rule {
	t.Helper()
	clause, err := pressure.ParseClause(when)
	if err != nil {
		t.Fatal(err)
	}
	return pressure.Rule{Type: kind, When: []pressure.Clause{clause}, Reason: "Bad", OKReason: "Good"}
}

// gauges returns the value of each series of a metric by its first label.
func gauges(t *testing.T, reg prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return got
}
