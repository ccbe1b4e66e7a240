//go:build linux && (amd64 || arm64)

package bpf

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
)

// BenchmarkCounters is what a sample costs.
func BenchmarkCounters(b *testing.B) {
	s := open(b, Tasks)
	b.ReportAllocs()
	for b.Loop() {
		s.Counters()
	}
}

// BenchmarkOpen is what the start of the daemon costs.
func BenchmarkOpen(b *testing.B) {
	open(b, Tasks).Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := Open(Options{}).Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEventCost lets the kernel say what a run of each program costs.
// An operation is what makes the events.
func BenchmarkEventCost(b *testing.B) {
	b.Run("thread", func(b *testing.B) {
		s := account(b)
		watch(b, s, Watch{Figure: PIDs, Total: 1 << 22, Below: never, Above: never})
		for b.Loop() {
			thread()
		}
		report(b, s, Tasks)
	})
	b.Run("thread under pressure", func(b *testing.B) {
		s := account(b)
		watch(b, s, Watch{Figure: PIDs, Total: 1 << 22, Below: always, Above: always})
		for b.Loop() {
			thread()
		}
		report(b, s, Tasks)
	})
	b.Run("reclaim", func(b *testing.B) {
		stop := thrash(b)
		defer stop()
		s := account(b)
		for b.Loop() {
			before := s.Counters().CgroupReclaims
			eventually(b, "cgroup reclaim", func() bool { return s.Counters().CgroupReclaims > before+100 })
		}
		report(b, s, Reclaim)
	})
	b.Run("oom", func(b *testing.B) {
		dir := memoryCgroup(b, 24<<20)
		s := account(b)
		for b.Loop() {
			_ = helper(b, "oom", "np-oom-victim", dir).Run()
		}
		report(b, s, OOM)
	})
}

// thread makes a thread that exits.
func thread() {
	var wg sync.WaitGroup
	wg.Go(func() { runtime.LockOSThread() }) // and never unlocks it
	wg.Wait()
}

// account opens a Sensor and has the kernel keep account of its programs.
func account(b *testing.B) *Sensor {
	b.Helper()
	s := open(b, Tasks, OOM, Reclaim, Pressure)
	accounting, err := ebpf.EnableStats(0)
	if err != nil {
		lacking(b, "%v", err)
	}
	b.Cleanup(func() { accounting.Close() })
	return s
}

// report prints what the programs of a signal cost.
func report(b *testing.B, s *Sensor, signal Signal) {
	b.Helper()
	for _, st := range s.Stats() {
		if st.Signal == signal && st.Runs > 0 {
			name := strings.TrimPrefix(st.Name, "tp_btf/")
			b.ReportMetric(float64(st.RunTime.Nanoseconds())/float64(st.Runs), "ns/"+name)
		}
	}
}
