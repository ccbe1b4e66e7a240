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
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/command"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
)

func main() {
	command.Main("overhead", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("overhead", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("nodeprobe", "", "measure this `file` instead of building it from the tree")
	on := flags.String("dir", "", "write to files in this `directory` instead of a temporary one")
	rounds := flags.Int("rounds", 60, "how many rounds")
	length := flags.Duration("length", 100*time.Millisecond, "how long one look at a loop takes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root, as the programs do")
	}

	dir, err := os.MkdirTemp(*on, "nodeprobe-overhead-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if *binary == "" {
		if *binary, err = build.Product(ctx, dir, stderr); err != nil {
			return err
		}
	}
	loops, closeLoops, err := newLoops(dir, stderr)
	if err != nil {
		return err
	}
	defer closeLoops()
	subject := agent.Spec{Binary: *binary, Dir: dir, NodeName: "overhead", Config: agent.Config{
		"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "observe",
	}}

	fmt.Fprintf(stderr, "%d rounds\n", *rounds)
	begin := time.Now()
	looks, err := measureRounds(ctx, subject, loops, *rounds, *length)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "took %s; now what each program takes\n", time.Since(begin).Round(time.Second))
	costs, err := measurePrograms(ctx, subject, loops)
	if err != nil {
		return err
	}
	if err := printTable(stdout, loops, looks, costs); err != nil {
		return err
	}
	printResults(stdout, loops, looks, costs)
	return nil
}

// printTable prints everything that was measured, for people.
func printTable(w io.Writer, loops []*loop, looks map[string][]round, costs []programCost) error {
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
	return table.Flush()
}

// eventBudget is what a program may take for an event, in nanoseconds.
const eventBudget = 100

// printResults prints the lines that other programs read. Their form is fixed.
// The budget of a ratio is the noise of this run.
func printResults(w io.Writer, loops []*loop, looks map[string][]round, costs []programCost) {
	for _, l := range loops {
		on, off := ratios(looks[l.name])
		fmt.Fprintf(w, "RESULT overhead_%s_ratio=%.4f ratio budget=%.4f peer=off_off:%.4f\n",
			l.name, on.median, off.median+noise(on, off), off.median)
		fmt.Fprintf(w, "RESULT overhead_%s_stderr=%.4f ratio peer=off_off:%.4f\n", l.name, on.standardError, off.standardError)
	}
	for _, c := range costs {
		if c.runs > 0 {
			fmt.Fprintf(w, "RESULT bpf_%s_ns=%.1f ns budget=%d\n", c.name(), c.nanoseconds(), eventBudget)
		}
	}
}
