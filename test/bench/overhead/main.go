// Command overhead measures what the programs in the kernel cost the processes
// whose system calls run them: loops of forks, threads and writes, with nodeprobe running and
// without it by turns, and then what each program takes by the kernel's own
// account. Everything is armed: two filesystems, the pods' cgroup, rules, PSI triggers. It
// needs root.
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
	"math"
	"os"
	"path"
	"slices"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func main() {
	pressure.Main()
	program.Main("overhead", run)
}

func run(p *program.P) {
	on := p.Flags.String("dir", "", "write to files in this `directory` instead of a temporary one")
	rounds := p.Flags.Int("rounds", 60, "how many rounds")
	length := p.Flags.Duration("length", 100*time.Millisecond, "how long one look at a loop takes")
	binary := p.ParseNodeprobe()
	need.Root(p)
	dir := must.Get(os.MkdirTemp(*on, "nodeprobe-overhead-"))(p)
	p.Cleanup(func() { must.Note(p, os.RemoveAll(dir)) })
	loops := newLoops(p, dir)
	pods := pressure.PodsRamp(p, 8<<30)
	p.Cleanup(func() { must.Note(p, pods.Close()) })
	subject := agent.Spec{Binary: binary, Dir: dir, NodeName: "overhead", Config: agent.Config{
		"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "observe",
		"rootDirectory": dir, "imageDirectories": []string{pressure.DiskOf(p, "xfs", 320).Dir},
		"enforceNodeAllocatable": []string{"pods"},
		// Beside the defaults, which have PSI triggers.
		"conditions": map[string]any{"nodeprobe.dev/Short": map[string]any{
			"when": []string{"nodefs.available < 1% and memAvailable < 1%", "imagefs.inodesFree < 1%", "cpu.some.avg10 > 99%"},
			"hold": "1s", "reason": "Short", "okReason": "Enough",
		}},
	}}
	p.Logf("%d rounds", *rounds)
	looks := measureRounds(p, subject, loops, *rounds, *length)
	costs := measurePrograms(p, subject, loops)
	rows := []string{"loop\toff\ton/off\tmiddle 80 %\tstd error\toff/off\tmiddle 80 %\tstd error"}
	for _, l := range loops {
		on, off := ratios(looks[l.name])
		rows = append(rows, fmt.Sprintf("%s\t%.2f µs\t%s\t%s", l.name, offMedian(looks[l.name])/1e3, on, off))
	}
	rows = append(rows, "\nprogram\truns\tns each")
	for _, c := range costs {
		if c.runs == 0 {
			rows = append(rows, c.hook+"\t0\tnothing here makes it run")
			continue
		}
		rows = append(rows, fmt.Sprintf("%s\t%.0f\t%.1f", c.hook, c.runs, c.nanoseconds()))
	}
	p.Table(rows...)
	p.Print(figures(loops, looks, costs))
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
			all = append(all, program.Figure{Name: "bpf_" + path.Base(c.hook) + "_ns", Value: c.nanoseconds(), Digits: 1, Unit: "ns", Budget: eventBudget})
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
