package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

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
	foreign int // crossings that somebody else made, and nobody could clock
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
	before, began := held(), must.Get(readCPUTime())(s)
	if s.floor == nil {
		s.floor = newFloor(s, nodes[0].history.Last())
	}
	for len(result.traces) < crossings {
		result.round(nodes, crossings)
		calm()
		if result.foreign > crossings+fleet*2 {
			s.Fatalf("somebody else crossed %d limits of %s: this machine is too busy", result.foreign, l.signal)
		}
	}
	result.idle = must.Get(readCPUTime())(s).idleSince(began)
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
		s.floor = append(s.floor, n.floor.measure(s.load.condition))
	}
	must.OK(nodes[0], s.load.ramp.Give(math.MaxInt64))
}

func (s *series) durations(of func(*trace) time.Duration) []time.Duration {
	all := make([]time.Duration, 0, len(s.traces))
	for _, t := range s.traces {
		all = append(all, of(t))
	}
	return all
}

func (s *series) print(w io.Writer) {
	var by [notices]int
	var wavered int
	for _, t := range s.traces {
		by[t.notice()]++
		wavered += min(t.wavered, 1)
	}
	var ways []string
	for n, count := range by {
		if count > 0 {
			ways = append(ways, fmt.Sprintf("%d %s", count, notice(n)))
		}
	}
	fmt.Fprintf(w, "\n%s: %d crossings, noticed: %s\n", s.load.signal, len(s.traces), strings.Join(ways, ", "))
	fmt.Fprintf(w, "CPUs %.0f %% idle; others undid %d crossings, which were made again, and made %d themselves, which do not count; %d patches had to wait\n",
		100*s.idle, wavered, s.foreign, s.held)

	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ms\tp50\tp99\tmax")
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
		sum := summarize(s.durations(stage.took))
		printRow(table, stage.name, sum)
	}
	printRow(table, "floor: bare patch to Node seen", summarize(s.floor))
	table.Flush()
}

func printRow(w io.Writer, name string, s summary) {
	fmt.Fprintf(w, "%s\t%.3f\t%.3f\t%.3f\n", name, program.Millis(s.p50), program.Millis(s.p99), program.Millis(s.max))
}

// figures are what is compared with the budgets.
func (s *series) figures() []program.Figure {
	name := "latency_" + s.load.name
	missed := 0
	for _, t := range s.traces {
		if t.notice().missed() {
			missed++
		}
	}
	all := append(figures(name+"_go", summarize(s.durations((*trace).toGo)), goBudget, nil),
		figures(name+"_node", summarize(s.durations((*trace).toNode)), nodeBudget, s.floor)...)
	return append(all, program.Figure{Name: name + "_missed_by_kernel", Value: float64(missed), Unit: fmt.Sprintf("of_%d budget=0", len(s.traces))})
}

// percentile is the least of the values that p percent of them do not exceed,
// with no value made up between two: of 50, the 99th is the greatest. The values
// are sorted; without any it is 0.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// summary is what is said about a number of durations.
type summary struct{ p50, p99, max time.Duration }

func summarize(durations []time.Duration) summary {
	sorted := slices.Sorted(slices.Values(durations))
	return summary{percentile(sorted, 50), percentile(sorted, 99), percentile(sorted, 100)}
}

// budget is what design and documentation promise; both in milliseconds.
type budget struct{ p50, p99 float64 }

var (
	goBudget   = budget{0.5, 5}
	nodeBudget = budget{5, 25}
)

// figures are those of a summary, with the floor's beside if there are any.
func figures(name string, s summary, b budget, floor []time.Duration) []program.Figure {
	f := summarize(floor)
	all := []program.Figure{
		{Name: name + "_p50", Value: program.Millis(s.p50), Budget: b.p50, Beside: program.Millis(f.p50)},
		{Name: name + "_p99", Value: program.Millis(s.p99), Budget: b.p99, Beside: program.Millis(f.p99)},
		{Name: name + "_max", Value: program.Millis(s.max), Beside: program.Millis(f.max)},
	}
	for i := range all {
		if all[i].Digits, all[i].Unit = 3, "ms"; len(floor) > 0 {
			all[i].Peer = "floor"
		}
	}
	return all
}

// cpuTime is how the machine has spent its CPUs' time since it was booted.
type cpuTime struct{ all, idle int64 }

func readCPUTime() (cpuTime, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTime{}, fmt.Errorf("read CPU time: %w", err)
	}
	return parseCPUTime(string(data))
}

// parseCPUTime reads the first line of /proc/stat:
//
//	cpu  user nice system idle iowait irq softirq steal guest guest_nice
func parseCPUTime(stat string) (t cpuTime, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	var f [8]int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &f[0], &f[1], &f[2], &f[3], &f[4], &f[5], &f[6], &f[7]); err != nil {
		return t, fmt.Errorf("read CPU time: %w", err)
	}
	for _, n := range f {
		t.all += n
	}
	t.idle = f[3] + f[4]
	return t, nil
}

// idleSince is the share of the time since then in which the CPUs had nothing to
// do. A figure that was measured beside others' work says little.
func (t cpuTime) idleSince(then cpuTime) float64 {
	return float64(t.idle-then.idle) / float64(max(t.all-then.all, 1))
}
