package lifecycle

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// An administrator takes a Node that has pods out of the cluster: cordons it, taints
// it, deletes it. It stays deleted, and so does its Lease, which the garbage collector
// removes. A restart registers the Node as new, and pods come.
func TestDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a := n.startReady()
	n.newPod(nil).waitBound()
	_, err := n.client.CoreV1().Nodes().Patch(t.Context(), n.name, "application/merge-patch+json",
		[]byte(`{"spec":{"unschedulable":true,"taints":[{"key":"example.com/retired","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
	must.OK(t, err)
	old := n.wait("it is cordoned", a.Started, func(node *corev1.Node) bool { return node.Spec.Unschedulable }).Node

	leases := must.Get(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + n.name}))(t)
	defer leases.Stop()
	deleted := time.Now()
	must.OK(t, n.client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	waitLeaseGone(t, leases)
	t.Logf("the garbage collector has removed the lease %s after the node", time.Since(deleted))
	select {
	case event := <-leases.ResultChan():
		t.Errorf("after its end the lease is %s: %+v", event.Type, event.Object)
	case <-time.After(2 * grace):
	}
	for _, s := range n.since(deleted) {
		if s.Node != nil && s.Node.UID != old.UID {
			t.Fatalf("it is back %s later: %s", s.At.Sub(deleted), describe(s.Node))
		}
	}
	select {
	case <-a.Exited():
		t.Error("nodeprobe has ended")
	default:
	}

	a.Stop()
	n.startReady()
	again := n.history.Last()
	if again.UID == old.UID || again.Spec.Unschedulable {
		t.Errorf("after the restart: %s", describe(again))
	}
	n.newPod(nil).waitBound()
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.name, UID: again.UID}}
	lease := must.Get(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), n.name, metav1.GetOptions{}))(t)
	if !apiequality.Semantic.DeepEqual(lease.OwnerReferences, want) {
		t.Errorf("owners of the new lease: %+v, want %+v", lease.OwnerReferences, want)
	}
}

// waitLeaseGone follows what a watch tells until the Lease is deleted.
func waitLeaseGone(t *testing.T, watcher watch.Interface) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case <-timeout:
			t.Fatal("nobody has removed the lease")
		case event := <-watcher.ResultChan():
			if _, ok := event.Object.(*coordinationv1.Lease); !ok {
				t.Fatalf("watch of the lease: %+v", event)
			}
			if event.Type == watch.Deleted {
				return
			}
		}
	}
}
