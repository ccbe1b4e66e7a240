// Package e2e tests the real nodeprobe, in mode own, against a real API server:
// what it writes there, what it leaves alone, and how it gets over everything
// that can go wrong in between.
//
// The tests take no wall-clock time for granted: they wait for a state, with a
// generous deadline, and then judge by what the API server, the fault proxy and
// nodeprobe's log have recorded. They share two control planes, one of which
// is stopped and started, and give each nodeprobe a Node of its own.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

// node is a Node, with what these tests do to it.
type node struct{ *stage.Node }

func newNode(t *testing.T, cp *controlplane.ControlPlane, config agent.Config) *node {
	t.Helper()
	return &node{stage.New(t, cp, config)}
}

// changed returns what the agent has logged of changes of the kubelet's conditions.
// Those of our own follow rules of their own.
func changed(t *testing.T, a *agent.Agent) []agent.Record {
	t.Helper()
	return slices.DeleteFunc(stage.Logged(t, a, "condition changed"), func(r agent.Record) bool {
		return strings.Contains(r.Line, `"condition":"nodeprobe.dev/`)
	})
}

func waitChanged(t *testing.T, a *agent.Agent, n int) agent.Record {
	t.Helper()
	stage.Until(t, "a condition has changed", func() bool { return len(changed(t, a)) > n })
	return changed(t, a)[n]
}

const (
	foreignKey       = "example.com/foreign"
	foreignDevice    = "example.com/device" // four of them, one of which is broken
	foreignCondition = "ExampleProblem"
)

// addForeign puts onto the Node what others put there: an administrator, a
// device plugin, a problem detector.
func (n *node) addForeign() {
	n.T.Helper()
	n.patch(map[string]any{
		"metadata": map[string]any{
			"labels": map[string]string{foreignKey: "label"}, "annotations": map[string]string{foreignKey: "annotation"},
		},
		"spec": map[string]any{"taints": append(n.MustGet().Spec.Taints, corev1.Taint{Key: foreignKey, Value: "taint", Effect: corev1.TaintEffectNoExecute})},
	})
	now := metav1.Now()
	n.patchStatus(map[string]any{
		"capacity":    map[string]string{foreignKey: "3", foreignDevice: "4"},
		"allocatable": map[string]string{foreignDevice: "3"},
		"conditions": []corev1.NodeCondition{{
			Type: foreignCondition, Status: corev1.ConditionTrue, Reason: "Example", Message: "for example",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	})
}

func (n *node) wantForeign() {
	n.T.Helper()
	got := n.MustGet()
	condition := nodewatch.Condition(got, foreignCondition)
	capacity := got.Status.Capacity[foreignKey]
	devices, usable := got.Status.Capacity[foreignDevice], got.Status.Allocatable[foreignDevice]
	if got.Labels[foreignKey] != "label" || got.Annotations[foreignKey] != "annotation" ||
		!stage.HasTaint(got, corev1.Taint{Key: foreignKey, Value: "taint", Effect: corev1.TaintEffectNoExecute}) ||
		condition.Status != corev1.ConditionTrue || condition.Message != "for example" || capacity.Cmp(resource.MustParse("3")) != 0 ||
		devices.Cmp(resource.MustParse("4")) != 0 || usable.Cmp(resource.MustParse("3")) != 0 {
		n.T.Errorf("something foreign was lost: labels %v, annotations %v, taints %+v, condition %+v, capacity %v, allocatable %v",
			got.Labels, got.Annotations, got.Spec.Taints, condition, got.Status.Capacity, got.Status.Allocatable)
	}
}

func (n *node) patchAs(manager string, patch map[string]any, subresources ...string) {
	n.T.Helper()
	data := must.Get(json.Marshal(patch))(n.T)
	options := metav1.PatchOptions{FieldManager: manager}
	must.Get(n.Client.CoreV1().Nodes().Patch(context.Background(), n.Name, types.StrategicMergePatchType, data, options, subresources...))(n.T)
}

func (n *node) patch(patch map[string]any) {
	n.T.Helper()
	n.patchAs("", patch)
}

func (n *node) patchStatus(status map[string]any) {
	n.T.Helper()
	n.patchAs("", map[string]any{"status": status}, "status")
}

// markUnknown does what the node lifecycle controller does to a node that it
// takes for dead.
func (n *node) markUnknown() {
	n.T.Helper()
	now := metav1.Now()
	var conditions []corev1.NodeCondition
	for _, c := range stage.BuiltIn {
		conditions = append(conditions, corev1.NodeCondition{
			Type: c, Status: corev1.ConditionUnknown, LastTransitionTime: now,
			Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.",
		})
	}
	n.patchStatus(map[string]any{"conditions": conditions})
}

func (n *node) waitMended() {
	n.T.Helper()
	n.Eventually("the conditions are mended", func(got *corev1.Node) error {
		for _, c := range stage.BuiltIn {
			want := corev1.ConditionFalse
			if c == corev1.NodeReady {
				want = corev1.ConditionTrue
			}
			if condition := nodewatch.Condition(got, c); condition.Status != want || condition.Reason == "NodeStatusUnknown" {
				return fmt.Errorf("%+v", condition)
			}
		}
		return nil
	})
}

// What others have written stays, also through patches of everything that is
// nodeprobe's own.
func TestForeignWrites(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusReportFrequency": "1s"})
	a := n.StartReady()
	n.addForeign()
	n.markUnknown()
	n.waitMended()
	const posted = `nodeprobe_status_patches_total{reason="period",result="success"}`
	before := must.Get(a.Metric(t.Context(), posted))(t)
	stage.Until(t, "the unchanged status is posted twice more", func() bool { return must.Get(a.Metric(t.Context(), posted))(t) >= before+2 })
	n.wantForeign()
	if got := n.MustGet().Status.Allocatable[foreignKey]; got.Cmp(resource.MustParse("3")) != 0 {
		t.Errorf("allocatable of the foreign resource: %s, want 3", got.String())
	}
}

// A controller that marks the node Unknown does not tell anybody. nodeprobe
// sees it by its watch: neither of its own clocks comes into play here.
func TestMendsUnknown(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusUpdateFrequency": "1h", "nodeStatusReportFrequency": "1h"})
	n.StartReady()
	// Once more often than changes are posted in a burst.
	for range 4 {
		before := time.Now().Truncate(time.Second)
		n.markUnknown()
		n.waitMended()
		now := n.MustGet()
		for _, kind := range stage.BuiltIn {
			c := nodewatch.Condition(now, kind)
			if c.LastTransitionTime.Time.Before(before) {
				t.Errorf("%s changed at %s, want not before %s", c.Type, c.LastTransitionTime, before)
			}
		}
	}
}
