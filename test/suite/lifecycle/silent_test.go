package lifecycle

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

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
			fs := pressure.Disk(t, 16)
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
			neighbour.wantAlways(before.At, func(node *corev1.Node) bool { return allWell.In(node) && len(node.Spec.Taints) == 0 })
		})
	}
}

func signal(t *testing.T, a *agent.Agent, s syscall.Signal) {
	t.Helper()
	must.OK(t, syscall.Kill(a.PID(), s))
}

func underDiskPressure(node *corev1.Node) bool {
	return fullDisk.In(node) && len(node.Spec.Taints) == 1 &&
		tainted(node, corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
}

// silent has nodeprobe fall silent for longer than the grace period and come
// back, and judges what was seen of the Node. It returns a pod that was refused.
func (n *node) silent(before nodewatch.Sighting, begin, end func()) *pod {
	n.T.Helper()
	lost := time.Now()
	begin()
	// The taint of the disk goes last. A Node that is back before that loses it
	// nevertheless, and is without any taint for a moment.
	missed := n.wait("the node is given up", lost, func(node *corev1.Node) bool {
		return unknown.In(node) && len(node.Spec.Taints) == 2 &&
			tainted(node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
	})
	n.T.Logf("given up and tainted after %s", missed.At.Sub(lost).Round(100*time.Millisecond))
	for _, c := range missed.Node.Status.Conditions {
		if _, ours := unknown[c.Type]; ours && (c.Reason != "NodeStatusUnknown" || c.Message != "Kubelet stopped posting node status.") {
			n.T.Errorf("given up: %+v", c)
		}
	}
	refused := n.newRefused(byTaint)

	found := time.Now()
	end()
	back := n.wait("all is as it was", found, underDiskPressure)
	n.T.Logf("back after %s", back.At.Sub(found).Round(100*time.Millisecond))
	if back.Node.UID != before.Node.UID {
		n.T.Error("the node was registered anew")
	}
	for condition, status := range fullDisk {
		n.checkDetour(n.since(before.At), condition, status)
		c := nodewatch.Condition(back.Node, condition)
		// The API has whole seconds.
		if at := c.LastTransitionTime.Time; at.Before(found.Truncate(time.Second)) || at.After(back.At) {
			n.T.Errorf("came back between %s and %s: %+v", found, back.At, c)
		}
		if c.LastHeartbeatTime.Before(&c.LastTransitionTime) {
			n.T.Errorf("its last sign of life is older than itself: %+v", c)
		}
	}
	refused.checkUnbound() // the disk is still full
	return refused
}

// checkDetour wants a condition to have had one status but for one time that it
// was Unknown.
func (n *node) checkDetour(seen []nodewatch.Sighting, condition corev1.NodeConditionType, status corev1.ConditionStatus) {
	n.T.Helper()
	var took []corev1.ConditionStatus
	for _, s := range seen {
		if s.Node == nil {
			n.T.Fatal("the node was deleted")
		}
		if now := nodewatch.Condition(s.Node, condition).Status; len(took) == 0 || took[len(took)-1] != now {
			took = append(took, now)
		}
	}
	if len(took) != 3 || took[0] != status || took[1] != corev1.ConditionUnknown || took[2] != status {
		n.T.Errorf("%s was %v, want %s with one time of Unknown", condition, took, status)
	}
}

const (
	cloudTaint     = "node.cloudprovider.kubernetes.io/uninitialized"
	providedNodeIP = "alpha.kubernetes.io/provided-node-ip"
)

// A cloud controller, played by the test, has the last word on addresses, and the
// Node takes no pods until it has spoken.
func TestExternalCloudProvider(t *testing.T) {
	t.Parallel()
	ip := need.Address(t)
	for _, test := range []struct {
		name, nodeIP string
		addresses    []corev1.NodeAddressType // until the controller has spoken
	}{
		{"node IP", ip, []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeHostName}},
		{"no node IP", "", []corev1.NodeAddressType{corev1.NodeHostName}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, agent.Config{
				"cloudProvider": "external", "nodeIP": test.nodeIP, "nodeStatusReportFrequency": "1s",
			})
			a := n.start()
			// By now others may have removed the taint that every new Node gets.
			n.wait("the node is ready, and the cloud's", a.Started, func(node *corev1.Node) bool {
				return allWell.In(node) && len(node.Spec.Taints) == 1 && tainted(node, cloudTaint, corev1.TaintEffectNoSchedule)
			})
			p := n.newRefused(byTaint)
			n.waitPosts(time.Now(), 3)
			var types []corev1.NodeAddressType
			for _, address := range n.history.Last().Status.Addresses {
				types = append(types, address.Type)
			}
			if !slices.Equal(types, test.addresses) {
				t.Errorf("addresses of a node that no cloud controller knows: %+v, want %v", n.history.Last().Status.Addresses, test.addresses)
			}

			given := n.playCloudController("203.0.113.7")
			n.wait("the taint is gone", a.Started, func(node *corev1.Node) bool { return len(node.Spec.Taints) == 0 })
			p.waitBound()
			n.waitKept(given, test.nodeIP)
			given = n.playCloudController("203.0.113.8") // the old one was given back
			n.waitKept(given, test.nodeIP)
			a.Stop()
			n.start()
			n.waitKept(given, test.nodeIP)
			n.wantAlways(time.Time{}, allWell.In)
			if first := n.history.All()[0]; !tainted(first.Node, cloudTaint, corev1.TaintEffectNoSchedule) {
				t.Errorf("created with %v", first.Node.Spec.Taints)
			}
		})
	}
}

// playCloudController does what one does with a Node that it knows, and returns
// the addresses that it has set.
func (n *node) playCloudController(external string) []corev1.NodeAddress {
	n.T.Helper()
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.11"},
		{Type: corev1.NodeExternalIP, Address: external},
		{Type: corev1.NodeInternalDNS, Address: "node.cloud.example"},
		{Type: corev1.NodeExternalDNS, Address: "node.example.com"},
		{Type: corev1.NodeHostName, Address: "node.cloud.example"},
	}
	nodes := n.Client.CoreV1().Nodes()
	change := func(edit func(*corev1.Node), write func(context.Context, *corev1.Node, metav1.UpdateOptions) (*corev1.Node, error)) {
		must.OK(n.T, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			node, err := nodes.Get(n.T.Context(), n.Name, metav1.GetOptions{})
			if err == nil {
				edit(node)
				_, err = write(n.T.Context(), node, metav1.UpdateOptions{})
			}
			return err
		}))
	}
	change(func(node *corev1.Node) { node.Status.Addresses = addresses }, nodes.UpdateStatus)
	change(func(node *corev1.Node) {
		node.Spec.ProviderID = "example://zone/instance-7"
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == cloudTaint })
	}, nodes.Update)
	return addresses
}

// waitKept waits until the status has been posted many times more, and wants
// each version to have what the cloud controller gave.
func (n *node) waitKept(addresses []corev1.NodeAddress, nodeIP string) {
	n.T.Helper()
	given := n.wait("the addresses are there", time.Time{}, func(node *corev1.Node) bool {
		return apiequality.Semantic.DeepEqual(node.Status.Addresses, addresses) && node.Spec.ProviderID != ""
	})
	n.waitPosts(time.Now(), 5)
	for _, s := range n.since(given.At) {
		if s.Node == nil {
			n.T.Fatal("the node was deleted")
		}
		if !apiequality.Semantic.DeepEqual(s.Node.Status.Addresses, addresses) || s.Node.Spec.ProviderID != "example://zone/instance-7" {
			n.T.Errorf("given %+v, now %+v, provider ID %q", addresses, s.Node.Status.Addresses, s.Node.Spec.ProviderID)
		}
		if ip, ok := s.Node.Annotations[providedNodeIP]; ip != nodeIP || ok != (nodeIP != "") {
			n.T.Errorf("annotation %s: %q, want %q", providedNodeIP, ip, nodeIP)
		}
	}
}

func (n *node) waitPosts(since time.Time, times int) {
	n.T.Helper()
	for range times {
		last := nodewatch.Condition(n.history.Last(), corev1.NodeReady).LastHeartbeatTime
		since = n.wait("the status is posted", since, func(node *corev1.Node) bool {
			now := nodewatch.Condition(node, corev1.NodeReady).LastHeartbeatTime
			return last.Before(&now)
		}).At
	}
}
