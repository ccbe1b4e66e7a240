package lifecycle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// Each pressure becomes a taint and keeps pods away, for as long as it lasts.
func TestPressure(t *testing.T) {
	t.Parallel()
	disk := pressure.DiskForTest(t, 64)
	loads := must.Get(pressure.Loads(disk))(t)
	taints := map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: corev1.TaintNodeMemoryPressure,
		corev1.NodeDiskPressure:   corev1.TaintNodeDiskPressure,
		corev1.NodePIDPressure:    corev1.TaintNodePIDPressure,
	}
	for _, l := range loads {
		t.Run(string(l.Condition), func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { must.OK(t, l.Release()) })
			n := newNode(t, agent.Config{
				"bpf": "auto", "rootDirectory": disk.Dir, "evictionHard": agent.Hard(map[string]string{l.Signal: l.Threshold}),
			})
			a := n.startReady()

			pressed := time.Now()
			must.OK(t, l.Press())
			seen := n.wait("the condition is True", pressed, nodewatch.Has(l.Condition, corev1.ConditionTrue))
			taintedAt := n.wait("the node is tainted", pressed, func(node *corev1.Node) bool {
				return tainted(node, taints[l.Condition], corev1.TaintEffectNoSchedule)
			})
			p := n.newRefused(byTaint)

			released := time.Now()
			must.OK(t, l.Release())
			over := n.wait("the condition is False", released, nodewatch.Has(l.Condition, corev1.ConditionFalse))
			free := n.wait("the taint is gone", released, func(node *corev1.Node) bool { return len(node.Spec.Taints) == 0 })
			p.waitBound()
			t.Logf("True after %s, tainted %s later; False after %s, free %s later",
				seen.At.Sub(pressed), taintedAt.At.Sub(seen.At), over.At.Sub(released), free.At.Sub(over.At))

			n.checkOnly(a.Started, l.Condition)
			for _, s := range n.since(seen.At) {
				if s.At.Before(over.At) && !nodewatch.Has(l.Condition, corev1.ConditionTrue)(s.Node) {
					t.Errorf("in between: %s", describe(s.Node))
				}
			}
		})
	}
}

// checkOnly wants all conditions but one to have been well since a time.
func (n *node) checkOnly(since time.Time, but corev1.NodeConditionType) {
	n.t.Helper()
	for _, s := range n.since(since) {
		if s.Node == nil {
			n.t.Fatal("the node was deleted")
		}
		for condition, status := range allWell {
			if condition != but && !nodewatch.Has(condition, status)(s.Node) {
				n.t.Errorf("%s: %s", condition, describe(s.Node))
			}
		}
	}
}
