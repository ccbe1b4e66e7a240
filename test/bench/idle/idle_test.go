package main

import (
	"testing"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
)

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	// Long enough for a sample, a renewal and a scrape.
	program.Test(t, run, []string{
		`idle_observe_wakeups=\d+\.\d\d /s budget=3`, `idle_own_wakeups=\d+\.\d\d /s budget=3`, `idle_own_scraped_wakeups=\d+\.\d\d /s budget=3`,
		`idle_observe_cpu=\d+\.\d\d ms/min budget=10`, `idle_own_cpu=\d+\.\d\d ms/min budget=10`,
		`idle_own_wakeups_lease=-?\d+\.\d\d /s`, `idle_own_cpu_scrape=-?\d+\.\d\d ms/min`,
	}, "-window", "12s", "-warmup", "100ms")
}

// A subject that does nothing would look good.
func TestWorked(t *testing.T) {
	const wakeups = "nodeprobe_sampler_wakeups_total"
	all := subjects()
	for _, test := range []struct {
		grown   map[string]float64
		scrapes int
		subject subject
		idle    bool
	}{
		{map[string]float64{wakeups + `{cause="tick"}`: 1, renewals: 1}, 1, all[5], false},
		{map[string]float64{wakeups + `{cause="stall"}`: 1, renewals: 1}, 1, all[5], false},
		{map[string]float64{"nodeprobe_forks_total": 9, renewals: 1}, 1, all[5], true},
		{map[string]float64{wakeups + `{cause="tick"}`: 1}, 1, all[5], true},
		{map[string]float64{wakeups + `{cause="tick"}`: 1, renewals: 1}, 0, all[5], true},
		{map[string]float64{wakeups + `{cause="tick"}`: 1}, 0, all[1], false},
		{nil, 0, all[0], false},
	} {
		if err := test.subject.worked(footprint.Cost{Scrapes: test.scrapes}, test.grown); (err != nil) != test.idle {
			t.Errorf("%s, %v and %d scrapes: %v", test.subject.name, test.grown, test.scrapes, err)
		}
	}
}
