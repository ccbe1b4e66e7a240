package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

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

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// budget is what design and documentation promise; both in milliseconds.
type budget struct{ p50, p99 float64 }

var (
	goBudget   = budget{0.5, 5}
	nodeBudget = budget{5, 25}
)

// printSummary prints the lines that other programs read, with the floor's
// figures beside if there are any.
func printSummary(w io.Writer, name string, s summary, b budget, floor []time.Duration) {
	beside := func(of func(summary) time.Duration) string {
		if len(floor) == 0 {
			return ""
		}
		return fmt.Sprintf(" peer=floor:%.3f", millis(of(summarize(floor))))
	}
	fmt.Fprintf(w, "RESULT %s_p50=%.3f ms budget=%g%s\n", name, millis(s.p50), b.p50, beside(func(f summary) time.Duration { return f.p50 }))
	fmt.Fprintf(w, "RESULT %s_p99=%.3f ms budget=%g%s\n", name, millis(s.p99), b.p99, beside(func(f summary) time.Duration { return f.p99 }))
	fmt.Fprintf(w, "RESULT %s_max=%.3f ms%s\n", name, millis(s.max), beside(func(f summary) time.Duration { return f.max }))
}
