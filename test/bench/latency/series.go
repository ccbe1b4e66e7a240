package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

const (
	// fleet is how many nodeprobes there are, each with a limit of its own, which
	// are crossed in turn: one alone may post six changes a minute, and a
	// crossing makes two of them.
	fleet = 10
	// settle is for the start's patches to be forgiven, and for nodeprobe to give
	// back the memory that it needed for its start.
	settle = 10 * time.Second
)

// series is what came of a number of crossings of one signal's limits.
type series struct {
	load    *load
	traces  []*trace
	foreign int // crossings that another process made, and that have no time
	held    int // patches that had to wait for others
	floor   []time.Duration
	idle    float64 // share of the CPUs' time
}

func (s *stage) series(l *load, crossings int) *series {
	result := &series{load: l}
	var nodes []*node
	defer func() {
		for _, n := range nodes {
			n.agent.Stop()
		}
		must.Note(s, l.ramp.Give(math.MaxInt64))
	}()
	for i := range min(fleet, crossings) {
		nodes = append(nodes, s.start(fmt.Sprintf("%s-%d", l.name, i), l, l.limit(i)))
	}
	calm := func() {
		for _, n := range nodes {
			n.calm(l.condition)
		}
	}
	// held is how many patches of the nodes have had to wait for others.
	held := func() (total int) {
		for _, n := range nodes {
			total += int(must.Get(n.agent.Metric(s.Context(), "nodeprobe_status_held_patches_total"))(s))
		}
		return total
	}
	calm()
	nodes[0].sleep(settle)
	before, began := held(), readCPUTime(s)
	if s.floor == nil {
		s.floor = newFloor(s, nodes[0].history.Last())
	}
	for len(result.traces) < crossings {
		result.round(nodes, crossings)
		calm()
		if result.foreign > crossings+fleet*2 {
			s.Fatalf("other processes crossed %d limits of %s: this machine is too busy", result.foreign, l.signal)
		}
	}
	ended := readCPUTime(s)
	result.idle = (ended.idle - began.idle) / (ended.all - began.all)
	result.held = held() - before
	return result
}

// round crosses the limit of each node in turn, and then lets go of everything.
func (s *series) round(nodes []*node, crossings int) {
	for i, n := range nodes {
		if len(s.traces) == crossings {
			break
		}
		t := n.cross(s.load, s.load.limit(i))
		if t == nil {
			s.foreign++
			continue
		}
		s.traces = append(s.traces, t)
		n.sleep(poise + rand.N(poise))
		s.floor = append(s.floor, n.floor.measure())
	}
	must.OK(nodes[0], s.load.ramp.Give(math.MaxInt64))
}

func (s *series) durations(of func(*trace) time.Duration) (all []time.Duration) {
	for _, t := range s.traces {
		all = append(all, of(t))
	}
	return all
}

func (s *series) print(p *program.P) {
	ways, wavered := map[notice]int{}, 0
	for _, t := range s.traces {
		ways[t.notice()]++
		wavered += min(t.wavered, 1)
	}
	fmt.Fprintf(p.Out, "\n%s: %d crossings, noticed: %v\n", s.load.signal, len(s.traces), ways)
	fmt.Fprintf(p.Out, "CPUs %.0f %% idle; others undid %d crossings, which were made again, and made %d themselves, which do not count; %d patches had to wait\n",
		100*s.idle, wavered, s.foreign, s.held)
	rows := []string{"ms\tp50\tp99\tmax"}
	add := func(name string, durations []time.Duration) {
		sum := summarize(durations)
		rows = append(rows, fmt.Sprintf("%s\t%.3f\t%.3f\t%.3f", name, sum.p50, sum.p99, sum.max))
	}
	for _, stage := range []struct {
		name string
		took func(*trace) time.Duration
	}{
		{"clocked to within", func(t *trace) time.Duration { return since(t.crossed.Above, t.crossed.Below) }},
		{"crossing to kernel", func(t *trace) time.Duration { return since(t.crossed.Above, t.happened) }},
		{"kernel to Go", func(t *trace) time.Duration { return since(t.happened, t.event) }},
		{"Go to verdict", func(t *trace) time.Duration { return since(t.event, t.changed) }},
		{"verdict to patch answered", func(t *trace) time.Duration { return since(t.changed, t.answered) }},
		{"crossing to Go", (*trace).toGo},
		{"crossing to Node seen", (*trace).toNode},
	} {
		add(stage.name, s.durations(stage.took))
	}
	add("floor: bare patch to Node seen", s.floor)
	p.Table(rows...)
}

// figures are what is compared with the budgets, in milliseconds. A Node's median is
// compared with that of a bare patch in the same run.
func (s *series) figures() []program.Figure {
	name := "latency_" + s.load.name
	missed := 0
	for _, t := range s.traces {
		if t.notice().missed() {
			missed++
		}
	}
	toGo, toNode, floor := summarize(s.durations((*trace).toGo)), summarize(s.durations((*trace).toNode)), summarize(s.floor)
	figure := func(what string, value, budget float64) program.Figure {
		return program.Figure{Name: name + what, Value: value, Digits: 3, Unit: "ms", Budget: budget}
	}
	beside := func(f program.Figure, floor float64) program.Figure {
		f.Peer, f.Beside = "floor", floor
		return f
	}
	return []program.Figure{
		figure("_go_p50", toGo.p50, 0.5),
		figure("_go_p99", toGo.p99, 5),
		figure("_go_max", toGo.max, 0),
		beside(figure("_node_p50", toNode.p50, math.Round(1500*floor.p50)/1000), floor.p50),
		beside(figure("_node_p99", toNode.p99, 25), floor.p99),
		beside(figure("_node_max", toNode.max, 0), floor.max),
		{Name: name + "_missed_by_kernel", Value: float64(missed), Unit: fmt.Sprintf("of_%d budget=0", len(s.traces))},
	}
}

// summary is what is printed of a number of durations, in milliseconds.
type summary struct{ p50, p99, max float64 }

// summarize takes percentiles by the nearest rank, with no value made up between two:
// of 50, the 99th is the greatest.
func summarize(durations []time.Duration) summary {
	if len(durations) == 0 {
		return summary{}
	}
	sorted := slices.Sorted(slices.Values(durations))
	percentile := func(p int) float64 { return program.Millis(sorted[(p*len(sorted)+99)/100-1]) }
	return summary{percentile(50), percentile(99), percentile(100)}
}

// cpuTime is how many seconds the CPUs have spent since the machine was booted. A
// figure that was measured on a busy machine says little.
type cpuTime struct{ all, idle float64 }

func readCPUTime(p *stage) cpuTime {
	c := must.Get(must.Get(procfs.NewDefaultFS())(p).Stat())(p).CPUTotal
	idle := c.Idle + c.Iowait
	return cpuTime{c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal + idle, idle}
}
