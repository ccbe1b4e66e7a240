// Package judgetest makes snapshots, thresholds and rules for tests of verdicts.
package judgetest

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Begin is any moment.
var Begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// At is a snapshot so long after Begin, with so many percent of memory available. All
// PIDs are.
func At(after time.Duration, memory int64) *probe.Snapshot {
	s := &probe.Snapshot{Time: Begin.Add(after)}
	s.Machine.BootID = "this-boot"
	s.Signals[probe.MemoryAvailable] = probe.Observation{Available: memory, Capacity: 100, OK: true}
	s.Signals[probe.PIDAvailable] = probe.Observation{Available: 100, Capacity: 100, OK: true}
	return s
}

// Thresholds parses hard ones, as evictionHard has them.
func Thresholds(t testing.TB, hard map[string]string) []pressure.Threshold {
	t.Helper()
	parsed, _, err := pressure.Parse(pressure.Config{Hard: hard})
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// Rule is a condition of one's own, with one clause.
func Rule(t testing.TB, kind, when string) pressure.Rule {
	t.Helper()
	clause, err := pressure.ParseClause(when)
	if err != nil {
		t.Fatal(err)
	}
	return pressure.Rule{Type: kind, When: []pressure.Clause{clause}, Reason: "Bad", OKReason: "Good"}
}

// Gauges returns the value of each series of a metric by its first label.
func Gauges(t *testing.T, reg prometheus.Gatherer, name string) map[string]float64 {
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
