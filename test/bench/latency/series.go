package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
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

// Where crossings begin.
const (
	near   = ""      // right above the limit, after a rest
	far    = "far"   // more than a fifth of the capacity above the limit
	atOnce = "burst" // there, too, and one system call crosses it
)

// series is what came of a number of crossings of one signal's limits.
type series struct {
	load    *load
	from    string
	traces  []*trace
	foreign int // crossings that another process made, and that have no time
	held    int // patches that had to wait for others
	floor   []time.Duration
	idle    float64 // share of the CPUs' time
}

func (s *stage) series(l *load, crossings int) (all []*series) {
	var nodes []*node
	defer func() {
		for _, n := range nodes {
			n.agent.Stop()
		}
		must.Note(s, l.ramp.Give(math.MaxInt64))
	}()
	for i := range min(fleet, crossings) {
		nodes = append(nodes, s.start(fmt.Sprintf("%s-%d", strings.ReplaceAll(l.name, "_", "-"), i), l, l.limit(i)))
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
	if s.floor == nil {
		s.floor = newFloor(s, nodes[0].history.Last())
	}
	for _, from := range l.begins() {
		result := &series{load: l, from: from}
		all = append(all, result)
		before, began := held(), readCPUTime(s)
		for len(result.traces) < crossings {
			if from == near {
				result.round(nodes, crossings)
			} else {
				result.burst(nodes)
			}
			calm()
			if result.foreign > crossings+fleet*2 {
				s.Fatalf("other processes crossed %d limits of %s: this machine is too busy", result.foreign, l.signal)
			}
		}
		ended := readCPUTime(s)
		result.idle = (ended.idle - began.idle) / (ended.all - began.all)
		result.held = held() - before
	}
	return all
}

// begins is from where its limits are crossed.
func (l *load) begins() []string {
	switch {
	case l.polled:
		return []string{atOnce}
	case l.disk:
		return []string{near, far, atOnce}
	}
	return []string{near, far}
}

// burst crosses the limits of all nodes, beginning far above them, and then lets go of
// everything.
func (s *series) burst(nodes []*node) {
	l, n := s.load, nodes[0]
	for _, n := range nodes {
		n.rest()
	}
	n.sleep(poise + rand.N(time.Second))
	var surplus int64
	for deadline := time.Now().Add(calmTimeout / 6); surplus < l.capacity/5; n.sleep(time.Millisecond) {
		if surplus = must.Get(l.ramp.Available())(n) - l.limit(0); time.Now().After(deadline) {
			n.Fatalf("%s is only %s above its limit", l.signal, l.text(surplus))
		}
	}
	begin := time.Now()
	traces := make([]*trace, len(nodes))
	if s.from == atOnce {
		must.OK(n, pressure.Jump(l.ramp, surplus+int64(len(nodes))*l.spacing+l.beyond))
		for i := range traces {
			traces[i] = &trace{crossed: pressure.Crossing{Above: begin, Below: time.Now()}}
		}
	} else {
		s.fall(nodes, traces)
	}
	for i, n := range nodes {
		if traces[i] == nil {
			s.foreign++
			continue
		}
		n.press(l, l.limit(i), begin, traces[i])
		n.sleep(50 * time.Millisecond) // as for cross
		must.OK(n, traces[i].follow(n.log(), string(l.condition), begin))
		s.traces = append(s.traces, traces[i])
	}
	must.OK(n, l.ramp.Give(math.MaxInt64))
}

// fall brings what is available down at the load's pace, below one limit after the other.
func (s *series) fall(nodes []*node, traces []*trace) {
	l, taken, begin := s.load, int64(0), time.Now()
	for i, n := range nodes {
		for {
			surplus := must.Get(l.ramp.Available())(n) - l.limit(i) - l.beginning
			if surplus <= 0 {
				break
			}
			bulk := min(surplus, l.bulk)
			must.OK(n, pressure.Jump(l.ramp, bulk))
			if taken += bulk; l.pace > 0 {
				n.sleep(time.Until(begin.Add(time.Duration(float64(taken) / float64(l.pace) * float64(time.Second)))))
			}
		}
		crossed, err := pressure.Cross(l.ramp, l.limit(i), l.step)
		if errors.Is(err, pressure.ErrForeign) {
			continue
		}
		must.OK(n, err)
		traces[i] = &trace{crossed: crossed}
	}
	must.OK(nodes[0], l.ramp.Take(l.beyond))
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
	fmt.Fprintf(p.Out, "\n%s %s: %d crossings, noticed: %v\n", s.load.name, s.from, len(s.traces), ways)
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
	if s.from == near {
		add("floor: bare patch to Node seen", s.floor)
	}
	p.Table(rows...)
}

// period is how long the timer in the kernel sleeps at most with a disk to watch, in
// milliseconds.
const period = 200

// figures are what is compared with the budgets, in milliseconds. A Node's median is
// compared with that of a bare patch in the same run, if the machine was at rest.
func (s *series) figures() (all []program.Figure) {
	name := "latency_" + s.load.name
	if s.from != near {
		name += "_" + s.from
	}
	missed := 0
	for _, t := range s.traces {
		if t.notice().missed() {
			missed++
		}
	}
	add := func(what string, value, budget float64) *program.Figure {
		all = append(all, program.Figure{Name: name + what, Value: value, Digits: 3, Unit: "ms", Budget: budget})
		return &all[len(all)-1]
	}
	toGo := summarize(s.durations((*trace).toGo))
	p50, p99, most := 0.5, 5.0, 0.0
	if s.from == atOnce {
		p50, p99, most = 0, 0, period+p99
	}
	if s.load.polled {
		most = program.Millis(noticeTimeout)
	}
	add("_go_p50", toGo.p50, p50)
	add("_go_p99", toGo.p99, p99)
	add("_go_max", toGo.max, most)
	if s.from == near {
		toNode, floor := summarize(s.durations((*trace).toNode)), summarize(s.floor)
		for _, f := range []struct {
			what                  string
			value, budget, beside float64
		}{
			{"p50", toNode.p50, math.Round(1500*floor.p50) / 1000, floor.p50},
			{"p99", toNode.p99, 25, floor.p99},
			{"max", toNode.max, 0, floor.max},
		} {
			beside := add("_node_"+f.what, f.value, f.budget)
			beside.Peer, beside.Beside = "floor", f.beside
		}
	}
	if !s.load.polled {
		all = append(all, program.Figure{Name: name + "_missed_by_kernel", Value: float64(missed), Unit: fmt.Sprintf("of_%d budget=0", len(s.traces))})
	}
	return all
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
