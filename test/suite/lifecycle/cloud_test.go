package lifecycle

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

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
				return has(node, allWell) && len(node.Spec.Taints) == 1 && tainted(node, cloudTaint, corev1.TaintEffectNoSchedule)
			})
			p := n.newRefused(byTaint)
			n.checkMayNotUntaint()
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
			for i, s := range n.history.All() {
				if s.Node == nil || !has(s.Node, allWell) {
					t.Errorf("version %d: %s", i, describe(s.Node))
				}
			}
			if first := n.history.All()[0]; !tainted(first.Node, cloudTaint, corev1.TaintEffectNoSchedule) {
				t.Errorf("created with %v", first.Node.Spec.Taints)
			}
		})
	}
}

// checkMayNotUntaint wants the API server to keep a kubelet's identity from
// doing the cloud controller's work, which shows that it has NodeRestriction.
func (n *node) checkMayNotUntaint() {
	n.t.Helper()
	user, groups := controlplane.NodeUser(n.name)
	config := must.Get(n.cp.ConfigFor(user, groups...))(n.t)
	client := must.Get(kubernetes.NewForConfig(config))(n.t)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := client.CoreV1().Nodes().Get(n.t.Context(), n.name, metav1.GetOptions{})
		if err == nil {
			node.Spec.Taints = nil
			_, err = client.CoreV1().Nodes().Update(n.t.Context(), node, metav1.UpdateOptions{})
		}
		return err
	})
	if !apierrors.IsForbidden(err) {
		n.t.Errorf("a kubelet removes its own taints: %v, want Forbidden", err)
	}
}

// playCloudController does what one does with a Node that it knows, and returns
// the addresses that it has set.
func (n *node) playCloudController(external string) []corev1.NodeAddress {
	n.t.Helper()
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.11"},
		{Type: corev1.NodeExternalIP, Address: external},
		{Type: corev1.NodeInternalDNS, Address: "node.cloud.example"},
		{Type: corev1.NodeExternalDNS, Address: "node.example.com"},
		{Type: corev1.NodeHostName, Address: "node.cloud.example"},
	}
	nodes := n.client.CoreV1().Nodes()
	change := func(edit func(*corev1.Node), write func(context.Context, *corev1.Node, metav1.UpdateOptions) (*corev1.Node, error)) {
		must.OK(n.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			node, err := nodes.Get(n.t.Context(), n.name, metav1.GetOptions{})
			if err == nil {
				edit(node)
				_, err = write(n.t.Context(), node, metav1.UpdateOptions{})
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
	n.t.Helper()
	given := n.wait("the addresses are there", time.Time{}, func(node *corev1.Node) bool {
		return apiequality.Semantic.DeepEqual(node.Status.Addresses, addresses) && node.Spec.ProviderID != ""
	})
	n.waitPosts(time.Now(), 5)
	for _, s := range n.since(given.At) {
		if s.Node == nil {
			n.t.Fatal("the node was deleted")
		}
		if !apiequality.Semantic.DeepEqual(s.Node.Status.Addresses, addresses) || s.Node.Spec.ProviderID != "example://zone/instance-7" {
			n.t.Errorf("given %+v, now %+v, provider ID %q", addresses, s.Node.Status.Addresses, s.Node.Spec.ProviderID)
		}
		if ip, ok := s.Node.Annotations[providedNodeIP]; ip != nodeIP || ok != (nodeIP != "") {
			n.t.Errorf("annotation %s: %q, want %q", providedNodeIP, ip, nodeIP)
		}
	}
}

// waitPosts waits until the status has been posted that many times since.
func (n *node) waitPosts(since time.Time, times int) {
	n.t.Helper()
	for range times {
		last := nodewatch.Condition(n.history.Last(), corev1.NodeReady).LastHeartbeatTime
		since = n.wait("the status is posted", since, func(node *corev1.Node) bool {
			now := nodewatch.Condition(node, corev1.NodeReady).LastHeartbeatTime
			return last.Before(&now)
		}).At
	}
}
