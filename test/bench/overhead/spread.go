package main

import (
	"fmt"
	"math"
	"slices"
)

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

// offMedian is what a loop takes without the probes.
func offMedian(rounds []round) float64 {
	var off []float64
	for _, r := range rounds {
		off = append(off, r.off, r.offAgain)
	}
	return spreadOf(off).median
}

// spread says where most of some figures are.
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
