package parity

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// settleTime is what the controllers have to follow a change of conditions with
// their taints, and a kubelet to tell what it tells in a patch of its own.
const settleTime = 90 * time.Second

// calm is a node as it should be: ready, no pressure, and all of the images.
func calm(node *corev1.Node) bool {
	for _, condition := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if !nodewatch.Has(condition, corev1.ConditionFalse)(node) {
			return false
		}
	}
	return nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue)(node) && len(node.Status.Images) == shownImages
}

// transition makes a condition of both change, and compares the Nodes and the
// patches by which they changed.
func (s *stage) transition(condition corev1.NodeConditionType, status corev1.ConditionStatus, allowed *allowance, act func() error) {
	s.t.Helper()
	since := time.Now()
	must.OK(s.t, act())
	when := string(condition) + " " + string(status)
	s.await(when, since, nodewatch.Has(condition, status))
	s.t.Logf("%s: both tell after %s", when, time.Since(since).Round(100*time.Millisecond))
	s.compareNodes(when, allowed, nodewatch.Has(condition, status))
	s.comparePatches(when, since, allowed, changes(condition, status))
}

// cordon has an administrator cordon both, or uncordon them, and compares the Nodes.
// What both tell of that are Events.
func (s *stage) cordon(unschedulable bool) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable)
	for _, name := range []string{kubeletNode, ourNode} {
		_ = must.Get(s.client.CoreV1().Nodes().Patch(s.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(s.t)
	}
	s.compareNodes(fmt.Sprintf("unschedulable %t", unschedulable), both, func(node *corev1.Node) bool {
		return node.Spec.Unschedulable == unschedulable && nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue)(node)
	})
	// A kubelet looks every two seconds: what is undone before, it does not see.
	s.awaitEvent(map[bool]string{true: "NodeNotSchedulable", false: "NodeSchedulable"}[unschedulable])
}

func (s *stage) await(when string, since time.Time, match func(*corev1.Node) bool) {
	s.t.Helper()
	ctx, stop := context.WithTimeout(s.t.Context(), patience)
	defer stop()
	for _, name := range []string{kubeletNode, ourNode} {
		if _, err := s.seen[name].Wait(ctx, since, match); err != nil {
			s.t.Fatalf("%s: %v", when, err)
		}
	}
}

// compareNodes compares the Nodes when both have become something and all others
// have done with them what they do.
func (s *stage) compareNodes(when string, allowed *allowance, match func(*corev1.Node) bool) {
	s.t.Helper()
	s.compareNodesOf(when, kubeletNode, ourNode, allowed, match)
}

func (s *stage) compareNodesOf(when, first, second string, allowed *allowance, match func(*corev1.Node) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(settleTime); ; time.Sleep(200 * time.Millisecond) {
		theirs, ours := s.get(first), s.get(second)
		bad, seen := compare(normalNode(theirs), normalNode(ours), allowed)
		ready := match(theirs) && match(ours) && settled(theirs) && settled(ours)
		if ready && len(bad) == 0 {
			s.note(allowed, seen)
			return
		}
		if time.Now().After(deadline) {
			if !ready {
				s.t.Errorf("%s: the nodes do not come to rest: %v; %v", when, theirs.Status.Conditions, ours.Status.Conditions)
			}
			for _, b := range bad {
				s.t.Errorf("%s: %s", when, b)
			}
			return
		}
	}
}

func (s *stage) get(name string) *corev1.Node {
	s.t.Helper()
	return must.Get(s.client.CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{}))(s.t)
}

// settled reports whether the controllers have done their part: a podCIDR, and the
// taints that follow from the conditions.
func settled(node *corev1.Node) bool {
	want := map[string]bool{
		corev1.TaintNodeMemoryPressure: nodewatch.Has(corev1.NodeMemoryPressure, corev1.ConditionTrue)(node),
		corev1.TaintNodeDiskPressure:   nodewatch.Has(corev1.NodeDiskPressure, corev1.ConditionTrue)(node),
		corev1.TaintNodePIDPressure:    nodewatch.Has(corev1.NodePIDPressure, corev1.ConditionTrue)(node),
		corev1.TaintNodeNotReady:       nodewatch.Has(corev1.NodeReady, corev1.ConditionFalse)(node),
		corev1.TaintNodeUnschedulable:  node.Spec.Unschedulable,
	}
	for key, expected := range want {
		if expected != slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key }) {
			return false
		}
	}
	_, err := netip.ParsePrefix(node.Spec.PodCIDR)
	return err == nil && slices.Equal(node.Spec.PodCIDRs, []string{node.Spec.PodCIDR})
}

// normalNode is a Node without what differs for reasons of its own: its identity,
// and when something happened.
func normalNode(node *corev1.Node) map[string]any {
	node = node.DeepCopy()
	node.ObjectMeta = metav1.ObjectMeta{
		Labels: node.Labels, Annotations: node.Annotations, Finalizers: node.Finalizers, OwnerReferences: node.OwnerReferences,
	}
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.Time{}, metav1.Time{}
	}
	// The controllers add theirs in the order in which they get to know.
	slices.SortFunc(node.Spec.Taints, func(a, b corev1.Taint) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Effect, b.Effect))
	})
	for i := range node.Spec.Taints {
		node.Spec.Taints[i].TimeAdded = nil
	}
	// That there is one, and of which form, settled checks.
	node.Spec.PodCIDR, node.Spec.PodCIDRs = "", nil
	object := asMap(node)
	withoutOwn(object)
	return rename(object).(map[string]any)
}

// compareOwn checks which conditions nodeprobe posts beside the kubelet's.
func (s *stage) compareOwn() {
	s.t.Helper()
	for name, want := range map[string]string{kubeletNode: "[]", ourNode: "[IOContention MemoryContention ReadonlyFilesystem]"} {
		own := []string{}
		for _, condition := range s.get(name).Status.Conditions {
			if kind, ok := strings.CutPrefix(string(condition.Type), ownConditions); ok {
				own = append(own, kind)
			}
		}
		if got := fmt.Sprint(own); got != want {
			s.t.Errorf("%s has %s of its own, want %s", name, got, want)
		}
	}
}

// rename replaces the nodes' names wherever they stand.
func rename(value any) any {
	switch v := value.(type) {
	case string:
		return strings.NewReplacer(kubeletNode, "NODE", ourNode, "NODE", bareNode, "NODE").Replace(v)
	case []any:
		for i := range v {
			v[i] = rename(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = rename(v[key])
		}
	}
	return value
}

// compareBare compares the kubelet's Node with that of a nodeprobe that knows of
// no container runtime.
func (s *stage) compareBare() {
	s.t.Helper()
	// Only newer runtimes have these.
	if runtime := s.get(kubeletNode).Status; runtime.RuntimeHandlers == nil {
		delete(*bare, "status.runtimeHandlers")
	}
	if s.get(kubeletNode).Status.Features == nil {
		delete(*bare, "status.features")
	}
	s.compareNodesOf("without a container runtime", kubeletNode, bareNode, bare, nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue))
}
