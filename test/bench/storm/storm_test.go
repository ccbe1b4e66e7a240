package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestLongestGap(t *testing.T) {
	for _, test := range []struct {
		renewed []float64
		want    time.Duration
	}{
		{[]float64{-5, 5, 15, 25, 35, 45}, 10 * time.Second},
		{[]float64{-9, 4, 14, 24, 34}, 13 * time.Second}, // began before the storm
		{[]float64{-5, 5, 12}, 28 * time.Second},         // not over by its end
		{[]float64{-90, -80, -1, 9, 19, 29, 39, 90}, 10 * time.Second},
		{nil, 40 * time.Second},
	} {
		var renewals []time.Time
		for _, s := range test.renewed {
			renewals = append(renewals, after(s))
		}
		if got := longestGap(renewals, noon, after(40)); got != test.want {
			t.Errorf("%v: got %s, want %s", test.renewed, got, test.want)
		}
	}
}

// What was not seen within its storm counts as what was left of that, and is counted.
func TestFigures(t *testing.T) {
	storm := func(ours, kubelet float64, scraped time.Duration, faults int64) *result {
		seen := map[string]time.Time{oursName: after(ours)}
		if kubelet > 0 {
			seen[kubeletName] = after(kubelet)
		}
		return &result{
			end: after(40), some: 0.25,
			crossings: []*crossing{
				{condition: corev1.NodePIDPressure, Crossing: pressure.Crossing{Above: noon}, seen: seen},
				{condition: corev1.NodeMemoryPressure, err: pressure.ErrForeign},
			},
			scrapes: map[string][]scrape{oursName: {{took: scraped}}, exporterTarget.Name: {{took: 5 * time.Second}}},
			gaps:    map[string]time.Duration{oursName: 10 * time.Second, kubeletName: 12 * time.Second},
			faults:  map[string]int64{oursName: faults, kubeletName: 900},
		}
	}
	var got []string
	for _, f := range figures([]*result{storm(0.02, 21, 9*time.Millisecond, 0), storm(0.2, 0, 11*time.Millisecond, 3), storm(0.01, 30, 10*time.Millisecond, 1)}) {
		got = append(got, fmt.Sprint(f))
	}
	if want := []string{
		"RESULT storm_pid_node_p50=20.0 ms budget=25 peer=kubelet:30000.0",
		"RESULT storm_pid_node_max=200.0 ms budget=250 peer=kubelet:40000.0",
		"RESULT storm_pid_missed=0 of_3 peer=kubelet:1",
		"RESULT storm_scrape_p50=10.0 ms budget=15 peer=node_exporter:5000.0",
		"RESULT storm_scrape_max=11.0 ms budget=100 peer=node_exporter:5000.0",
		"RESULT storm_lease_gap_max=10.0 s budget=12 peer=kubelet:12.0",
		"RESULT storm_major_faults=3 per_storm budget=5 peer=kubelet:900",
		"RESULT storm_psi_some_min=25 %",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
