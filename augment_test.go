package nodeprobe

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// kubeletNode is a Node that a kubelet wrote so long ago.
func kubeletNode(age time.Duration) *v1.Node {
	n := writtenBy("kubelet", "status", age)
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	n.Name, n.UID, n.ResourceVersion = "192.0.2.7", "kubelets", "1"
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse}}
	return n
}

// Mode Augment posts its conditions beside a kubelet's, touches nothing else, and removes
// them when Run ends if it is to. Cleanup removes what was left.
func TestAugment(t *testing.T) {
	for _, remove := range []bool{true, false} {
		api := newAPIServer(t)
		api.node = kubeletNode(time.Second)
		cfg, _ := treeConfig(t, testtree.New(t, nil))
		cfg.Mode, cfg.API, cfg.FieldManager, cfg.RemoveConditions = Augment, api.config, "edge-agent", remove
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		stop := running(t, a)
		testtree.Eventually(t, "conditions", func() bool {
			s := a.State()
			return len(api.stored().Status.Conditions) == 1+len(cfg.Conditions) && s.IsReady() == nil
		})
		if s := a.State(); s.Posted == nil || s.Posted.Time.IsZero() || s.Lease != nil {
			t.Errorf("state: posted %+v, lease %+v", s.Posted, s.Lease)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		left := len(api.stored().Status.Conditions)
		if want := map[bool]int{true: 1, false: 1 + len(cfg.Conditions)}[remove]; left != want {
			t.Errorf("remove %t: %d conditions are left, want %d", remove, left, want)
		}
		removed, err := Cleanup(t.Context(), cfg)
		if err != nil || len(removed) != left-1 {
			t.Errorf("Cleanup: %q, %v", removed, err)
		}
		if got := api.stored().Status.Conditions; len(got) != 1 || got[0].Type != v1.NodeMemoryPressure {
			t.Errorf("after Cleanup: %+v", got)
		}
		api.mu.Lock()
		if i := slices.IndexFunc(api.requests, func(r string) bool {
			return strings.Contains(r, "lease") || strings.HasPrefix(r, http.MethodPost+" /api/v1/nodes")
		}); i >= 0 {
			t.Errorf("it has sent %s", api.requests[i])
		}
		api.mu.Unlock()
	}
	for _, mode := range []Mode{Observe, Augment, Own} {
		cfg, _ := treeConfig(t, testtree.New(t, nil))
		cfg.Mode = mode
		if _, err := Cleanup(t.Context(), cfg); err == nil || fieldErrorsOf(err)["API"] == nil {
			t.Errorf("mode %s: Cleanup without an API server: %v", mode, err)
		}
	}
}

// The latest findings are posted, no matter which goroutine sets them, and nothing any more
// once Run has ended.
func TestAugmentPostsTheLatest(t *testing.T) {
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API = Augment, newAPIServer(t).config
	cfg.Conditions = []pressure.Rule{judgetest.Rule(t, "example.com/Short", "memory.available < 10%")}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m := a.mode.(*augmentMode)
	status := func() string {
		draft := m.content.Draft(t.Context(), kubeletNode(time.Second), judgetest.Begin, true)
		if draft.Patch == nil {
			return ""
		}
		body, err := draft.Patch()
		if err != nil {
			t.Fatal(err)
		}
		var patch v1.Node
		if err := json.Unmarshal(body, &patch); err != nil || len(patch.Status.Conditions) != 1 {
			t.Fatalf("%s: %v", body, err)
		}
		return string(patch.Status.Conditions[0].Status)
	}
	for i := range 2_000 {
		s, want := judgetest.At(time.Duration(i)*time.Second, 50), "False"
		if i%2 == 1 {
			s, want = judgetest.At(time.Duration(i)*time.Second, 5), "True"
		}
		var adopting sync.WaitGroup
		for range 8 {
			adopting.Go(m.set)
		}
		runtime.Gosched()
		changed, _ := a.judge.Observe(s)
		m.observe(s, changed)
		adopting.Wait()
		if got := status(); got != want {
			t.Fatalf("sample %d: %q is posted, want %s", i, got, want)
		}
	}
	m.exit()
	m.observe(judgetest.At(time.Hour, 50), true) // as of a Reload
	if got := status(); got != "" {
		t.Errorf("after the exit %s is posted", got)
	}
}

// Mode Own refuses to run beside a kubelet that is alive, and then has written nothing.
func TestOccupied(t *testing.T) {
	api := newAPIServer(t)
	api.node = kubeletNode(time.Second)
	api.lease = renewedBy("kubelet", time.Second)
	api.lease.Name, api.lease.TypeMeta = "192.0.2.7", metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Mode, cfg.API, cfg.ExitMessage = Own, api.config, "bye"
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); !errors.Is(err, ErrOccupied) || !strings.Contains(err.Error(), "kubelet renewed its lease") {
		t.Errorf("Run: %v", err)
	}
	if i := slices.IndexFunc(api.requests, func(r string) bool { return !strings.HasPrefix(r, http.MethodGet) }); i >= 0 {
		t.Errorf("it has sent %s", api.requests[i])
	}
}

// A shadow reads the Node and writes nothing.
func TestShadow(t *testing.T) {
	api := newAPIServer(t)
	api.node = kubeletNode(time.Second)
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.Shadow, cfg.API = true, api.config
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	running(t, a)
	testtree.Eventually(t, "ready", func() bool { s := a.State(); return s.IsReady() == nil })
	api.mu.Lock()
	defer api.mu.Unlock()
	if i := slices.IndexFunc(api.requests, func(r string) bool { return !strings.HasPrefix(r, http.MethodGet) }); i >= 0 || len(api.requests) == 0 {
		t.Errorf("it has sent %q", api.requests)
	}
}

// renewedBy is a Lease that a manager renewed so long ago.
func renewedBy(manager string, age time.Duration) *coordinationv1.Lease {
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now().Add(-age)}}}
	l.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`)}}
	return l
}

// writtenBy is a Node whose status a manager wrote so long ago.
func writtenBy(manager, subresource string, age time.Duration) *v1.Node {
	at := metav1.NewTime(time.Now().Add(-age))
	n := &v1.Node{}
	n.Name = "n"
	n.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", Subresource: "status", Time: &at},
		{Manager: manager, Subresource: subresource, Time: &at},
	}
	return n
}
