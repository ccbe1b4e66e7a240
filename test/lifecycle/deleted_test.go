package lifecycle

import (
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// An administrator deletes a Node that has pods. It is there again at once, and
// the garbage collector, which removes the old Lease with its owner, does no
// harm: there is a Lease of the new Node's before anybody misses it.
func TestDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a := n.startReady()
	old := n.history.Last()
	p := n.newPod(nil)
	p.waitBound()

	leases, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + n.name})
	must(t, err)
	defer leases.Stop()
	deleted := time.Now()
	must(t, n.client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	again := n.wait("the node is registered again", deleted, func(node *corev1.Node) bool { return node.UID != old.UID })
	t.Logf("registered again after %s", again.At.Sub(deleted))

	// Long enough for the garbage collector to have come and gone.
	n.checkLeases(collect(t, leases, 20*time.Second, again.Node.UID), old.UID, again.Node.UID, deleted)
	n.wait("the node is ready and has no taints", again.At, func(node *corev1.Node) bool {
		return has(node, allWell) && len(node.Spec.Taints) == 0
	})
	for _, s := range n.since(again.At) {
		if s.Node == nil || s.Node.UID != again.Node.UID || !has(s.Node, allWell) ||
			slices.ContainsFunc(s.Node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable }) {
			t.Errorf("after it was registered again: %s", describe(s.Node))
		}
	}
	pod, err := n.client.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil || pod.UID != p.UID || pod.Spec.NodeName != n.name || pod.DeletionTimestamp != nil {
		t.Errorf("the pod that was there: %v, %+v", err, pod.ObjectMeta)
	}
	n.newPod(nil).waitBound()
	select {
	case <-a.Exited():
		t.Error("nodeprobe has ended")
	default:
	}
}

// seenLease is what a watch told of a Lease.
type seenLease struct {
	at    time.Time
	kind  watch.EventType
	lease *coordinationv1.Lease
}

// collect returns what a watch tells in a time, and, where all takes its time, until
// a Lease has gone and the Node's has been renewed.
func collect(t *testing.T, watcher watch.Interface, d time.Duration, owner types.UID) []seenLease {
	t.Helper()
	var seen []seenLease
	gone, renewals := false, 0
	for least, most := time.After(d), time.After(patience); ; {
		select {
		case <-least:
			least = nil
		case <-most:
			return seen
		case event := <-watcher.ResultChan():
			lease, ok := event.Object.(*coordinationv1.Lease)
			if !ok {
				t.Fatalf("watch of the lease: %+v", event)
			}
			seen = append(seen, seenLease{time.Now(), event.Type, lease})
			gone = gone || event.Type == watch.Deleted
			if slices.ContainsFunc(lease.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner }) {
				renewals++
			}
		}
		if least == nil && gone && renewals >= 3 {
			return seen
		}
	}
}

// checkLeases wants one Lease to have followed the other, and to be renewed still.
func (n *node) checkLeases(seen []seenLease, oldNode, newNode types.UID, deleted time.Time) {
	n.t.Helper()
	var gone []seenLease
	var uids []types.UID
	for _, s := range seen {
		if s.kind == watch.Deleted {
			gone = append(gone, s)
		}
		if !slices.Contains(uids, s.lease.UID) {
			uids = append(uids, s.lease.UID)
		}
	}
	if len(gone) != 1 || gone[0].lease.OwnerReferences[0].UID != oldNode || len(uids) != 2 {
		n.t.Fatalf("leases %v, of which %d were deleted, want the old node's alone: %+v", uids, len(gone), gone)
	}
	first := slices.IndexFunc(seen, func(s seenLease) bool { return s.lease.UID == uids[1] })
	n.t.Logf("the old lease went %s after the node, the new one came %s later",
		gone[0].at.Sub(deleted), seen[first].at.Sub(gone[0].at))
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.name, UID: newNode}}
	renewals := 0
	for _, s := range seen[first:] {
		renewals++
		if !apiequality.Semantic.DeepEqual(s.lease.OwnerReferences, want) {
			n.t.Errorf("owners of the new lease: %+v, want %+v", s.lease.OwnerReferences, want)
		}
	}
	if last := seen[len(seen)-1]; renewals < 3 || last.kind == watch.Deleted || time.Since(last.at) > grace {
		n.t.Errorf("%d renewals of the new lease, the last %s ago", renewals, time.Since(last.at))
	}
}
