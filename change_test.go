package nodeprobe

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/arm"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// What a node has may change at any time, to less than is in use too: the verdict
// is that of the next sample, and the kernel is told.
func TestCapacityChanges(t *testing.T) {
	const loadavg, pidMax, threadsMax = "proc/loadavg", "proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"
	const meminfoFile = "proc/meminfo"
	tr := testtree.New(t, nil)
	a := testAgent(t, tr)
	a.cfg.Thresholds = judgetest.Thresholds(t, map[string]string{"memory.available": "100Mi", "pid.available": "5%"})
	var told []bpf.Watch
	limits := arm.New(arm.Config{
		Watch: func(ws []bpf.Watch) error {
			told = slices.Clone(ws)
			return nil
		},
		Levels: func(l *bpf.Levels) { *l = bpf.Levels{} },
		Logger: slog.New(slog.DiscardHandler),
	})
	a.judge = judge.New(policy(&a.cfg), limits, a.log, prometheus.NewRegistry())
	for _, step := range []struct {
		name, file, text string
		condition        pressure.Condition
		want             pressure.Status
		capacity         int64 // as the kernel is told; 0: nothing to watch
	}{
		{"200 of 32768 tasks", loadavg, "0.20 0.18 0.12 1/200 11206\n", pressure.PIDPressure, pressure.False, 32768},
		{"pid_max below what is in use", pidMax, "100\n", pressure.PIDPressure, pressure.True, 100},
		{"pid_max of 1, of which 5 % are none", pidMax, "1\n", pressure.PIDPressure, pressure.True, 0},
		{"pid_max of 0 is none, and threads-max stays", pidMax, "0\n", pressure.PIDPressure, pressure.False, 63000},
		{"the most there is", pidMax, "4194304\n", pressure.PIDPressure, pressure.False, 63000},
		{"threads-max below what is in use", threadsMax, "150\n", pressure.PIDPressure, pressure.True, 150},
		{"neither can be read", threadsMax, "-1\n", pressure.PIDPressure, pressure.False, 4194304},
		{"threads-max again", threadsMax, "201\n", pressure.PIDPressure, pressure.True, 201},
		{"exactly at the limit", threadsMax, "210\n", pressure.PIDPressure, pressure.False, 210},
		{"room", threadsMax, "63000\n", pressure.PIDPressure, pressure.False, 63000},

		{"memory is unplugged to less than is in use", meminfoFile, strings.Replace(testtree.Meminfo("1"), "8388608", "1048576", 1), pressure.MemoryPressure, pressure.True, 1 << 30},
		{"memory that cannot be read freezes", meminfoFile, "", pressure.MemoryPressure, pressure.True, 0},
		{"however much there is", meminfoFile, testtree.WithoutUsage(testtree.Meminfo("6291456")), pressure.MemoryPressure, pressure.True, 0},
		{"until it can be", meminfoFile, testtree.Meminfo("6291456"), pressure.MemoryPressure, pressure.False, 8 << 30},
	} {
		tr.Write(step.file, step.text)
		a.judge.Observe(a.sampler.Sample())
		s := a.State()
		if got := s.Verdicts[step.condition].Status; got != step.want {
			t.Errorf("%s: %v is %v, want %v: %+v", step.name, step.condition, got, step.want, s.Snapshot.Signals)
		}
		figure := map[pressure.Condition]bpf.Figure{pressure.MemoryPressure: bpf.WorkingSet, pressure.PIDPressure: bpf.PIDs}[step.condition]
		var capacity int64
		for _, w := range told {
			if w.Figure == figure {
				capacity = w.Total
			}
		}
		if capacity != step.capacity {
			t.Errorf("%s: the kernel is told of %d, want %d: %+v", step.name, capacity, step.capacity, told)
		}
	}
}

// A threshold above all that there is makes the condition True from the first
// sample on, and that the kernel is asked to watch it changes nothing.
func TestThresholdAboveCapacity(t *testing.T) {
	for _, threshold := range []string{"pid.available<40k", "pid.available<8Ei", "memory.available<100Ti", "memory.available<8Ei", "nodefs.available<8Ei", "nodefs.inodesFree<1E"} {
		t.Run(threshold, func(t *testing.T) {
			name, value, _ := strings.Cut(threshold, "<")
			signal, _ := probe.ParseSignal(name)
			a := testAgent(t, testtree.New(t, nil))
			a.cfg.Thresholds = judgetest.Thresholds(t, map[string]string{name: value})
			a.judge.Reload(policy(&a.cfg))
			for range 3 {
				s := a.sampler.Sample()
				if !s.Signals[signal].OK {
					t.Skipf("%s cannot be read here: %v", name, s.Signals[signal].Err)
				}
				a.judge.Observe(s)
				condition := pressure.Threshold{Signal: signal}.Condition()
				if v := a.State().Verdicts[condition]; v.Status != pressure.True || !v.Met {
					t.Errorf("%+v", v)
				}
				if errs := CheckThresholds(a.cfg.Thresholds, s); len(errs) == 0 || !strings.Contains(errs[0].Error(), "above the capacity") {
					t.Errorf("said nothing: %v", errs)
				}
			}
		})
	}
}

// testAgent looks at a tree, and is not started.
func testAgent(t *testing.T, tr *testtree.Tree) *Agent {
	t.Helper()
	cfg, _ := treeConfig(t, tr)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}
