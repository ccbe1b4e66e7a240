package nodeprobe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/node"
)

func setPanics(context.Context, *v1.Node) error { panic("a setter's fault") }

func setFails(_ context.Context, n *v1.Node) error {
	n.Labels["example.com/kept"] = "yes"
	return errors.New("no such device")
}

func setGPUs(_ context.Context, n *v1.Node) error {
	for _, list := range []v1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		list["example.com/gpu"] = resource.MustParse("2")
	}
	n.Annotations["example.com/driver"] = "1.2"
	return nil
}

// A setter that panics, blocks or fails costs what it would have set, and is named in
// the log; the others and the built-in ones are posted all the same.
func TestSetters(t *testing.T) {
	api := newAPIServer(t)
	cfg, log := treeConfig(t, testtree.New(t, nil))
	unblock := make(chan struct{})
	var calls atomic.Int32
	setBlocks := func(_ context.Context, n *v1.Node) error { // whatever its ctx
		calls.Add(1)
		<-unblock
		n.Labels["example.com/late"] = "yes"
		return nil
	}
	cfg.Mode, cfg.API, cfg.FieldManager = Own, api.config, "edge-agent"
	cfg.LeaseDuration = time.Second // which bounds the setters
	cfg.Annotations = map[string]string{"example.com/note": "any text"}
	cfg.Labels = map[string]string{"example.com/site": "a"}
	cfg.Setters = []Setter{setPanics, setBlocks, setFails, setGPUs}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	defer running(t, a)()
	testtree.Eventually(t, "what the last setter has set is posted", func() bool {
		n := api.stored()
		return n != nil && n.Status.Capacity.Name("example.com/gpu", resource.DecimalSI).Value() == 2 && n.Annotations["example.com/driver"] == "1.2"
	})
	n := api.stored()
	if n.Labels["example.com/kept"] != "yes" || n.Labels["example.com/site"] != "a" || n.Annotations["example.com/note"] != "any text" || n.Labels["example.com/late"] != "" {
		t.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
	}
	if ready := api.condition("Ready"); ready.Status != v1.ConditionTrue {
		t.Errorf("Ready: %+v", ready)
	}
	testtree.Eventually(t, "the state has both writes", func() bool {
		s := a.State()
		return s.Posted != nil && s.Posted.Time.After(began) && s.Posted.Bytes > 0 && s.Lease != nil && s.Lease.Renewed.After(began)
	})
	testtree.Eventually(t, "each is named in the log", func() bool {
		text := log.String()
		return strings.Contains(text, "setPanics panicked: a setter's fault") && strings.Contains(text, "no such device") &&
			strings.Contains(text, "setter") && strings.Contains(text, "TestSetters.func")
	})
	a.Update()
	if got := calls.Load(); got != 1 {
		t.Errorf("a setter that has not returned was called %d times", got)
	}
	close(unblock)
	testtree.Eventually(t, "it is called again", func() bool { a.Update(); return api.stored().Labels["example.com/late"] == "yes" })

	// All of it is written under the name of the Config.
	testtree.Eventually(t, "the lease is there", func() bool {
		api.mu.Lock()
		defer api.mu.Unlock()
		return api.lease != nil
	})
	for what, fields := range map[string][]metav1.ManagedFieldsEntry{"node": api.stored().ManagedFields, "lease": func() []metav1.ManagedFieldsEntry {
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.lease == nil {
			return nil
		}
		return api.lease.ManagedFields
	}()} {
		if len(fields) == 0 || fields[0].Manager != "edge-agent" {
			t.Errorf("%s is written by %+v", what, fields)
		}
	}
}

// Reasons of one's own for the node not to be ready end up in Ready.
func TestReadinessOfOnesOwn(t *testing.T) {
	api := newAPIServer(t)
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API = Own, api.config
	var network, storage, soft atomic.Pointer[error]
	from := func(p *atomic.Pointer[error]) func() error {
		return func() error {
			if err := p.Load(); err != nil {
				return *err
			}
			return nil
		}
	}
	cfg.NetworkErrors, cfg.StorageErrors, cfg.SoftRequirements = from(&network), from(&storage), from(&soft)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	running(t, a)
	testtree.Eventually(t, "ready", func() bool { return api.condition("Ready").Status == v1.ConditionTrue })
	swap, route, plugin := errors.New("swap is on"), errors.New("no route"), errors.New("no plugin")
	for _, step := range []struct {
		set    func()
		status v1.ConditionStatus
		texts  []string
	}{
		{func() { soft.Store(&swap) }, v1.ConditionTrue, []string{"swap is on"}},
		{func() { network.Store(&route); storage.Store(&plugin) }, v1.ConditionFalse, []string{"no route", "no plugin"}},
	} {
		step.set()
		a.Update()
		testtree.Eventually(t, step.texts[0], func() bool {
			c := api.condition("Ready")
			return c.Status == step.status && !slices.ContainsFunc(step.texts, func(text string) bool { return !strings.Contains(c.Message, text) })
		})
	}
}

// Mode Own posts conditions of one's own, but not the defaults that repeat what it posts
// under the kubelet's names.
func TestConditionsInModeOwn(t *testing.T) {
	api := newAPIServer(t)
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API = Own, api.config
	cfg.Conditions = append(cfg.Conditions, judgetest.Rule(t, "example.com/Short", "MemoryPressure"), judgetest.Rule(t, "example.com/Low", "memory.available < 7Gi"))
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := running(t, a)
	testtree.Eventually(t, "conditions", func() bool { return api.condition("example.com/Low").Status == v1.ConditionTrue })
	var got []string
	for _, c := range api.stored().Status.Conditions {
		got = append(got, string(c.Type))
	}
	slices.Sort(got)
	want := []string{
		"DiskPressure", "MemoryPressure", "PIDPressure", "Ready", "example.com/Low", "example.com/Short",
		"nodeprobe.dev/IOContention", "nodeprobe.dev/MemoryContention", "nodeprobe.dev/ReadonlyFilesystem",
	}
	if !slices.Equal(got, want) {
		t.Errorf("conditions %q, want %q", got, want)
	}
	state := []string{"DiskPressure", "MemoryPressure", "PIDPressure", "Ready"}
	for _, f := range a.State().Conditions {
		state = append(state, f.Type)
	}
	if slices.Sort(state); !slices.Equal(state, want) {
		t.Errorf("conditions %q in the state, want %q", state, want)
	}
	cfg.Conditions = cfg.Conditions[:len(cfg.Conditions)-1]
	if err := a.Reload(cfg); err != nil {
		t.Error(err)
	}
	testtree.Eventually(t, "one that is gone from the Config is gone from the Node", func() bool { return api.condition("example.com/Low").Type == "" })
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Whatever changes while a sample is handled, the Node gets the latest of each source.
func TestFactsAreNotLost(t *testing.T) {
	api := newAPIServer(t)
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API = Own, api.config
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	m := a.mode.(*ownMode)
	for i := range 300 {
		s := judgetest.At(time.Duration(i)*time.Second, 50)
		s.Capacity = probe.Capacity{CPUs: int64(1 + i), Memory: 8 << 30, MemoryOK: true}
		why, limit := fmt.Sprintf("leaving %d;", i), int64(i)
		var sources sync.WaitGroup
		for _, change := range []func(){
			func() { changed, _ := a.judge.Observe(s); m.observe(s, changed) },
			func() { m.leave(errors.New(why)) },
			func() { m.limitsChanged(node.VolumeLimits{"attachable-volumes-csi-d": limit}) },
			func() { m.runtimeChanged() },
			func() { a.State() },
		} {
			sources.Go(change)
		}
		sources.Wait()
		n, _, err := m.content.Initial(t.Context(), s.Time)
		if err != nil {
			t.Fatal(err)
		}
		ready := n.Status.Conditions[slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })]
		if got := n.Status.Capacity["attachable-volumes-csi-d"]; n.Status.Capacity.Cpu().Value() != int64(1+i) || got.Value() != limit || !strings.Contains(ready.Message, why) {
			t.Fatalf("round %d: capacity %v, Ready %q", i, n.Status.Capacity, ready.Message)
		}
	}
}

// An API server that is away makes nothing stuck, and what has changed meanwhile is
// posted when it is back.
func TestOutage(t *testing.T) {
	api := newAPIServer(t)
	tr := testtree.New(t, nil)
	cfg, _ := treeConfig(t, tr)
	cfg.Mode, cfg.API, cfg.LeaseDuration = Own, api.config, time.Second
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	running(t, a)
	testtree.Eventually(t, "posted", func() bool {
		s := a.State()
		return s.IsReady() == nil && api.condition("MemoryPressure").Status == v1.ConditionFalse
	})
	api.edit(func(s *apiServer) { s.refuse = func(*http.Request) bool { return true } })
	tr.Write("proc/meminfo", testtree.MemoryInUse(8369140))
	a.Sample()
	testtree.Eventually(t, "not ready", func() bool {
		s := a.State()
		return s.IsReady() != nil && s.Verdicts[pressure.MemoryPressure].Status == pressure.True
	})
	if s := a.State(); s.Alive() != nil {
		t.Errorf("stuck: %v", s.Alive())
	}
	api.edit(func(s *apiServer) { s.refuse = nil })
	testtree.Eventually(t, "posted again", func() bool {
		s := a.State()
		return s.IsReady() == nil && api.condition("MemoryPressure").Status == v1.ConditionTrue
	})
}

// The content gets what a sample has changed although no condition has: what the machine
// is and has, and whether its huge pages could be read.
func TestOwnNoticesMachine(t *testing.T) {
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API = Own, newAPIServer(t).config
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m := a.mode.(*ownMode)
	now := judgetest.At(0, 50)
	sample := func() {
		changed, _ := a.judge.Observe(now)
		m.observe(now, changed)
	}
	sample()
	for _, step := range []struct {
		name   string
		change func(s *probe.Snapshot)
	}{
		{"memory is plugged in", func(s *probe.Snapshot) { s.Capacity.Memory, s.Capacity.MemoryOK = 1<<30, true }},
		{"no CPU quota", func(s *probe.Snapshot) { s.Machine.NoCPUQuota = true }},
		{"huge pages cannot be read", func(s *probe.Snapshot) { s.Errors[probe.SourceHugePages] = errors.New("no") }},
		{"huge pages can be read again", func(s *probe.Snapshot) { s.Errors[probe.SourceHugePages] = nil }},
	} {
		now.Time = now.Time.Add(time.Second)
		step.change(now)
		sample()
		if got := m.facts.Snapshot.Time; !got.Equal(now.Time) {
			t.Errorf("%s: the facts are %s old", step.name, now.Time.Sub(got))
		}
	}
}
