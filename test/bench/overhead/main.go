// Command overhead measures what the programs in the kernel cost those who run
// into them: loops of forks, threads and writes, with nodeprobe running and
// without it by turns, and then what each program takes by the kernel's own
// account. It needs root.
//
//	go run ./bench/overhead                        # builds nodeprobe first
//	go run ./bench/overhead -nodeprobe ./nodeprobe -rounds 120
//
// A round is one look at all loops with nodeprobe and two looks without, in an
// order that changes. Each look gives a ratio to one of those without; so the
// looks without that are compared with each other tell how far a ratio is off 1
// when there is nothing to see.
package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func main() { program.Main("overhead", run) }

func run(p *program.P) {
	nodeprobe := p.Nodeprobe()
	on := p.Flags.String("dir", "", "write to files in this `directory` instead of a temporary one")
	rounds := p.Flags.Int("rounds", 60, "how many rounds")
	length := p.Flags.Duration("length", 100*time.Millisecond, "how long one look at a loop takes")
	p.Parse()
	p.NeedsRoot("the programs do")
	dir := must.Get(os.MkdirTemp(*on, "nodeprobe-overhead-"))(p)
	p.Cleanup(func() { must.Note(p, os.RemoveAll(dir)) })
	loops := newLoops(p, dir)
	subject := agent.Spec{Binary: nodeprobe(), Dir: dir, NodeName: "overhead", Config: agent.Config{
		"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "observe",
	}}
	p.Logf("%d rounds", *rounds)
	begin := time.Now()
	looks := measureRounds(p, subject, loops, *rounds, *length)
	p.Logf("took %s; now what each program takes", time.Since(begin).Round(time.Second))
	costs := measurePrograms(p, subject, loops)
	printTable(p.Out, loops, looks, costs)
	program.Print(p.Out, figures(loops, looks, costs))
}

func printTable(w io.Writer, loops []*loop, looks map[string][]round, costs []programCost) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "loop\toff\ton/off\tmiddle 80 %\tstd error\toff/off\tmiddle 80 %\tstd error")
	for _, l := range loops {
		on, off := ratios(looks[l.name])
		fmt.Fprintf(table, "%s\t%.2f µs\t%s\t%s\n", l.name, offMedian(looks[l.name])/1e3, on, off)
	}
	fmt.Fprintln(table, "\nprogram\truns\tns each")
	for _, c := range costs {
		if c.runs == 0 {
			fmt.Fprintf(table, "%s\t0\tnothing here makes it run\n", c.hook)
			continue
		}
		fmt.Fprintf(table, "%s\t%.0f\t%.1f\n", c.hook, c.runs, c.nanoseconds())
	}
	table.Flush()
}

// eventBudget is what a program may take for an event, in nanoseconds.
const eventBudget = 100

// figures are for other programs. The budget of a ratio is the noise of this run.
func figures(loops []*loop, looks map[string][]round, costs []programCost) (all []program.Figure) {
	for _, l := range loops {
		on, off := ratios(looks[l.name])
		f := program.Figure{Name: "overhead_" + l.name + "_ratio", Value: on.median, Digits: 4, Unit: "ratio", Peer: "off_off", Beside: off.median}
		f.Budget = math.Round(1e4*(off.median+noise(on, off))) / 1e4
		all = append(all, f)
		f.Name, f.Value, f.Beside, f.Budget = "overhead_"+l.name+"_stderr", on.standardError, off.standardError, 0
		all = append(all, f)
	}
	for _, c := range costs {
		if c.runs > 0 {
			all = append(all, program.Figure{Name: "bpf_" + c.name() + "_ns", Value: c.nanoseconds(), Digits: 1, Unit: "ns", Budget: eventBudget})
		}
	}
	return all
}

// round is what one loop took in a round, in nanoseconds for each time around.
type round struct{ on, off, offAgain float64 }

// ratios returns how much slower a loop is with the probes than without, and how
// much slower it seems to be when nothing is different.
func ratios(rounds []round) (on, off spread) {
	var withProbes, without []float64
	for _, r := range rounds {
		withProbes = append(withProbes, r.on/r.off)
		without = append(without, r.offAgain/r.off)
	}
	return spreadOf(withProbes), spreadOf(without)
}

func offMedian(rounds []round) float64 {
	var off []float64
	for _, r := range rounds {
		off = append(off, r.off, r.offAgain)
	}
	return spreadOf(off).median
}

// spread is where most of some figures are.
type spread struct {
	median float64
	// low and high are the ends of the middle 80 %.
	low, high float64
	// standardError is that of the median.
	standardError float64
}

func (s spread) String() string {
	return fmt.Sprintf("%.4f\t%.3f to %.3f\t%.4f", s.median, s.low, s.high, s.standardError)
}

// spreadOf takes the standard error from the median deviation, so that a few
// figures from when the machine was busy with something else do not matter.
func spreadOf(figures []float64) spread {
	if len(figures) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(figures))
	s := spread{median: median(sorted), low: at(sorted, 0.1), high: at(sorted, 0.9)}
	deviations := make([]float64, len(sorted))
	for i, v := range sorted {
		deviations[i] = math.Abs(v - s.median)
	}
	slices.Sort(deviations)
	// As for a normal distribution: its deviation is 1.4826 times the median
	// one, and a median is 1.2533 times as uncertain as a mean.
	s.standardError = 1.2533 * 1.4826 * median(deviations) / math.Sqrt(float64(len(figures)))
	return s
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func at(sorted []float64, share float64) float64 {
	return sorted[int(math.Round(share*float64(len(sorted)-1)))]
}

// noise is by how much two spreads may differ by chance: nineteen times in
// twenty by less.
func noise(a, b spread) float64 { return 2 * math.Hypot(a.standardError, b.standardError) }
