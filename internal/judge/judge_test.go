package judge

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const transition = time.Minute

// watching is a kernel that watches some limits.
type watching func() (watched []bool, again time.Duration)

func (w watching) Update(*probe.Snapshot, []pressure.Estimate, []bool) ([]bool, time.Duration) {
	return w()
}

var watchNothing = watching(func() ([]bool, time.Duration) { return nil, 0 })

// testJudge judges the 5 % of memory and of PIDs that must be available.
func testJudge(t *testing.T) (*Judge, *prometheus.Registry, *strings.Builder) {
	t.Helper()
	reg, log := prometheus.NewPedanticRegistry(), &strings.Builder{}
	cfg := judgeConfig()
	cfg.Thresholds = judgetest.Thresholds(t, map[string]string{"memory.available": "5%", "pid.available": "5%"})
	return New(cfg, watchNothing, slog.New(slog.NewTextHandler(log, nil)), reg), reg, log
}

func judgeConfig() Policy {
	return Policy{Interval: 10 * time.Second, TransitionPeriod: transition}
}

func TestJudge(t *testing.T) {
	m, reg, log := testJudge(t)
	woken := 0
	observe := func(s *probe.Snapshot) {
		if changed, _ := m.Observe(s); changed {
			woken++
		}
	}

	want := func(step string, memory, transitions float64, wakes int) {
		t.Helper()
		status := map[string]float64{"MemoryPressure": memory, "DiskPressure": 0, "PIDPressure": 0}
		if step == "nothing yet" {
			status = map[string]float64{"MemoryPressure": -1, "DiskPressure": -1, "PIDPressure": -1}
		}
		if diff := cmp.Diff(status, judgetest.Gauges(t, reg, "nodeprobe_condition_status")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
		if got := judgetest.Gauges(t, reg, "nodeprobe_condition_transitions_total")["MemoryPressure"]; got != transitions || woken != wakes {
			t.Errorf("%s: %v transitions, woken %d times, want %v and %d", step, got, woken, transitions, wakes)
		}
		if lines := strings.Count(log.String(), "condition changed"); lines != int(transitions) {
			t.Errorf("%s: %d lines about it:\n%s", step, lines, log)
		}
	}
	want("nothing yet", -1, 0, 0)
	observe(judgetest.At(0, 50))
	want("the first look finds nothing", 0, 0, 1)
	observe(judgetest.At(10*time.Second, 4))
	want("pressure", 1, 1, 2)
	observe(judgetest.At(20*time.Second, 3))
	want("still", 1, 1, 2)
	observe(judgetest.At(30*time.Second, 50))
	want("held", 1, 1, 2)
	if a := m.Assess(); !a.Verdicts[pressure.MemoryPressure].Held || !a.Snapshot.Time.Equal(judgetest.Begin.Add(30*time.Second)) {
		t.Errorf("assessment: %+v", a)
	}
	observe(judgetest.At(20*time.Second+transition, 50))
	want("over", 0, 2, 3)
	if want := `condition=MemoryPressure status=True threshold=memory.available<5% available=4 limit=5 unit=bytes`; !strings.Contains(log.String(), want) {
		t.Errorf("no evidence %s in\n%s", want, log)
	}
}

// Conditions of our own are counted as the kubelet's are: each change of the status,
// and not that the first look finds nothing, nor that the words are others.
func TestTransitionsOfOurOwn(t *testing.T) {
	low, other := judgetest.Rule(t, "example.com/Low", "memory.available < 20"), judgetest.Rule(t, "example.com/Other", "pid.available < 20")
	reg := prometheus.NewPedanticRegistry()
	cfg := judgeConfig()
	cfg.Rules = []pressure.Rule{low}
	m := New(cfg, watchNothing, slog.New(slog.DiscardHandler), reg)
	now := time.Duration(0)
	step := func(what string, memory int64, want map[string]float64) {
		t.Helper()
		now += time.Minute
		s := judgetest.At(now, memory)
		s.Signals[probe.MemoryAvailable].OK = memory >= 0
		m.Observe(s)
		for _, c := range []string{"MemoryPressure", "DiskPressure", "PIDPressure"} {
			want[c] = 0
		}
		if diff := cmp.Diff(want, judgetest.Gauges(t, reg, "nodeprobe_condition_transitions_total")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	step("the first look finds nothing", 50, map[string]float64{"example.com/Low": 0})
	step("low", 10, map[string]float64{"example.com/Low": 1})
	step("still low", 9, map[string]float64{"example.com/Low": 1})
	step("enough", 50, map[string]float64{"example.com/Low": 2})
	step("nobody knows", -1, map[string]float64{"example.com/Low": 3})
	step("enough as before", 50, map[string]float64{"example.com/Low": 3})
	step("low again", 10, map[string]float64{"example.com/Low": 4})
	low.Reason = "Scarce"
	cfg.Rules = []pressure.Rule{low, other}
	m.Reload(cfg)
	step("in other words", 10, map[string]float64{"example.com/Low": 4, "example.com/Other": 0})
	m.Seed(&v1.Node{Status: v1.NodeStatus{
		NodeInfo:   v1.NodeSystemInfo{BootID: "this-boot"},
		Conditions: []v1.NodeCondition{{Type: "example.com/Other", Status: v1.ConditionTrue, Reason: "Low"}},
	}}, false)
	step("one was True before this process", 10, map[string]float64{"example.com/Low": 4, "example.com/Other": 1})
}

// What the API server says about conditions is history, as long as it is about
// this boot.
func TestSeed(t *testing.T) {
	for _, test := range []struct {
		name           string
		ours, theirs   string // boot IDs
		status         v1.ConditionStatus
		memory         int64
		want           pressure.Status
		held           bool
		wantTransition float64
	}{
		{"True is held", "this-boot", "this-boot", v1.ConditionTrue, 50, pressure.True, true, 0},
		{"another boot", "this-boot", "last-boot", v1.ConditionTrue, 50, pressure.False, false, 0},
		{"a Node that never booted", "this-boot", "", v1.ConditionTrue, 50, pressure.False, false, 0},
		{"our boot ID cannot be read", "", "last-boot", v1.ConditionTrue, 50, pressure.True, true, 0},
		{"False", "this-boot", "this-boot", v1.ConditionFalse, 50, pressure.False, false, 0},
		{"Unknown", "this-boot", "this-boot", v1.ConditionUnknown, 50, pressure.False, false, 0},
		{"True already", "this-boot", "this-boot", v1.ConditionTrue, 1, pressure.True, false, 1},
		{"False, but it is not", "this-boot", "this-boot", v1.ConditionFalse, 1, pressure.True, false, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, reg, _ := testJudge(t)
			s := judgetest.At(0, test.memory)
			s.Machine.BootID = test.ours
			m.Observe(s)
			node := &v1.Node{}
			node.Status.NodeInfo.BootID = test.theirs
			node.Status.Conditions = []v1.NodeCondition{
				{Type: v1.NodeReady, Status: v1.ConditionTrue},
				{Type: v1.NodeMemoryPressure, Status: test.status},
				{Type: v1.NodePIDPressure, Status: v1.ConditionFalse},
			}
			m.Seed(node, true)
			f := m.Assess()
			if v := f.Verdicts[pressure.MemoryPressure]; v.Status != test.want || v.Held != test.held {
				t.Errorf("got %+v", v)
			}
			if v := f.Verdicts[pressure.PIDPressure]; v.Status != pressure.False {
				t.Errorf("another condition: %+v", v)
			}
			if got := judgetest.Gauges(t, reg, "nodeprobe_condition_transitions_total")["MemoryPressure"]; got != test.wantTransition {
				t.Errorf("%v transitions, want %v: a restart is none", got, test.wantTransition)
			}
			if !test.held {
				return
			}
			// It ends as if there had been no restart.
			m.Observe(judgetest.At(transition-time.Second, 50))
			if v := m.Assess().Verdicts[pressure.MemoryPressure]; v.Status != pressure.True {
				t.Errorf("before the transition period: %+v", v)
			}
			m.Observe(judgetest.At(transition, 50))
			if v := m.Assess().Verdicts[pressure.MemoryPressure]; v.Status != pressure.False {
				t.Errorf("after the transition period: %+v", v)
			}
		})
	}
}

// A signal that cannot be read does not end what the API server says.
func TestSeedWithoutEvidence(t *testing.T) {
	m, _, _ := testJudge(t)
	s := judgetest.At(0, 0)
	s.Signals[probe.MemoryAvailable] = probe.Observation{Err: errors.New("gone")}
	m.Observe(s)
	node := &v1.Node{}
	node.Status.NodeInfo.BootID = "this-boot"
	node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeMemoryPressure, Status: v1.ConditionTrue}}
	m.Seed(node, true)
	if v := m.Assess().Verdicts[pressure.MemoryPressure]; v.Status != pressure.True || !v.Frozen {
		t.Errorf("got %+v", v)
	}
}

// The sampler, the updater and a scrape call at the same time.
func TestJudgeConcurrently(t *testing.T) {
	m, reg, _ := testJudge(t)
	node := &v1.Node{}
	node.Status.NodeInfo.BootID = "this-boot"
	node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeMemoryPressure, Status: v1.ConditionTrue}}
	var tasks sync.WaitGroup
	for _, call := range []func(i int){
		func(i int) { m.Observe(judgetest.At(time.Duration(i)*transition, int64(i%10))) },
		func(int) { m.Seed(node, true) },
		func(int) { m.Assess() },
		func(int) {
			if _, err := reg.Gather(); err != nil {
				t.Error(err)
			}
		},
	} {
		tasks.Go(func() {
			for i := range 200 {
				call(i)
			}
		})
	}
	tasks.Wait()
}

// Where the kernel watches all limits no early sample is needed, but for one that
// is to settle what the kernel has said.
func TestNextSample(t *testing.T) {
	m, _, _ := testJudge(t)
	var again time.Duration
	m.limits = watching(func() ([]bool, time.Duration) { return []bool{true, true}, again })
	m.Observe(judgetest.At(0, 6)) // the first two samples make a rate
	m.Observe(judgetest.At(time.Second, 6))
	for _, test := range []struct{ again, want time.Duration }{
		{0, m.interval},
		{10 * time.Millisecond, 10 * time.Millisecond},
		{time.Hour, m.interval},
	} {
		again = test.again
		var got time.Duration
		for i := range 5 { // it grows in steps
			_, got = m.Observe(judgetest.At(time.Duration(i+2)*time.Second, 6))
		}
		if got != test.want {
			t.Errorf("again after %s: next sample after %s, want %s", test.again, got, test.want)
		}
	}
}

// The beginning of a condition of our own is logged, and its end as well.
func TestOwnConditionsAreLogged(t *testing.T) {
	cfg, log := judgeConfig(), &strings.Builder{}
	cfg.Rules = []pressure.Rule{judgetest.Rule(t, "example.com/Low", "memory.available < 20%")}
	m := New(cfg, watchNothing, slog.New(slog.NewTextHandler(log, nil)), prometheus.NewRegistry())
	for i, memory := range []int64{50, 50, 10, 10, 50, 50} {
		m.Observe(judgetest.At(time.Duration(i)*time.Second, memory))
	}
	for _, status := range []string{"True", "False"} {
		if n := strings.Count(log.String(), `msg="condition changed" condition=example.com/Low status=`+status); n != 1 {
			t.Errorf("%s: logged %d times:\n%s", status, n, log)
		}
	}
}

// A condition of our own has limits like the kubelet's: they are forecast, the kernel is
// asked to watch them, and what it does not watch is sampled the sooner the nearer it is.
// State and metrics show the thresholds alone.
func TestRulesAreLimits(t *testing.T) {
	cfg := judgeConfig()
	cfg.Thresholds = judgetest.Thresholds(t, map[string]string{"memory.available": "5%"})
	cfg.Rules = []pressure.Rule{judgetest.Rule(t, "example.com/Low", "memory.available < 50% and pid.available < 20%")}
	var asked []string
	var settled, relied []bool
	kernel := kernelFunc(func(estimates []pressure.Estimate, s []bool) []bool {
		asked, settled = nil, append(settled[:0], s...)
		for _, e := range estimates {
			asked = append(asked, e.Threshold.String())
		}
		return relied
	})
	reg := prometheus.NewPedanticRegistry()
	m := New(cfg, kernel, slog.New(slog.DiscardHandler), reg)
	now := time.Duration(0)
	step := func(memory, pids int64, byKernel ...bool) (next time.Duration) {
		relied = byKernel
		for range 10 { // it grows in steps
			now += 10 * time.Second
			s := judgetest.At(now, memory)
			s.Signals[probe.PIDAvailable].Available = pids
			_, next = m.Observe(s)
		}
		return next
	}
	if got := step(80, 80); got != 10*time.Second {
		t.Errorf("far away: next in %s", got)
	}
	if want := []string{"memory.available<5%", "memory.available<50%", "pid.available<20%"}; !slices.Equal(asked, want) {
		t.Errorf("the kernel is asked for %v, want %v", asked, want)
	}
	if got := step(51, 80, true); got != 10*time.Second {
		t.Errorf("near one limit, far from the other: next in %s", got)
	}
	if got := step(51, 21, true); got != time.Second {
		t.Errorf("near both: next in %s", got)
	}
	if got := step(49, 21, true); got != time.Second {
		t.Errorf("below one, near the other: next in %s", got)
	}
	if got := step(49, 21, true, false, true); got != 10*time.Second {
		t.Errorf("the kernel watches the other: next in %s", got)
	}
	if step(49, 19); !slices.Equal(settled, []bool{false, true, true}) {
		t.Errorf("settled %v", settled)
	}
	if a := m.Assess(); len(a.Estimates) != 1 || len(judgetest.Gauges(t, reg, "nodeprobe_signal_limit_ratio")) != 1 {
		t.Errorf("estimates %+v", a.Estimates)
	}
	cfg.Rules = append(cfg.Rules, judgetest.Rule(t, "example.com/Lower", "memory.available < 20%"))
	m.Reload(cfg)
	if a := m.Assess(); len(a.Estimates) != 1 {
		t.Errorf("estimates %+v", a.Estimates)
	}
	if step(80, 80); !slices.Contains(asked, "memory.available<20%") || len(settled) != 4 {
		t.Errorf("after a reload the kernel is asked for %v", asked)
	}
}

// kernelFunc is a kernel that is asked to watch limits.
type kernelFunc func(estimates []pressure.Estimate, settled []bool) (relied []bool)

func (f kernelFunc) Update(_ *probe.Snapshot, estimates []pressure.Estimate, settled []bool) ([]bool, time.Duration) {
	return f(estimates, settled), 0
}

// Conditions of our own are judged on the same snapshot, exported, and ask for a
// sample when a hold ends.
func TestOwnConditions(t *testing.T) {
	cfg := judgeConfig()
	cfg.Thresholds, cfg.TransitionPeriod = judgetest.Thresholds(t, map[string]string{"memory.available": "5%"}), 0
	low := judgetest.Rule(t, "example.com/Low", "memory.available < 50%")
	low.Hold = 4 * time.Second
	cfg.Rules = []pressure.Rule{judgetest.Rule(t, "example.com/Short", "MemoryPressure"), low}
	reg, changes := prometheus.NewPedanticRegistry(), 0
	m := New(cfg, watchNothing, slog.New(slog.DiscardHandler), reg)
	for _, step := range []struct {
		at         time.Duration
		memory     int64
		short, low float64
		changes    int
		next       time.Duration // at the most
	}{
		{0, 80, 0, 0, 1, 10 * time.Second},
		{time.Second, 40, 0, 1, 2, 10 * time.Second},
		{2 * time.Second, 4, 1, 1, 3, 10 * time.Second},
		{3 * time.Second, 80, 0, 1, 4, 3 * time.Second}, // held for 4 s from 2 s on
		{5 * time.Second, 80, 0, 1, 4, time.Second},
		{6 * time.Second, 80, 0, 0, 5, 10 * time.Second},
	} {
		changed, next := m.Observe(judgetest.At(step.at, step.memory))
		if changed {
			changes++
		}
		got := judgetest.Gauges(t, reg, "nodeprobe_condition_status")
		if got["example.com/Short"] != step.short || got["example.com/Low"] != step.low || changes != step.changes || next > step.next {
			t.Errorf("at %s: %v, %d changes, next in %s; want %+v", step.at, got, changes, next, step)
		}
	}
}

// Of each condition one status is 1 and the others are 0, so that they can be summed; and
// a limit is exported in its signal's unit.
func TestConditionMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	cfg := judgeConfig()
	cfg.Thresholds = judgetest.Thresholds(t, map[string]string{"memory.available": "5%", "pid.available": "30"})
	cfg.Rules = []pressure.Rule{judgetest.Rule(t, "example.com/Low", "memory.available < 50%"), judgetest.Rule(t, "example.com/Swap", "swap.available < 1")}
	m := New(cfg, watchNothing, slog.New(slog.DiscardHandler), reg)
	want := func(step string, series ...string) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			name := strings.TrimPrefix(f.GetName(), "nodeprobe_")
			for _, metric := range f.GetMetric() {
				value := metric.GetGauge().GetValue()
				switch labels := metric.GetLabel(); {
				case name == "node_condition" && value == 1:
					got = append(got, labels[0].GetValue()+" "+labels[1].GetValue())
				case strings.HasPrefix(name, "node_condition_un") && value == 1:
					got = append(got, labels[0].GetValue()+" unsupported")
				case strings.HasPrefix(name, "node_condition") && value < 2 && value != 0:
					t.Errorf("%s: %v", step, metric)
				case strings.HasSuffix(name, "_timestamp_seconds"):
					at := time.Unix(0, int64(value*1e9)).Sub(judgetest.Begin).Round(time.Second)
					got = append(got, labels[0].GetValue()+" since "+at.String())
				case strings.HasPrefix(name, "signal_limit_") && !strings.HasSuffix(name, "_ratio"):
					got = append(got, fmt.Sprintf("%s %s %v", name, labels[1].GetValue(), value))
				}
			}
		}
		if diff := cmp.Diff(series, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	want("nothing yet", "DiskPressure unknown", "MemoryPressure unknown", "PIDPressure unknown")
	m.Observe(judgetest.At(10*time.Second, 40))
	m.Observe(judgetest.At(20*time.Second, 40))
	limits := []string{"signal_limit_bytes memory.available<5% 5", "signal_limit_tasks pid.available<30 30"}
	want("low", append([]string{
		"DiskPressure false", "MemoryPressure false", "PIDPressure false", "example.com/Low true", "example.com/Swap unknown",
		"DiskPressure since 10s", "MemoryPressure since 10s", "PIDPressure since 10s", "example.com/Low since 10s",
		"example.com/Swap since 10s", "example.com/Swap unsupported",
	}, limits...)...)
	m.Observe(judgetest.At(30*time.Second, 4))
	want("lower", append([]string{
		"DiskPressure false", "MemoryPressure true", "PIDPressure false", "example.com/Low true", "example.com/Swap unknown",
		"DiskPressure since 10s", "MemoryPressure since 30s", "PIDPressure since 10s", "example.com/Low since 10s",
		"example.com/Swap since 10s", "example.com/Swap unsupported",
	}, limits...)...)
}

// Metrics follow other thresholds, more of them and fewer.
func TestMetricsAfterChange(t *testing.T) {
	m, reg, _ := testJudge(t)
	m.Observe(judgetest.At(0, 80))
	cfg := judgeConfig()
	for _, hard := range []map[string]string{
		{"memory.available": "10%", "pid.available": "20%", "nodefs.available": "5%", "imagefs.available": "5%"},
		{"pid.available": "50%"},
	} {
		cfg.Thresholds = judgetest.Thresholds(t, hard)
		m.Reload(cfg)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		limits := map[string]string{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if family.GetName() == "nodeprobe_signal_limit_ratio" {
					limits[metric.GetLabel()[0].GetValue()] = metric.GetLabel()[1].GetValue()
				}
			}
		}
		want := map[string]string{}
		for _, signal := range []string{"memory.available", "pid.available"} { // those that there are
			if hard[signal] != "" {
				want[signal] = signal + "<" + hard[signal]
			}
		}
		if diff := cmp.Diff(want, limits); diff != "" {
			t.Error(diff)
		}
	}
}

// A condition of our own that is True stays so over a restart, unless it says what
// cannot be ours: the API server would refuse it from us.
func TestSeedRules(t *testing.T) {
	cfg := judgeConfig()
	short := judgetest.Rule(t, "example.com/X", "memory.available < 5%")
	short.Hold = time.Minute
	cfg.Rules = []pressure.Rule{short}
	for reason, want := range map[string]pressure.Status{
		"Worse": pressure.True, "": pressure.False, "two words": pressure.False, "Worse\n": pressure.False, strings.Repeat("x", 129): pressure.False,
	} {
		m := New(cfg, watchNothing, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		m.Observe(judgetest.At(0, 50))
		m.Seed(&v1.Node{Status: v1.NodeStatus{
			NodeInfo:   v1.NodeSystemInfo{BootID: "this-boot"},
			Conditions: []v1.NodeCondition{{Type: "example.com/X", Status: v1.ConditionTrue, Reason: reason}},
		}}, false)
		if f := m.Assess().Findings[0]; f.Status != want {
			t.Errorf("reason %q: %+v, want %s", reason, f, want)
		}
	}
}
