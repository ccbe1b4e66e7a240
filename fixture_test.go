package nodeprobe

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// begin is any moment.
var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at is a snapshot so long after begin, with so many percent of memory available. All
// PIDs are.
func at(after time.Duration, memory int64) *probe.Snapshot {
	s := &probe.Snapshot{Time: begin.Add(after)}
	s.Machine.BootID = "this-boot"
	s.Signals[probe.MemoryAvailable] = probe.Observation{Available: memory, Capacity: 100, OK: true}
	s.Signals[probe.PIDAvailable] = probe.Observation{Available: 100, Capacity: 100, OK: true}
	return s
}

// thresholds parses hard ones, as evictionHard has them.
func thresholds(t testing.TB, hard map[string]string) []pressure.Threshold {
	t.Helper()
	parsed, _, err := pressure.Parse(pressure.Config{Hard: hard})
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// rule is a condition of one's own, with one clause.
func rule(t testing.TB, kind, when string) pressure.Rule {
	t.Helper()
	clause, err := pressure.ParseClause(when)
	if err != nil {
		t.Fatal(err)
	}
	return pressure.Rule{Type: kind, When: []pressure.Clause{clause}, Reason: "Bad", OKReason: "Good"}
}

// gauges returns the value of each series of a metric by its first label.
func gauges(t *testing.T, reg prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return got
}

// treeConfig is an agent's that looks at a tree without BPF. Its thresholds do not
// depend on how full the machine's own disk is, nor its name on a resolver: it is its
// own address.
func treeConfig(t testing.TB, tr *testtree.Tree) (Config, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	cfg := DefaultConfig()
	cfg.NodeName, cfg.DisableBPF = "192.0.2.7", true
	cfg.Procfs, cfg.Sysfs, cfg.Rootfs = tr.Procfs(), tr.Sysfs(), tr.Rootfs()
	cfg.SampleInterval, cfg.TransitionPeriod = time.Hour, 0
	cfg.Thresholds = thresholds(t, map[string]string{"memory.available": "100Mi", "pid.available": "5%", "nodefs.available": "1Ki"})
	cfg.Logger, cfg.Registerer = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), prometheus.NewPedanticRegistry()
	return cfg, log
}

// logBuffer is written and read at the same time.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// goroutines returns the stacks of those that are in nodeprobe's code, besides tests.
func goroutines() []string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var stacks []string
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "nodeprobe/nodeprobe") && !strings.Contains(stack, "testing.tRunner") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
