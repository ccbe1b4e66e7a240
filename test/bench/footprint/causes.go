package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// causes measures what nodeprobe does while nothing happens: how often its threads wake
// up, what CPU time that takes, and what the timer in the kernel costs. It separates the
// causes by running nodeprobe several times side by side, each time with one more thing
// to do; what the next one costs more is what that thing costs.
func causes(p *program.P, cp *controlplane.ControlPlane, binary string, window time.Duration) {
	agents := map[string]*agent.Agent{}
	var running []footprint.Subject
	for _, s := range tasks() {
		node := strings.ReplaceAll(s.name, " ", "-")
		a := agent.StartForTest(p, agent.Spec{
			Binary: binary, Dir: p.TempDir(), NodeName: node, Config: s.config, Kubeconfig: must.Get(cp.NodeKubeconfig(node))(p),
		})
		agents[s.name] = a
		watched := footprint.Subject{Name: s.name, PID: a.PID()}
		if s.scraped {
			watched.MetricsURL = a.URL("/metrics")
		}
		running = append(running, watched)
	}
	p.Logf("measuring for %s after %s of warm-up", window, warmup)
	p.Sleep(warmup)
	// Around the window: what is not to be scraped is left alone within.
	metrics := func() map[string]map[string]float64 {
		all := map[string]map[string]float64{}
		for name, a := range agents {
			all[name] = must.Get(a.Metrics(p.Context()))(p)
		}
		return all
	}
	begin, before := time.Now(), metrics()
	p.Sleep(time.Second)
	costs := footprint.Measure(p, window, running)
	grown, took := metrics(), time.Since(begin)
	rows := []string{"process\twake-ups/s\tCPU ms/min\tsamples\tunasked\trenewals\tscrapes"}
	for _, s := range tasks() {
		for series := range grown[s.name] {
			grown[s.name][series] -= before[s.name][series]
		}
		c := costs[s.name]
		ticks, others := samples(grown[s.name])
		must.OK(p, s.worked(c, grown[s.name]))
		rows = append(rows, fmt.Sprintf("%s\t%.2f\t%.1f\t%.0f\t%.0f\t%.0f\t%d",
			s.name, c.Wakeups, program.Millis(c.CPU), ticks, others, grown[s.name][renewals], c.Scrapes))
	}
	p.Table(rows...)
	p.Print(causeFigures(costs, grown[observe], took))
}

// causeFigures are what is compared with the budgets. timer is by how much each metric of
// the task observe grew in took.
func causeFigures(costs map[string]footprint.Cost, timer map[string]float64, took time.Duration) (all []program.Figure) {
	add := func(name string, value float64, unit string, budget float64) {
		all = append(all, program.Figure{Name: "idle_" + name, Value: value, Digits: 2, Unit: unit, Budget: budget})
	}
	add("observe_wakeups", costs[observe].Wakeups, "/s", wakeupsIdle)
	add("own_wakeups", costs[own].Wakeups, "/s", wakeupsIdle)
	add("own_scraped_wakeups", costs[whole].Wakeups, "/s", wakeupsIdle)
	add("observe_cpu", program.Millis(costs[observeScraped].CPU), "ms/min", cpuIdle)
	add("own_cpu", program.Millis(costs[whole].CPU), "ms/min", cpuIdle)
	// A difference may come out below zero: it is as noisy as both its sides.
	var previous footprint.Cost
	for _, s := range tasks() {
		if s.adds != "" {
			c := costs[s.name]
			add("own_wakeups_"+s.adds, c.Wakeups-previous.Wakeups, "/s", 0)
			add("own_cpu_"+s.adds, program.Millis(c.CPU-previous.CPU), "ms/min", 0)
			previous = c
		}
	}
	// The timer in the kernel, by its own account; there is none without BPF.
	if ticks, seconds := timer["nodeprobe_bpf_ticks_total"], timer["nodeprobe_bpf_tick_seconds_total"]; ticks > 0 {
		add("timer_ticks", ticks/took.Seconds(), "/s", 0)
		add("timer_tick", seconds/ticks*1e9, "ns", 0)
		add("timer_share", seconds/took.Seconds()*1e6, "ppm", 0) // of one CPU
	}
	return all
}

// task is nodeprobe with a configuration. Each has one more thing to do than
// the one before.
type task struct {
	name string
	// adds is what it does in addition.
	adds    string
	config  agent.Config
	scraped bool
}

// observe is nodeprobe with its defaults, and own in that mode; with the others
// they are scraped.
const (
	observe        = "observe"
	observeScraped = "observe scraped"
	own            = "own"
	whole          = "own scraped"
)

// never is longer than the measurement takes.
const never = "1h"

// tasks lists them. What is not set here has its default.
func tasks() []task {
	base := agent.Config{"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "observe"}
	writes := base.With(agent.Config{"mode": "own"})
	rarely := agent.Config{"nodeStatusUpdateFrequency": never}
	return []task{
		{name: "no samples", adds: "runtime", config: base.With(agent.Config{"sampleInterval": never})},
		{name: observe, adds: "sample", config: base},
		{name: "own without lease or status", adds: "watch", config: writes.With(rarely).With(agent.Config{"nodeLeaseDurationSeconds": 36000})},
		{name: "own without status", adds: "lease", config: writes.With(rarely)},
		{name: own, adds: "status", config: writes},
		{name: whole, adds: "scrape", config: writes, scraped: true},
		// Not in the row, but what most machines run.
		{name: observeScraped, config: base, scraped: true},
	}
}

// renewals counts renewed Leases.
const renewals = `nodeprobe_heartbeat_renewals_total{result="success"}`

// samples returns how many samples the interval asked for, and how many
// something else did: a stall, a mount. On an idle machine nothing else does.
func samples(grown map[string]float64) (ticks, others float64) {
	for series, n := range grown {
		switch {
		case series == `nodeprobe_sampler_wakeups_total{cause="tick"}`:
			ticks = n
		case strings.HasPrefix(series, "nodeprobe_sampler_wakeups_total{"):
			others += n
		}
	}
	return ticks, others
}

// worked fails unless the subject did what it is there for: one that does nothing
// would look good.
func (s task) worked(c footprint.Cost, grown map[string]float64) error {
	ticks, others := samples(grown)
	switch {
	case s.config["sampleInterval"] == nil && ticks+others == 0:
		return fmt.Errorf("%s has taken no sample", s.name)
	case s.config["mode"] == "own" && s.config["nodeLeaseDurationSeconds"] == nil && grown[renewals] == 0:
		return fmt.Errorf("%s has not renewed its Lease", s.name)
	case s.scraped && c.Scrapes == 0:
		return fmt.Errorf("%s was not scraped", s.name)
	}
	return nil
}
