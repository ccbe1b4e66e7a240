// Command idle measures what nodeprobe does while nothing happens: how often its
// threads wake up, what CPU time that takes, and what the timer in the kernel
// costs. It tells the causes apart by running nodeprobe several times side by
// side, each time with one more thing to do; what the next one costs more is what
// that thing costs.
//
//	go run ./bench/idle                       # builds nodeprobe first
//	go run ./bench/idle -nodeprobe ./nodeprobe -window 5m
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/command"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
)

func main() {
	command.Main("idle", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("idle", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("nodeprobe", "", "measure this `file` instead of building it from the tree")
	window := flags.Duration("window", 2*time.Minute, "how long to measure")
	warmup := flags.Duration("warmup", 15*time.Second, "how long to wait before")
	if err := flags.Parse(args); err != nil {
		return err
	}

	dir, err := os.MkdirTemp("", "nodeprobe-idle-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if *binary == "" {
		if *binary, err = build.Product(ctx, dir, stderr); err != nil {
			return err
		}
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{Log: stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()

	agents := map[string]*agent.Agent{}
	defer func() {
		for _, a := range agents {
			a.Stop()
		}
	}()
	var running []footprint.Subject
	for _, s := range subjects() {
		a, err := start(ctx, s, dir, *binary, cp)
		if err != nil {
			return err
		}
		agents[s.name] = a
		watched := footprint.Subject{Name: s.name, PID: a.PID()}
		if s.scraped {
			watched.MetricsURL = a.URL("/metrics")
		}
		running = append(running, watched)
	}
	fmt.Fprintf(stderr, "measuring for %s after %s of warm-up\n", *window, *warmup)
	select {
	case <-time.After(*warmup):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// Around the window: what is not to be scraped is left alone within.
	begin := time.Now()
	before, err := metrics(ctx, agents)
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	costs, err := footprint.Measure(ctx, *window, running)
	if err != nil {
		return err
	}
	after, err := metrics(ctx, agents)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	grown := map[string]map[string]float64{}
	for name := range agents {
		grown[name] = growth(before[name], after[name])
	}
	if err := working(costs, grown); err != nil {
		return err
	}
	printTable(stdout, costs, grown)
	printResults(stdout, results(costs, grown[observe], took))
	return nil
}

// start runs a subject under its own Node, with its files in a directory of its
// own.
func start(ctx context.Context, s subject, dir, binary string, cp *controlplane.ControlPlane) (*agent.Agent, error) {
	spec := agent.Spec{Binary: binary, Dir: filepath.Join(dir, s.node()), NodeName: s.node(), Config: s.config}
	if err := os.Mkdir(spec.Dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if spec.Kubeconfig, err = cp.NodeKubeconfig(s.node()); err != nil {
		return nil, err
	}
	return agent.Start(ctx, spec)
}

// metrics reads the metrics of all agents.
func metrics(ctx context.Context, agents map[string]*agent.Agent) (map[string]map[string]float64, error) {
	all := map[string]map[string]float64{}
	for name, a := range agents {
		read, err := a.Metrics(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = read
	}
	return all, nil
}

// printTable prints everything that was measured, for people.
func printTable(w io.Writer, costs map[string]footprint.Cost, grown map[string]map[string]float64) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "process\twake-ups/s\tCPU ms/min\tsamples\tunasked\trenewals\tscrapes")
	for _, s := range subjects() {
		c := costs[s.name]
		ticks, others := samples(grown[s.name])
		fmt.Fprintf(table, "%s\t%.2f\t%.1f\t%.0f\t%.0f\t%.0f\t%d\n", s.name, c.Wakeups, millis(c.CPU), ticks, others, grown[s.name][renewals], c.Scrapes)
	}
	table.Flush()
}
