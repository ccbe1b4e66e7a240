package lifecycle

import (
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// A dead nodeprobe is missed as a dead kubelet would be. Once it is back, all is
// as it was, and what was True and still is was never said to be False.
func TestSilent(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	// If all Nodes fall silent, the controllers blame themselves.
	neighbour := newNode(t, nil)
	neighbour.startReady()
	for name, silence := range map[string]struct {
		begin func(t *testing.T, a *agent.Agent)
		end   func(t *testing.T, n *node, a *agent.Agent)
	}{
		"killed": {
			func(t *testing.T, a *agent.Agent) { signal(t, a, syscall.SIGKILL); <-a.Exited() },
			func(_ *testing.T, n *node, _ *agent.Agent) { n.start() },
		},
		"stopped": {
			func(t *testing.T, a *agent.Agent) { signal(t, a, syscall.SIGSTOP) },
			func(t *testing.T, _ *node, a *agent.Agent) { signal(t, a, syscall.SIGCONT) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := pressure.DiskForTest(t, 16)
			n := newNode(t, agent.Config{
				"rootDirectory": fs.Dir, "evictionHard": agent.Hard(map[string]string{"nodefs.available": "30%"}),
				// In each zone the controllers give up one Node in ten seconds.
				"nodeLabels": map[string]string{corev1.LabelTopologyZone: name},
			})
			a := n.startReady()
			must.OK(t, fs.Fill(1<<20))
			before := n.wait("the disk is full", a.Started, underDiskPressure)
			refused := n.silent(before, func() { silence.begin(t, a) }, func() { silence.end(t, n, a) })
			must.OK(t, fs.Empty())
			refused.waitBound()
			for _, s := range neighbour.since(before.At) {
				if s.Node == nil || !has(s.Node, allWell) || len(s.Node.Spec.Taints) > 0 {
					t.Errorf("the neighbour: %s", describe(s.Node))
				}
			}
		})
	}
}

func signal(t *testing.T, a *agent.Agent, s syscall.Signal) {
	t.Helper()
	must.OK(t, syscall.Kill(a.PID(), s))
}

// fullDisk is allWell but for the disk.
var fullDisk = conditions{
	corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
	corev1.NodeDiskPressure: corev1.ConditionTrue, corev1.NodePIDPressure: corev1.ConditionFalse,
}

func underDiskPressure(node *corev1.Node) bool {
	return has(node, fullDisk) && len(node.Spec.Taints) == 1 &&
		tainted(node, corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
}

// silent has nodeprobe fall silent for longer than the grace period and come
// back, and judges what was seen of the Node. It returns a pod that was refused.
func (n *node) silent(before nodewatch.Sighting, begin, end func()) *pod {
	n.t.Helper()
	lost := time.Now()
	begin()
	// The taint of the disk goes last. A Node that is back before that loses it
	// nevertheless, and is without any taint for a moment.
	missed := n.wait("the node is given up", lost, func(node *corev1.Node) bool {
		return has(node, unknown) && len(node.Spec.Taints) == 2 &&
			tainted(node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
	})
	n.t.Logf("given up and tainted after %s", missed.At.Sub(lost).Round(100*time.Millisecond))
	for _, c := range missed.Node.Status.Conditions {
		if _, ours := unknown[c.Type]; ours && (c.Reason != "NodeStatusUnknown" || c.Message != "Kubelet stopped posting node status.") {
			n.t.Errorf("given up: %+v", c)
		}
	}
	refused := n.newRefused(byTaint)

	found := time.Now()
	end()
	back := n.wait("all is as it was", found, underDiskPressure)
	n.t.Logf("back after %s", back.At.Sub(found).Round(100*time.Millisecond))
	if back.Node.UID != before.Node.UID {
		n.t.Error("the node was registered anew")
	}
	for condition, status := range fullDisk {
		n.checkDetour(n.since(before.At), condition, status)
		c := nodewatch.Condition(back.Node, condition)
		// The API has whole seconds.
		if at := c.LastTransitionTime.Time; at.Before(found.Truncate(time.Second)) || at.After(back.At) {
			n.t.Errorf("came back between %s and %s: %+v", found, back.At, c)
		}
		if c.LastHeartbeatTime.Before(&c.LastTransitionTime) {
			n.t.Errorf("its last sign of life is older than itself: %+v", c)
		}
	}
	refused.checkUnbound() // the disk is still full
	return refused
}

// checkDetour wants a condition to have had one status but for one time that it
// was Unknown.
func (n *node) checkDetour(seen []nodewatch.Sighting, condition corev1.NodeConditionType, status corev1.ConditionStatus) {
	n.t.Helper()
	var took []corev1.ConditionStatus
	for _, s := range seen {
		if s.Node == nil {
			n.t.Fatal("the node was deleted")
		}
		if now := nodewatch.Condition(s.Node, condition).Status; len(took) == 0 || took[len(took)-1] != now {
			took = append(took, now)
		}
	}
	if len(took) != 3 || took[0] != status || took[1] != corev1.ConditionUnknown || took[2] != status {
		n.t.Errorf("%s was %v, want %s with one time of Unknown", condition, took, status)
	}
}
