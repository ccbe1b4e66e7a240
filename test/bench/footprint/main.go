// Command footprint measures nodeprobe in observe mode, nodeprobe in own mode
// against a real control plane, and node_exporter, side by side, and prints one
// RESULT line for each figure that has a budget.
//
//	go run ./bench/footprint                       # builds all three first
//	go run ./bench/footprint -nodeprobe ./nodeprobe -window 5m
//	go run ./bench/footprint -containers 250       # with and without them, in turns
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
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func main() {
	pressure.Main()
	command.Main("footprint", run)
}

var peer = build.Target{
	Name:    "node_exporter",
	Dir:     "bench/peers/nodeexporter",
	Package: "github.com/prometheus/node_exporter",
	Module:  "github.com/prometheus/node_exporter",
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("footprint", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("nodeprobe", "", "measure this `file` instead of building it from the tree")
	window := flags.Duration("window", time.Minute, "how long to measure")
	warmup := flags.Duration("warmup", 10*time.Second, "how long to wait before")
	containers := flags.Int("containers", 0, "compare with a machine of so many `containers` more")
	rounds := flags.Int("rounds", 3, "how many windows with containers, and without")
	if err := flags.Parse(args); err != nil {
		return err
	}

	dir, err := os.MkdirTemp("", "nodeprobe-footprint-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if *binary == "" {
		if *binary, err = build.Product(ctx, dir, stderr); err != nil {
			return err
		}
	}
	peerBinary, err := build.Cached(ctx, peer, stderr)
	if err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{Log: stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()

	running, stop, err := startSubjects(ctx, dir, *binary, peerBinary, cp)
	defer stop()
	if err != nil {
		return err
	}
	if *containers > 0 {
		c := comparison{containers: *containers, rounds: *rounds, window: *window, warmup: *warmup}
		return c.run(ctx, running, stdout, stderr)
	}
	fmt.Fprintf(stderr, "measuring for %s after %s of warm-up\n", *window, *warmup)
	select {
	case <-time.After(*warmup):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	costs, err := footprint.Measure(ctx, *window, running)
	if err != nil {
		return err
	}
	// An idle process that does not do its job would look good.
	if err := renewing(ctx, cp); err != nil {
		return err
	}
	size, err := fileSize(*binary)
	if err != nil {
		return err
	}
	peerSize, err := fileSize(peerBinary)
	if err != nil {
		return err
	}
	printTable(stdout, running, costs)
	printResults(stdout, results(costs, size, peerSize))
	return nil
}

func fileSize(file string) (int64, error) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, fmt.Errorf("read size of program: %w", err)
	}
	return info.Size(), nil
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// printTable prints everything that was measured, for people.
func printTable(w io.Writer, subjects []footprint.Subject, costs map[string]footprint.Cost) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "process\tRSS MiB\tmax\tanon\tfile\tCPU ms/min\twake-ups/s\tscrapes\tscrape KiB")
	for _, s := range subjects {
		c := costs[s.Name]
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%.1f\n", s.Name, mib(c.RSS), mib(c.RSSMax),
			mib(c.RSSAnon), mib(c.RSSFile), millis(c.CPU), c.Wakeups, c.Scrapes, float64(c.ScrapeBytes)/1024)
	}
	table.Flush()
}

// result is one figure that has a budget.
type result struct {
	name         string
	value        float64
	unit         string
	budget, peer float64
}

func results(costs map[string]footprint.Cost, size, peerSize int64) []result {
	observe, own, other := costs[observeName], costs[ownName], costs[peer.Name]
	return []result{
		{"rss_observe", mib(observe.RSS), "MiB", 14, mib(other.RSS)},
		{"rss_own", mib(own.RSS), "MiB", 20, mib(other.RSS)},
		{"cpu_own", millis(own.CPU), "ms/min", 10, millis(other.CPU)},
		{"wakeups_own", own.Wakeups, "/s", 3, other.Wakeups},
		{"binary_size", float64(size) / 1e6, "MB", 36, float64(peerSize) / 1e6},
	}
}

// printResults prints the lines that other programs read. Their form is fixed.
func printResults(w io.Writer, results []result) {
	for _, r := range results {
		fmt.Fprintf(w, "RESULT %s=%.1f %s budget=%g peer=%s:%.1f\n", r.name, r.value, r.unit, r.budget, peer.Name, r.peer)
	}
}
