package main

import (
	"strings"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	numbers := func(n int) []time.Duration {
		var all []time.Duration
		for i := range n {
			all = append(all, time.Duration(i+1))
		}
		return all
	}
	for _, test := range []struct {
		n    int
		p    float64
		want time.Duration
	}{
		{0, 50, 0},
		{1, 50, 1},
		{1, 99, 1},
		{2, 50, 1},
		{3, 50, 2},
		{50, 50, 25},
		{50, 99, 50},
		{50, 100, 50},
		{100, 50, 50},
		{100, 99, 99},
		{100, 100, 100},
		{101, 99, 100},
		{6, 0, 1},
	} {
		if got := percentile(numbers(test.n), test.p); got != test.want {
			t.Errorf("percentile %g of 1 to %d: %d, want %d", test.p, test.n, got, test.want)
		}
	}
}

func TestSummarize(t *testing.T) {
	unsorted := []time.Duration{3, -1, 2}
	if got, want := summarize(unsorted), (summary{2, 3, 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if unsorted[0] != 3 {
		t.Error("the durations were sorted in place")
	}
	if got := summarize(nil); got != (summary{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestPrintSummary(t *testing.T) {
	var out strings.Builder
	printSummary(&out, "latency_memory_go", summary{123456, 4 * time.Millisecond, time.Second}, goBudget, nil)
	printSummary(&out, "latency_memory_node", summary{1, 2, 3}, nodeBudget, []time.Duration{time.Millisecond, 2 * time.Millisecond})
	const want = `RESULT latency_memory_go_p50=0.123 ms budget=0.5
RESULT latency_memory_go_p99=4.000 ms budget=5
RESULT latency_memory_go_max=1000.000 ms
RESULT latency_memory_node_p50=0.000 ms budget=5 peer=floor:1.000
RESULT latency_memory_node_p99=0.000 ms budget=25 peer=floor:2.000
RESULT latency_memory_node_max=0.000 ms peer=floor:2.000
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}
