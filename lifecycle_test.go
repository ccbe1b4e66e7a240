package nodeprobe

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe"
)

// running starts an agent, and returns a function that ends it and returns what Run
// returned. The test's end does so, too.
func running(t *testing.T, a *Agent) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	stop = func() error {
		t.Helper()
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(testtree.Patience):
			t.Fatal("Run does not return")
			return nil
		}
	}
	t.Cleanup(func() { _ = stop() })
	testtree.Eventually(t, "first sample", func() bool { s := a.State(); return !s.Snapshot.Time.IsZero() })
	return stop
}

// The whole of it: a file changes, somebody asks for a sample, and the condition's
// metric changes. What cannot be read ends nothing.
func TestAgentFollowsTheNode(t *testing.T) {
	tr := testtree.New(t, nil)
	cfg, log := treeConfig(t, tr)
	samples := make(chan *probe.Snapshot, 100)
	cfg.OnSample = func(s *probe.Snapshot) { samples <- s }
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := running(t, a)
	reg := cfg.Registerer.(prometheus.Gatherer)
	memory := func() float64 { return judgetest.Gauges(t, reg, "nodeprobe_condition_status")["MemoryPressure"] }
	testtree.Eventually(t, "first verdict", func() bool { return memory() == 0 })

	tr.Write("proc/meminfo", testtree.MemoryInUse(8369140))
	a.Sample()
	testtree.Eventually(t, "pressure", func() bool { return memory() == 1 })

	tr.Write("proc/meminfo", testtree.WithoutUsage(testtree.MemoryInUse(8369140)))
	a.Sample()
	testtree.Eventually(t, "error", func() bool {
		return judgetest.Gauges(t, reg, "nodeprobe_sampler_read_errors_total")["memory_cgroup"] > 0
	})
	if got := memory(); got != 1 {
		t.Errorf("condition is %v without evidence", got)
	}

	tr.Write("proc/meminfo", testtree.MemoryInUse(2<<20))
	a.Sample()
	testtree.Eventually(t, "relief", func() bool { return memory() == 0 })

	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, want := range []string{"status=True threshold=memory.available<100Mi", "status=False"} {
		if strings.Count(log.String(), `msg="condition changed" condition=MemoryPressure `+want) != 1 {
			t.Errorf("not one line %q in\n%s", want, log)
		}
	}
	if s := a.State(); s.Samples[probe.CauseView] == 0 || len(samples) < 4 {
		t.Errorf("%d samples, causes %v", len(samples), s.Samples)
	}
}

// Before Run an agent is not stuck, and not ready either.
func TestStateBeforeRun(t *testing.T) {
	for _, mode := range []Mode{Observe, Augment, Own} {
		cfg, _ := treeConfig(t, testtree.New(t, nil))
		cfg.Mode, cfg.API = mode, newAPIServer(t).config
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s := a.State()
		if err := s.Alive(); err != nil {
			t.Errorf("mode %s: stuck: %v", mode, err)
		}
		if err := s.IsReady(); !errors.Is(err, errNothingSampled) {
			t.Errorf("mode %s: ready: %v", mode, err)
		}
		a.Close()
	}
}

func TestAgentChecksThresholds(t *testing.T) {
	cfg, log := treeConfig(t, testtree.New(t, nil))
	cfg.Thresholds = judgetest.Thresholds(t, map[string]string{"pid.available": "40k"})
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := running(t, a)(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "pid.available: threshold 40k is above the capacity 32768") {
		t.Errorf("no warning in\n%s", log)
	}
}

// A registry takes one agent at a time; the second changes nothing about the first.
func TestOneAgentPerRegistry(t *testing.T) {
	tr := testtree.New(t, nil)
	cfg, _ := treeConfig(t, tr)
	first, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	reg := cfg.Registerer.(prometheus.Gatherer)
	before := families(t, reg)
	if second, err := New(cfg); second != nil || err == nil || !strings.Contains(err.Error(), "a registry takes the metrics of one agent at a time") {
		t.Errorf("a second agent: %v", err)
	}
	if got := families(t, reg); got != before {
		t.Errorf("%d metrics after a second New, %d before", got, before)
	}
	stop := running(t, first)
	if got := judgetest.Gauges(t, reg, "nodeprobe_condition_status"); got["MemoryPressure"] != 0 {
		t.Errorf("the first does not go on: %v", got)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	third, err := New(cfg)
	if err != nil {
		t.Fatalf("a third, after the first has ended: %v", err)
	}
	if err := running(t, third)(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func families(t *testing.T, reg prometheus.Gatherer) int {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// An agent runs once, and gives back all that it has taken however it ends: goroutines,
// files and metrics. One that is ended before it starts has written nothing.
func TestAgentGivesBack(t *testing.T) {
	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more")
	cancel(cause)
	for _, mode := range []Mode{Observe, Augment, Own} {
		for name, test := range map[string]struct {
			use   func(t *testing.T, a *Agent)
			quiet bool // nothing is sent
		}{
			"closed": {func(_ *testing.T, a *Agent) { a.Close(); a.Close() }, true},
			"ended before it runs": {func(t *testing.T, a *Agent) {
				if err := a.Run(ended); !errors.Is(err, cause) {
					t.Errorf("Run: %v", err)
				}
			}, true},
			"run": {func(t *testing.T, a *Agent) {
				if err := running(t, a)(); !errors.Is(err, context.Canceled) {
					t.Errorf("Run: %v", err)
				}
				a.Close()
			}, false},
		} {
			t.Run(string(mode)+" "+name, func(t *testing.T) {
				api := newAPIServer(t)
				files, stacks := openFiles(t), len(testtree.Goroutines())
				cfg, _ := treeConfig(t, testtree.New(t, nil))
				cfg.Mode, cfg.API, cfg.ExitMessage = mode, api.config, "bye"
				a, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				test.use(t, a)
				if err := a.Run(t.Context()); !errors.Is(err, errRan) {
					t.Errorf("another Run: %v", err)
				}
				if got := families(t, cfg.Registerer.(prometheus.Gatherer)); got != 0 {
					t.Errorf("%d metrics are left", got)
				}
				if got := api.count(); test.quiet && got > 0 {
					t.Errorf("%d requests: %q", got, api.requests)
				}
				// It may still be asked.
				a.Sample()
				a.Update()
				a.State()
				if err := a.Reload(cfg); err == nil && test.quiet {
					t.Error("a configuration is in force in an agent that never runs")
				}
				testtree.Eventually(t, "goroutines are gone", func() bool { return len(testtree.Goroutines()) <= stacks })
				testtree.Eventually(t, "files are closed", func() bool { return openFiles(t) <= files })
			})
		}
	}
}

// openFiles returns how many descriptors this process has, besides sockets of the API
// server's side.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
