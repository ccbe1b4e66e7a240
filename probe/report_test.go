package probe_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

var benchReport = flag.Bool("bench-report", false, "measure for about a minute what a sample costs beside its peers and print RESULT lines")

// TestBenchReport asserts nothing about time: a busy machine would fail it. The
// contenders take turns of some milliseconds, hundreds of times, and ratios are
// taken within each round, so that what else the machine does hits all alike.
func TestBenchReport(t *testing.T) {
	if !*benchReport {
		t.Skip("without -bench-report")
	}
	const rounds, turn = 301, 200
	sampled, observed, evaluator := newSampler(t), newSampler(t), newEvaluator(t)
	floor, library := newFloor(t), newProcfsReader(t)
	contenders := [...]func(){
		floor.read,
		func() { sampled.Sample() },
		func() { evaluator.Observe(observed.Sample()) },
		library.read,
	}
	// Nanoseconds per call, and how many times the floor's.
	var ns, ratio [len(contenders)][]float64
	for range rounds {
		var floorNs float64
		for i, read := range contenders {
			start := time.Now()
			for range turn {
				read()
			}
			took := float64(time.Since(start).Nanoseconds()) / turn
			if i == 0 {
				floorNs = took
			}
			ns[i] = append(ns[i], took)
			ratio[i] = append(ratio[i], took/floorNs)
		}
	}
	floorNs := median(ns[0])
	fmt.Printf("RESULT sample_ns=%.0f ns budget=%.0f peer=floor:%.0f\n", median(ns[1]), 1.3*floorNs, floorNs)
	fmt.Printf("RESULT sample_observe_ratio=%.2f x budget=1.3 peer=floor:%.0fns\n", median(ratio[2]), floorNs)
	fmt.Printf("RESULT sample_observe_allocs=%.0f allocs/op budget=0\n", testing.AllocsPerRun(1000, contenders[2]))
	fmt.Printf("RESULT procfs_ratio=%.2f x peer=procfs:%.0fns\n", median(ratio[3])/median(ratio[2]), median(ns[3]))
	reportCrowd(t)
	reportDirty(t, 10_000)
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
