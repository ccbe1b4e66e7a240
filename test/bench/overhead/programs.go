package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
)

// programCost is the kernel's account of a program.
type programCost struct {
	hook          string // "tp_btf/task_newtask"
	runs, seconds float64
}

// name is the hook's without its type.
func (c programCost) name() string { return c.hook[strings.IndexByte(c.hook, '/')+1:] }

func (c programCost) nanoseconds() float64 { return c.seconds / c.runs * 1e9 }

// programLength is how long each loop is run for the kernel's account.
const programLength = 3 * time.Second

// measurePrograms has the kernel keep account of nodeprobe's programs while the
// loops run. That itself takes time in each run, so that no ratio is measured
// here; and some of it, two readings of the clock, counts as the program's.
func measurePrograms(ctx context.Context, subject agent.Spec, loops []*loop) ([]programCost, error) {
	a, err := agent.Start(ctx, subject)
	if err != nil {
		return nil, err
	}
	defer a.Stop()
	stop, err := keepAccount()
	if err != nil {
		return nil, err
	}
	defer stop()
	before, err := a.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := look(ctx, loops, programLength); err != nil {
		return nil, err
	}
	after, err := a.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	costs := programCosts(before, after)
	if !slices.ContainsFunc(costs, func(c programCost) bool { return c.runs > 0 }) {
		return nil, errors.New("no program has run: see nodeprobe preflight")
	}
	return costs, nil
}

// programCosts returns what each program took between two looks at the metrics.
// The kernel had no account of it before, so the first look may lack it.
func programCosts(before, after map[string]float64) []programCost {
	var costs []programCost
	for series := range after {
		labels, ok := strings.CutPrefix(series, "nodeprobe_bpf_program_runs_total")
		if !ok {
			continue
		}
		seconds := "nodeprobe_bpf_program_run_seconds_total" + labels
		costs = append(costs, programCost{
			hook:    strings.TrimSuffix(strings.TrimPrefix(labels, `{hook="`), `"}`),
			runs:    after[series] - before[series],
			seconds: after[seconds] - before[seconds],
		})
	}
	slices.SortFunc(costs, func(a, b programCost) int { return strings.Compare(a.hook, b.hook) })
	return costs
}

// keepAccount has the kernel count the runs of all programs, and time them, until
// stop is called or this process ends, however it ends.
func keepAccount() (stop func(), err error) {
	const enableStats = 32                // BPF_ENABLE_STATS, Linux 5.8
	attr := struct{ statsType uint32 }{0} // BPF_STATS_RUN_TIME
	fd, _, errno := unix.Syscall(unix.SYS_BPF, enableStats, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return nil, fmt.Errorf("have the kernel keep account of programs: %w", errno)
	}
	return func() { unix.Close(int(fd)) }, nil
}
