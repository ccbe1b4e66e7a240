package lifecycle

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// What is reserved is not given to pods, and all the rest is.
func TestAllocatable(t *testing.T) {
	t.Parallel()
	n := newNode(t, agent.Config{
		"systemReserved": map[string]string{"cpu": "200m", "memory": "256Mi"},
		"kubeReserved":   map[string]string{"cpu": "100m", "memory": "128Mi"},
		"evictionHard":   agent.Hard(map[string]string{"memory.available": "64Mi"}),
	})
	n.startReady()
	status := n.history.Last().Status
	for _, test := range []struct {
		name     corev1.ResourceName
		reserved string
		bit      string // the least more than there is
	}{
		{corev1.ResourceCPU, "300m", "1m"},
		{corev1.ResourceMemory, "448Mi", "1"},
	} {
		fits := status.Allocatable[test.name]
		all := fits.DeepCopy()
		all.Add(resource.MustParse(test.reserved))
		for name, pages := range status.Capacity {
			if test.name == corev1.ResourceMemory && strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				all.Add(pages) // kept from those who ask for memory
			}
		}
		if capacity := status.Capacity[test.name]; all.Cmp(capacity) != 0 {
			t.Errorf("%s: %s allocatable of %s, with %s reserved", test.name, fits.String(), capacity.String(), test.reserved)
		}
		more := fits.DeepCopy()
		more.Add(resource.MustParse(test.bit))
		tooMuch := n.newPod(corev1.ResourceList{test.name: more})
		tooMuch.waitRefused("Insufficient " + string(test.name))
		n.newPod(corev1.ResourceList{test.name: fits}).waitBound()
		tooMuch.checkUnbound()
		n.newPod(corev1.ResourceList{test.name: resource.MustParse(test.bit)}).waitRefused("Insufficient " + string(test.name))
	}
}

// The number of pods is bounded, too.
func TestMaxPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, agent.Config{"maxPods": 1})
	n.startReady()
	first := n.newPod(nil)
	first.waitBound()
	second := n.newPod(nil)
	second.waitRefused("Too many pods")
	first.delete()
	second.waitBound()
}

// A cordoned Node takes no pods, and says that it was cordoned where "kubectl
// describe node" looks: at Events with its UID.
func TestCordoned(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.startReady()
	mine := "involvedObject.kind=Node,involvedObject.uid=" + string(n.history.Last().UID)
	cordon := func(patch string) time.Time {
		t.Helper()
		at := time.Now()
		must.Get(n.client.CoreV1().Nodes().Patch(t.Context(), n.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
		return at
	}
	at := cordon(`{"spec":{"unschedulable":true}}`)
	n.waitEvent(mine, "NodeNotSchedulable", n.name)
	n.wait("the node is tainted", at, func(node *corev1.Node) bool {
		return tainted(node, corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	})
	p := n.newRefused("unschedulable")
	at = cordon(`{"spec":{"unschedulable":null}}`)
	n.waitEvent(mine, "NodeSchedulable", n.name)
	n.wait("the taint is gone", at, func(node *corev1.Node) bool { return len(node.Spec.Taints) == 0 })
	p.waitBound()
	for _, s := range n.since(at) {
		if s.Node == nil || !has(s.Node, allWell) {
			t.Errorf("cordoned: %s", describe(s.Node))
		}
	}
}
