package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
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
	var out strings.Builder
	program.Print(&out, figures(costs, timer, 2*time.Minute))
	for _, want := range []string{
		"observe_wakeups=1.00 /s budget=3", "own_wakeups=2.50 /s budget=3", "own_scraped_wakeups=3.00 /s budget=3",
		"observe_cpu=7.00 ms/min budget=10", "own_cpu=6.00 ms/min budget=10",
		"own_wakeups_runtime=0.50 /s", "own_cpu_sample=1.00 ms/min", "own_wakeups_scrape=0.50 /s",
		"timer_ticks=1.00 /s", "timer_tick=2000.00 ns", "timer_share=2.00 ppm",
	} {
		if !strings.Contains(out.String(), "RESULT idle_"+want+"\n") {
			t.Errorf("no figure %s in\n%s", want, &out)
		}
	}
	if n := len(figures(costs, nil, time.Minute)); n != strings.Count(out.String(), "\n")-3 {
		t.Errorf("without BPF: %d figures", n)
	}
}

// Each subject of the row has all that the one before has, or the differences
// would mean nothing.
func TestSubjectsGrow(t *testing.T) {
	nodes := map[string]bool{}
	for _, s := range subjects() {
		if nodes[s.node()] || strings.Contains(s.node(), " ") {
			t.Errorf("node %q is there twice, or is no name", s.node())
		}
		nodes[s.node()] = true
	}
	row := subjects()[:6]
	for i, s := range row[1:] {
		before := row[i]
		if s.adds == "" || s.scraped && before.config["mode"] != s.config["mode"] {
			t.Errorf("%s adds more than one thing to %s", s.name, before.name)
		}
		for _, off := range []string{"sampleInterval", "nodeStatusUpdateFrequency", "nodeLeaseDurationSeconds"} {
			if s.config[off] != nil && before.config[off] == nil && before.config["mode"] == s.config["mode"] {
				t.Errorf("%s lacks what %s has: %s", s.name, before.name, off)
			}
		}
	}
}

// A subject that does nothing would look good.
func TestWorking(t *testing.T) {
	const wakeups = "nodeprobe_sampler_wakeups_total"
	tick := wakeups + `{cause="tick"}`
	ticks, others := samples(growth(map[string]float64{tick: 3, wakeups + `{cause="stall"}`: 1}, map[string]float64{
		tick: 9, wakeups + `{cause="stall"}`: 2, wakeups + `{cause="mounts"}`: 1, "nodeprobe_forks_total": 99,
	}))
	if ticks != 6 || others != 2 {
		t.Errorf("%v ticks and %v others, want 6 and 2", ticks, others)
	}
	for name, spoil := range map[string]func(costs map[string]footprint.Cost, grown map[string]map[string]float64){
		"":           nil,
		"no sample":  func(_ map[string]footprint.Cost, grown map[string]map[string]float64) { grown[observe][tick] = 0 },
		"no renewal": func(_ map[string]footprint.Cost, grown map[string]map[string]float64) { grown[own][renewals] = 0 },
		"no scrape": func(costs map[string]footprint.Cost, _ map[string]map[string]float64) {
			costs[whole] = footprint.Cost{}
		},
	} {
		costs, grown := map[string]footprint.Cost{}, map[string]map[string]float64{}
		for _, s := range subjects() {
			costs[s.name], grown[s.name] = footprint.Cost{Scrapes: 1}, map[string]float64{tick: 1, renewals: 1}
		}
		if spoil == nil {
			must.OK(t, working(costs, grown))
			continue
		}
		spoil(costs, grown)
		if working(costs, grown) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
