package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// loop is something to do again and again.
type loop struct {
	name string
	// chunk is how often to do it between two looks at the clock: for about a
	// millisecond.
	chunk int
	once  func() error
}

// run does it for a time and returns how long once took, in nanoseconds: the
// lower quartile of the chunks. The rest is longer for what else the machine had
// to do, and the probes would lengthen each.
func (l *loop) run(length time.Duration) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var chunks []float64
	for begin := time.Now(); time.Since(begin) < length; {
		start := time.Now()
		for range l.chunk {
			if err := l.once(); err != nil {
				return 0, err
			}
		}
		chunks = append(chunks, float64(time.Since(start))/float64(l.chunk))
	}
	slices.Sort(chunks)
	return at(chunks, 0.25), nil
}

const blockSize, blocks = 4096, 256

// newLoops makes the loops, and files in dir for those that write; none for O_DIRECT
// if the filesystem lacks it.
func newLoops(p testing.TB, dir string) []*loop {
	loops := []*loop{{"fork", 4, fork}, {"thread", 16, thread}}
	// O_DIRECT takes memory that is aligned, as a mapping is.
	block := must.Get(unix.Mmap(-1, 0, blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE))(p)
	for _, w := range []struct {
		name         string
		chunk, flags int
	}{{"write", 1024, 0}, {"direct_write", 32, unix.O_DIRECT}} {
		fd, err := unix.Open(filepath.Join(dir, w.name), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|w.flags, 0o600)
		if w.flags != 0 && errors.Is(err, unix.EINVAL) {
			p.Logf("no loop %s: the filesystem of %s has no O_DIRECT", w.name, dir)
			continue
		}
		must.OK(p, err)
		p.Cleanup(func() { unix.Close(fd) })
		l := &loop{w.name, w.chunk, overwrite(fd, block)}
		// From here on no write has to find room.
		for range blocks {
			must.OK(p, l.once())
		}
		loops = append(loops, l)
	}
	return loops
}

func overwrite(fd int, block []byte) func() error {
	next := 0
	return func() error {
		_, err := unix.Pwrite(fd, block, int64(next%blocks*blockSize))
		next++
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	}
}

// fork makes a process that ends at once, and waits for it. Its end sends no signal:
// the Go runtime would catch it. The child has only this thread, so it must not run
// anything of the runtime's.
//
//go:norace
func fork() error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, 0, 0, 0, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("fork: %w", errno)
	}
	if pid == 0 {
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	if _, err := unix.Wait4(int(pid), nil, unix.WALL, nil); err != nil {
		return fmt.Errorf("wait for child: %w", err)
	}
	return nil
}

// thread makes a thread that ends at once, and waits for it.
func thread() error {
	var wg sync.WaitGroup
	wg.Go(runtime.LockOSThread) // and never unlocks it
	wg.Wait()
	return nil
}

// settle is for a process that was started or stopped to be quiet again.
const settle = 150 * time.Millisecond

// orders are the orders of the looks in a round, in which on is 0. What comes
// first may run on a machine that is warmer or busier.
var orders = [...][3]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}}

func measureRounds(p *program.P, subject agent.Spec, loops []*loop, rounds int, length time.Duration) map[string][]round {
	all := make(map[string][]round, len(loops))
	for i := range rounds {
		var took [3]map[string]float64
		for _, which := range orders[i%len(orders)] {
			stop := func() {}
			if which == 0 {
				// It answers when its programs are attached and its limits known to the kernel.
				stop = must.Get(agent.Start(p, subject))(p).Stop
			}
			took[which] = look(p, loops, length)
			stop()
		}
		for _, l := range loops {
			all[l.name] = append(all[l.name], round{on: took[0][l.name], off: took[1][l.name], offAgain: took[2][l.name]})
		}
	}
	return all
}

func look(p *program.P, loops []*loop, length time.Duration) map[string]float64 {
	p.Sleep(settle)
	took := make(map[string]float64, len(loops))
	for _, l := range loops {
		took[l.name] = must.Get(l.run(length))(p)
	}
	return took
}

// programCost is the kernel's account of a program.
type programCost struct {
	hook          string // "tp_btf/task_newtask"
	runs, seconds float64
}

func (c programCost) nanoseconds() float64 { return c.seconds / c.runs * 1e9 }

// programLength is how long each loop is run for the kernel's account.
const programLength = 3 * time.Second

// measurePrograms has the kernel time nodeprobe's programs while the loops run. That
// itself takes time in each run, so that no ratio is measured here; and some of it,
// two readings of the clock, counts as the program's.
func measurePrograms(p *program.P, subject agent.Spec, loops []*loop) []programCost {
	a := agent.StartForTest(p, subject)
	account := must.Get(ebpf.EnableStats(unix.BPF_STATS_RUN_TIME))(p)
	p.Cleanup(func() { must.Note(p, account.Close()) })
	before := must.Get(a.Metrics(p.Context()))(p)
	look(p, loops, programLength)
	costs := programCosts(before, must.Get(a.Metrics(p.Context()))(p))
	if !slices.ContainsFunc(costs, func(c programCost) bool { return c.runs > 0 }) {
		p.Fatal("no program has run: see nodeprobe preflight")
	}
	return costs
}

// programCosts returns what each program took between two looks at the metrics.
// The kernel had no account of it before, so the first look may lack it.
func programCosts(before, after map[string]float64) (costs []programCost) {
	for series, runs := range after {
		if labels, ok := strings.CutPrefix(series, "nodeprobe_bpf_program_runs_total"); ok {
			seconds := "nodeprobe_bpf_program_run_seconds_total" + labels
			hook := strings.TrimSuffix(strings.TrimPrefix(labels, `{hook="`), `"}`)
			costs = append(costs, programCost{hook, runs - before[series], after[seconds] - before[seconds]})
		}
	}
	slices.SortFunc(costs, func(a, b programCost) int { return strings.Compare(a.hook, b.hook) })
	return costs
}
