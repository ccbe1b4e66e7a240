package main

import (
	"math"
	"testing"
)

func TestSpreadOf(t *testing.T) {
	for _, test := range []struct {
		name    string
		figures []float64
		want    spread
	}{
		{"none", nil, spread{}},
		{"one", []float64{3}, spread{median: 3, low: 3, high: 3}},
		{"even", []float64{4, 1, 3, 2}, spread{median: 2.5, low: 1, high: 4, standardError: 1.2533 * 1.4826 / 2}},
		{
			"one that is far off",
			[]float64{1, 1, 2, 2, 2, 2, 3, 3, 900},
			spread{median: 2, low: 1, high: 3, standardError: 1.2533 * 1.4826 / 3},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := spreadOf(test.figures)
			if math.Abs(got.standardError-test.want.standardError) > 1e-12 {
				t.Errorf("standard error %v, want %v", got.standardError, test.want.standardError)
			}
			got.standardError = test.want.standardError
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestRatios(t *testing.T) {
	rounds := []round{{on: 110, off: 100, offAgain: 90}, {on: 240, off: 200, offAgain: 200}, {on: 55, off: 50, offAgain: 55}}
	on, off := ratios(rounds)
	if on.median != 1.1 || off.median != 1 {
		t.Errorf("medians %v and %v, want 1.1 and 1", on.median, off.median)
	}
	if got := offMedian(rounds); got != 95 {
		t.Errorf("median without %v, want 95", got)
	}
}

func TestNoise(t *testing.T) {
	if got := noise(spread{standardError: 0.03}, spread{standardError: 0.04}); math.Abs(got-0.1) > 1e-12 {
		t.Errorf("got %v, want 0.1", got)
	}
}
