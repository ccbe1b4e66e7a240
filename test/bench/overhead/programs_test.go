package main

import (
	"slices"
	"testing"
)

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
