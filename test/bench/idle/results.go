package main

import (
	"fmt"
	"io"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
)

// The budgets.
const (
	wakeupBudget = 3.0  // per second
	cpuBudget    = 10.0 // ms per minute
)

// result is a figure, with its budget if that is not 0.
type result struct {
	name   string
	value  float64
	unit   string
	budget float64
}

// results returns the figures. timer is by how much each metric of the subject
// observe grew in took.
func results(costs map[string]footprint.Cost, timer map[string]float64, took time.Duration) []result {
	all := []result{
		{"idle_observe_wakeups", costs[observe].Wakeups, "/s", wakeupBudget},
		{"idle_own_wakeups", costs[own].Wakeups, "/s", wakeupBudget},
		{"idle_own_scraped_wakeups", costs[whole].Wakeups, "/s", wakeupBudget},
		{"idle_observe_cpu", millis(costs[observeScraped].CPU), "ms/min", cpuBudget},
		{"idle_own_cpu", millis(costs[whole].CPU), "ms/min", cpuBudget},
	}
	// A difference may come out below zero: it is as noisy as both its sides.
	var previous footprint.Cost
	for _, s := range subjects() {
		if s.adds == "" {
			continue
		}
		c := costs[s.name]
		all = append(all,
			result{"idle_own_wakeups_" + s.adds, c.Wakeups - previous.Wakeups, "/s", 0},
			result{"idle_own_cpu_" + s.adds, millis(c.CPU - previous.CPU), "ms/min", 0})
		previous = c
	}
	return append(all, timerResults(timer, took)...)
}

// timerResults says what the timer in the kernel did, by its own account; nothing
// where there is no BPF.
func timerResults(grown map[string]float64, took time.Duration) []result {
	ticks, seconds := grown["nodeprobe_bpf_ticks_total"], grown["nodeprobe_bpf_tick_seconds_total"]
	if ticks == 0 {
		return nil
	}
	return []result{
		{"idle_timer_ticks", ticks / took.Seconds(), "/s", 0},
		{"idle_timer_tick", seconds / ticks * 1e9, "ns", 0},
		// Of one CPU.
		{"idle_timer_share", seconds / took.Seconds() * 1e6, "ppm", 0},
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// printResults prints the lines that other programs read. Their form is fixed.
func printResults(w io.Writer, results []result) {
	for _, r := range results {
		fmt.Fprintf(w, "RESULT %s=%.2f %s", r.name, r.value, r.unit)
		if r.budget > 0 {
			fmt.Fprintf(w, " budget=%g", r.budget)
		}
		fmt.Fprintln(w)
	}
}
