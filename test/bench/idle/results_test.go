package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestResults(t *testing.T) {
	costs := map[string]footprint.Cost{}
	for i, s := range subjects() {
		costs[s.name] = footprint.Cost{Wakeups: float64(i+1) / 2, CPU: time.Duration(i+1) * time.Millisecond}
	}
	timer := map[string]float64{"nodeprobe_bpf_ticks_total": 120, "nodeprobe_bpf_tick_seconds_total": 0.00024}
	var out bytes.Buffer
	printResults(&out, results(costs, timer, 2*time.Minute))
	want := `RESULT idle_observe_wakeups=1.00 /s budget=3
RESULT idle_own_wakeups=2.50 /s budget=3
RESULT idle_own_scraped_wakeups=3.00 /s budget=3
RESULT idle_observe_cpu=7.00 ms/min budget=10
RESULT idle_own_cpu=6.00 ms/min budget=10
RESULT idle_own_wakeups_runtime=0.50 /s
RESULT idle_own_cpu_runtime=1.00 ms/min
RESULT idle_own_wakeups_sample=0.50 /s
RESULT idle_own_cpu_sample=1.00 ms/min
RESULT idle_own_wakeups_watch=0.50 /s
RESULT idle_own_cpu_watch=1.00 ms/min
RESULT idle_own_wakeups_lease=0.50 /s
RESULT idle_own_cpu_lease=1.00 ms/min
RESULT idle_own_wakeups_status=0.50 /s
RESULT idle_own_cpu_status=1.00 ms/min
RESULT idle_own_wakeups_scrape=0.50 /s
RESULT idle_own_cpu_scrape=1.00 ms/min
RESULT idle_timer_ticks=1.00 /s
RESULT idle_timer_tick=2000.00 ns
RESULT idle_timer_share=2.00 ppm
`
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", &out, want)
	}
	if got := timerResults(map[string]float64{}, time.Minute); got != nil {
		t.Errorf("without BPF: %v", got)
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

func TestSamples(t *testing.T) {
	ticks, others := samples(growth(
		map[string]float64{`nodeprobe_sampler_wakeups_total{cause="tick"}`: 3, `nodeprobe_sampler_wakeups_total{cause="stall"}`: 1},
		map[string]float64{
			`nodeprobe_sampler_wakeups_total{cause="tick"}`: 9, `nodeprobe_sampler_wakeups_total{cause="stall"}`: 2,
			`nodeprobe_sampler_wakeups_total{cause="mounts"}`: 1, `nodeprobe_forks_total`: 99,
		}))
	if ticks != 6 || others != 2 {
		t.Errorf("%v and %v, want 6 and 2", ticks, others)
	}
}

func TestWorking(t *testing.T) {
	costs, grown := map[string]footprint.Cost{}, map[string]map[string]float64{}
	for _, s := range subjects() {
		costs[s.name] = footprint.Cost{Scrapes: 1}
		grown[s.name] = map[string]float64{`nodeprobe_sampler_wakeups_total{cause="tick"}`: 1, renewals: 1}
	}
	must.Note(t, working(costs, grown))
	for _, test := range []struct {
		name  string
		spoil func()
		mend  func()
	}{
		{"no sample", func() { grown[observe][`nodeprobe_sampler_wakeups_total{cause="tick"}`] = 0 }, func() { grown[observe][`nodeprobe_sampler_wakeups_total{cause="tick"}`] = 1 }},
		{"no renewal", func() { grown[own][renewals] = 0 }, func() { grown[own][renewals] = 1 }},
		{"no scrape", func() { costs[whole] = footprint.Cost{} }, func() { costs[whole] = footprint.Cost{Scrapes: 1} }},
	} {
		test.spoil()
		if working(costs, grown) == nil {
			t.Errorf("%s: no error", test.name)
		}
		test.mend()
	}
}
