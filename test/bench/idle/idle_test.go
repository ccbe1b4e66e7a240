package main

import (
	"slices"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
)

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	// Long enough for a sample, a renewal and a scrape.
	program.Test(t, run, []string{
		`idle_observe_wakeups=\d+\.\d\d /s budget=3`,
		`idle_own_wakeups=\d+\.\d\d /s budget=3`,
		`idle_own_cpu=\d+\.\d\d ms/min budget=10`,
		`idle_own_wakeups_lease=-?\d+\.\d\d /s`,
		`idle_own_cpu_scrape=-?\d+\.\d\d ms/min`,
	}, "-window", "12s", "-warmup", "100ms")
}

func TestFigures(t *testing.T) {
	costs := map[string]footprint.Cost{}
	for i, s := range subjects() {
		costs[s.name] = footprint.Cost{Wakeups: float64(i+1) / 2, CPU: time.Duration(i+1) * time.Millisecond}
	}
	timer := map[string]float64{"nodeprobe_bpf_ticks_total": 120, "nodeprobe_bpf_tick_seconds_total": 0.00024}
	got := figures(costs, timer, 2*time.Minute)
	for _, want := range []string{
		"observe_wakeups=1.00 /s budget=3", "own_wakeups=2.50 /s budget=3", "own_scraped_wakeups=3.00 /s budget=3",
		"observe_cpu=7.00 ms/min budget=10", "own_cpu=6.00 ms/min budget=10",
		"own_wakeups_runtime=0.50 /s", "own_cpu_sample=1.00 ms/min", "own_wakeups_scrape=0.50 /s",
		"timer_ticks=1.00 /s", "timer_tick=2000.00 ns", "timer_share=2.00 ppm",
	} {
		if !slices.ContainsFunc(got, func(f program.Figure) bool { return f.String() == "RESULT idle_"+want }) {
			t.Errorf("no figure %s in %v", want, got)
		}
	}
	if n := len(figures(costs, nil, time.Minute)); n != len(got)-3 {
		t.Errorf("without BPF: %d figures", n)
	}
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
