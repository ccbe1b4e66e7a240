package main

import (
	"math"
	"os"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(m.Run())
}

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

func TestRatios(t *testing.T) {
	rounds := []round{{on: 110, off: 100, offAgain: 90}, {on: 240, off: 200, offAgain: 200}, {on: 55, off: 50, offAgain: 55}}
	on, off := ratios(rounds)
	if on.median != 1.1 || off.median != 1 || offMedian(rounds) != 95 {
		t.Errorf("medians %v and %v, %v without, want 1.1, 1 and 95", on.median, off.median, offMedian(rounds))
	}
	if got := noise(spread{standardError: 0.03}, spread{standardError: 0.04}); math.Abs(got-0.1) > 1e-12 {
		t.Errorf("noise %v, want 0.1", got)
	}
	// One that is far off does not matter.
	got := spreadOf([]float64{1, 1, 2, 2, 2, 2, 3, 3, 900})
	if want := (spread{median: 2, low: 1, high: 3, standardError: 1.2533 * 1.4826 / 3}); math.Abs(got.standardError-want.standardError) > 1e-12 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
