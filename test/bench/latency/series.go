package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"text/tabwriter"
	"time"
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

// run makes the crossings.
func (s *stage) run(ctx context.Context, l *load, crossings int) (_ *series, err error) {
	result := &series{load: l}
	var nodes []*node
	defer func() {
		for _, n := range nodes {
			n.agent.Stop()
		}
		err = errors.Join(err, l.ramp.Give(math.MaxInt64))
	}()
	for i := range min(fleet, crossings) {
		n, err := s.start(ctx, fmt.Sprintf("%s-%d", l.name, i), l, l.limit(i))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	if err := calm(ctx, l, nodes); err != nil {
		return nil, err
	}
	if err := nodes[0].wait(ctx, settle); err != nil {
		return nil, err
	}
	before, err := held(ctx, nodes)
	if err != nil {
		return nil, err
	}
	began, err := readCPUTime()
	if err != nil {
		return nil, err
	}
	if s.floor == nil {
		if s.floor, err = newFloor(ctx, s, nodes[0].history.Last()); err != nil {
			return nil, err
		}
	}
	for len(result.traces) < crossings {
		if err := s.round(ctx, result, nodes, crossings); err != nil {
			return nil, err
		}
		if err := calm(ctx, l, nodes); err != nil {
			return nil, err
		}
		if result.foreign > crossings+fleet*2 {
			return nil, fmt.Errorf("somebody else crossed %d limits of %s: this machine is too busy", result.foreign, l.signal)
		}
	}
	ended, err := readCPUTime()
	if err != nil {
		return nil, err
	}
	result.idle = ended.idleSince(began)
	after, err := held(ctx, nodes)
	result.held = after - before
	return result, err
}

// round crosses the limit of each node in turn, and then lets go of everything.
func (s *stage) round(ctx context.Context, result *series, nodes []*node, crossings int) error {
	l := result.load
	for i, n := range nodes {
		if len(result.traces) == crossings {
			break
		}
		t, err := s.cross(ctx, n, l, l.limit(i))
		switch {
		case errors.Is(err, errForeign):
			result.foreign++
		case err != nil:
			return err
		default:
			result.traces = append(result.traces, t)
			if err := n.wait(ctx, poise+rand.N(poise)); err != nil {
				return err
			}
			floor, err := s.floor.measure(ctx, l.condition)
			if err != nil {
				return err
			}
			result.floor = append(result.floor, floor)
		}
	}
	return l.ramp.Give(math.MaxInt64)
}

func calm(ctx context.Context, l *load, nodes []*node) error {
	for _, n := range nodes {
		if err := n.calm(ctx, l.condition); err != nil {
			return err
		}
	}
	return nil
}

// held is how many patches of the nodes have had to wait for others.
func held(ctx context.Context, nodes []*node) (total int, err error) {
	for _, n := range nodes {
		held, err := n.agent.Metric(ctx, "nodeprobe_status_held_patches_total")
		if err != nil {
			return 0, err
		}
		total += int(held)
	}
	return total, nil
}

// durations returns what a function says of each trace.
func (s *series) durations(of func(*trace) time.Duration) []time.Duration {
	all := make([]time.Duration, 0, len(s.traces))
	for _, t := range s.traces {
		all = append(all, of(t))
	}
	return all
}

// print prints everything for people.
func (s *series) print(w io.Writer) error {
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
	return table.Flush()
}

func printRow(w io.Writer, name string, s summary) {
	fmt.Fprintf(w, "%s\t%.3f\t%.3f\t%.3f\n", name, millis(s.p50), millis(s.p99), millis(s.max))
}

// printResults prints what other programs read.
func (s *series) printResults(w io.Writer) {
	name := "latency_" + s.load.name
	printSummary(w, name+"_go", summarize(s.durations((*trace).toGo)), goBudget, nil)
	printSummary(w, name+"_node", summarize(s.durations((*trace).toNode)), nodeBudget, s.floor)
	var missed int
	for _, t := range s.traces {
		if t.notice().missed() {
			missed++
		}
	}
	fmt.Fprintf(w, "RESULT %s_missed_by_kernel=%d of_%d budget=0\n", name, missed, len(s.traces))
}
