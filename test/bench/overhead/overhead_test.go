package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

func TestRun(t *testing.T) {
	need.Root(t)
	if testing.Short() {
		t.Skip("builds nodeprobe; -short is set")
	}
	program.Test(t, run, []string{
		`overhead_fork_ratio=\d+\.\d{4} ratio budget=\d+\.?\d* peer=off_off:\d+\.\d{4}`,
		`overhead_thread_stderr=\d+\.\d{4} ratio peer=off_off:\d+\.\d{4}`,
		`overhead_write_ratio=.*`,
		`bpf_task_newtask_ns=\d+\.\d ns budget=100`,
		`bpf_sched_process_free_ns=\d+\.\d ns budget=100`,
	}, "-dir", t.TempDir(), "-rounds", "1", "-length", "10ms")
}

func TestLoops(t *testing.T) {
	for _, l := range newLoops(t, t.TempDir()) {
		if ns, err := l.run(time.Millisecond); err != nil || ns <= 0 {
			t.Errorf("loop %s: %v ns, %v", l.name, ns, err)
		}
	}
	l := loop{"write", 1, overwrite(-1, nil)}
	if _, err := l.run(time.Millisecond); err == nil {
		t.Error("a loop goes on without its file")
	}
}

func TestProgramCosts(t *testing.T) {
	before := map[string]float64{
		`nodeprobe_bpf_program_runs_total{hook="tp_btf/task_newtask"}`:        10,
		`nodeprobe_bpf_program_run_seconds_total{hook="tp_btf/task_newtask"}`: 1e-6,
		`nodeprobe_bpf_forks_total`:                                           10,
	}
	after := map[string]float64{
		`nodeprobe_bpf_program_runs_total{hook="tp_btf/task_newtask"}`:              20,
		`nodeprobe_bpf_program_run_seconds_total{hook="tp_btf/task_newtask"}`:       1.5e-6,
		`nodeprobe_bpf_program_runs_total{hook="tp_btf/sched_process_free"}`:        4,
		`nodeprobe_bpf_program_run_seconds_total{hook="tp_btf/sched_process_free"}`: 2e-7,
		`nodeprobe_bpf_program_runs_total{hook="tp_btf/mark_victim"}`:               0,
		`nodeprobe_bpf_program_run_seconds_total{hook="tp_btf/mark_victim"}`:        0,
		`nodeprobe_bpf_forks_total`:                                                 20,
	}
	got := programCosts(before, after)
	var names []string
	for _, c := range got {
		names = append(names, c.name())
	}
	if want := []string{"mark_victim", "sched_process_free", "task_newtask"}; !slices.Equal(names, want) {
		t.Fatalf("programs %v, want %v", names, want)
	}
	for i, want := range []struct{ runs, ns float64 }{{0, 0}, {4, 50}, {10, 50}} {
		c := got[i]
		if c.runs != want.runs || c.runs > 0 && (c.nanoseconds() < want.ns-0.01 || c.nanoseconds() > want.ns+0.01) {
			t.Errorf("%s: %v runs of %v ns, want %+v", c.hook, c.runs, c.nanoseconds(), want)
		}
	}
}

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
	if got := noise(spread{standardError: 0.03}, spread{standardError: 0.04}); math.Abs(got-0.1) > 1e-12 {
		t.Errorf("noise %v, want 0.1", got)
	}
}
