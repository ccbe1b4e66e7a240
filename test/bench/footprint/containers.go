package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// comparison measures the same processes with containers on the machine and
// without, in turns, so that what else goes on there is in both.
type comparison struct {
	containers, rounds int
	window, warmup     time.Duration
}

func (c *comparison) run(ctx context.Context, subjects []footprint.Subject, stdout, stderr io.Writer) error {
	var without, with []map[string]footprint.Cost
	for round := range c.rounds {
		fmt.Fprintf(stderr, "round %d of %d: %s without containers, %s with %d\n", round+1, c.rounds, c.window, c.window, c.containers)
		costs, err := c.measure(ctx, subjects)
		if err != nil {
			return err
		}
		without = append(without, costs)
		p, err := pressure.Containers(c.containers)
		if err != nil {
			return err
		}
		costs, err = c.measure(ctx, subjects)
		if err := errors.Join(err, p.Release()); err != nil {
			return err
		}
		with = append(with, costs)
	}
	names := make([]string, len(subjects))
	for i, s := range subjects {
		names[i] = s.Name
	}
	printRatios(stdout, names, c.containers, without, with)
	return nil
}

// measure waits first, so that the start and the end of containers is in no window.
func (c *comparison) measure(ctx context.Context, subjects []footprint.Subject) (map[string]footprint.Cost, error) {
	select {
	case <-time.After(c.warmup):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return footprint.Measure(ctx, c.window, subjects)
}

// printRatios prints medians over the windows. The budget is nodeprobe's.
func printRatios(w io.Writer, subjects []string, containers int, without, with []map[string]footprint.Cost) {
	const budget = 1.05
	for _, name := range subjects {
		median := func(windows []map[string]footprint.Cost, of func(footprint.Cost) float64) float64 {
			values := make([]float64, len(windows))
			for i, costs := range windows {
				values[i] = of(costs[name])
			}
			slices.Sort(values)
			return values[len(values)/2]
		}
		cpu := func(c footprint.Cost) float64 { return millis(c.CPU) }
		rss := func(c footprint.Cost) float64 { return mib(c.RSS) }
		cpu0, cpu1, rss0, rss1 := median(without, cpu), median(with, cpu), median(without, rss), median(with, rss)
		fmt.Fprintf(w, "%s: CPU %.1f -> %.1f ms/min, RSS %.2f -> %.2f MiB\n", name, cpu0, cpu1, rss0, rss1)
		if short, ours := strings.CutPrefix(name, "nodeprobe "); ours {
			fmt.Fprintf(w, "RESULT cpu_%s_%d_containers=%.3f x budget=%g\n", short, containers, cpu1/cpu0, budget)
			fmt.Fprintf(w, "RESULT rss_%s_%d_containers=%.3f x budget=%g\n", short, containers, rss1/rss0, budget)
		}
	}
}
