package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// stillDeleted is what the log and /readyz say of it.
const stillDeleted = "node was deleted; restart nodeprobe to register it again"

// A node is decommissioned: cordoned, drained by a taint, deleted. It stays deleted,
// and so does its Lease, which a garbage collector, played by the test, removes with
// it. Log, /readyz and a metric say so, and what to do; a restart registers the Node
// as a first start does.
func TestDeleted(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s", "nodeLeaseDurationSeconds": 4})
	a := n.startReady()
	n.patch(map[string]any{"spec": map[string]any{
		"unschedulable": true, "taints": []corev1.Taint{{Key: "example.com/retired", Effect: corev1.TaintEffectNoExecute}},
	}})
	const metric = "nodeprobe_status_node_deleted"
	must.Note(t, wantMetric(a, metric, 0))

	old := n.mustGet()
	n.delete()
	time.Sleep(3 * time.Second) // several of all its periods
	if got, err := n.get(); !apierrors.IsNotFound(err) {
		t.Fatalf("a node that was deleted is back: %v, unschedulable %v, taints %v, error %v", got.UID != old.UID, got.Spec.Unschedulable, got.Spec.Taints, err)
	}
	wantReadyz(t, a, "[-]status failed: "+stillDeleted)
	wantReadyz(t, a, "[-]lease failed: "+stillDeleted)
	eventually(t, metric+" is 1", func() error { return wantMetric(a, metric, 1) })
	waitComplaint(t, a, "node status is not posted", stillDeleted)

	since := time.Now()
	n.deleteLease()
	time.Sleep(10 * time.Second) // longer than the longest back-off and the lease
	if lease, err := n.lease(); !apierrors.IsNotFound(err) {
		t.Errorf("the lease of a node that was deleted: %+v, %v", lease, err)
	}
	for _, e := range writes(t, cp, "nodeprobe", since) {
		t.Errorf("written at %s: %s %s", e.RequestReceivedTimestamp, e.Verb, e.RequestURI)
	}
	if _, err := n.get(); !apierrors.IsNotFound(err) {
		t.Errorf("the node is back: %v", err)
	}
	must.Note(t, wantCode(a, "/livez", 200))
	checkOnce(t, a)

	a.Stop()
	began := time.Now()
	a = n.startReady()
	if got := n.mustGet(); got.UID == old.UID || got.Spec.Unschedulable {
		t.Errorf("after a restart: %+v", got.Spec)
	}
	checkConditions(t, n.mustGet())
	n.waitRenewed(began)
	must.Note(t, wantMetric(a, metric, 0))
}

// A controller deletes the Node 25 ms after it appears, again and again.
func TestDeletedByController(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s"})
	ctx, stop := context.WithCancel(t.Context())
	deleted, stopped := make(chan time.Time, 1), make(chan error, 1)
	go func() { stopped <- n.deleteAlways(ctx, 25*time.Millisecond, deleted) }()
	defer func() {
		stop()
		must.Note(t, <-stopped)
	}()

	began := time.Now()
	n.start()
	var first time.Time
	select {
	case first = <-deleted:
	case <-time.After(patience):
		t.Fatal("the node has not appeared")
	}
	const during = 20 * time.Second
	time.Sleep(during)
	all := slices.DeleteFunc(writes(t, cp, "nodeprobe", began), func(e controlplane.AuditEvent) bool { return e.ObjectRef.Resource != "nodes" })
	t.Logf("in %s: %d creations, %d patches", during, len(of(all, "create nodes")), len(of(all, "patch nodes/status")))
	if len(of(all, "create nodes")) != 1 || len(all) > 4 {
		t.Errorf("%d writes of the node in %s, %d of them creations", len(all), during, len(of(all, "create nodes")))
	}
	for _, e := range all {
		// What was on its way may still arrive.
		if e.RequestReceivedTimestamp.After(first.Add(time.Second)) {
			t.Errorf("%s after it was deleted: %s %s", e.RequestReceivedTimestamp.Sub(first), e.Verb, e.RequestURI)
			break
		}
	}
}

// deleteAlways deletes the Node some time after each of its appearances, until ctx
// ends, and tells when it was done for the first time.
func (n *node) deleteAlways(ctx context.Context, after time.Duration, deleted chan<- time.Time) error {
	nodes := n.client.CoreV1().Nodes()
	watcher, err := nodes.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + n.name})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if event.Type != "ADDED" {
			continue
		}
		time.Sleep(after)
		if err := nodes.Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			return err
		}
		select {
		case deleted <- time.Now():
		default:
		}
	}
	return nil
}

// Somebody else creates the Node again: as a kubelet would, nodeprobe keeps its status
// and its Lease. What it does not know of it, it leaves alone.
func TestCreatedAgainByOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), nil)
	a := n.startReady()
	n.delete()
	n.deleteLease()
	wantReadyz(t, a, stillDeleted)
	created := time.Now()
	again := must.Get(n.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{"example.com/by": "hand"}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}, metav1.CreateOptions{}))(t)
	n.waitReady(a)
	n.waitRenewed(created)
	got := n.mustGet()
	if got.UID != again.UID || !got.Spec.Unschedulable || got.Labels["example.com/by"] != "hand" || got.Labels[corev1.LabelHostname] == "" {
		t.Errorf("the node: %+v, %+v", got.ObjectMeta, got.Spec)
	}
	checkConditions(t, got)
	lease, err := n.lease()
	if err != nil || len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != got.UID {
		t.Errorf("lease %+v, %v; want node %s for its owner", lease, err, got.UID)
	}
	must.Note(t, wantMetric(a, "nodeprobe_status_node_deleted", 0))
	n.waitEvent("NodeNotSchedulable", n.name) // of the new node: "kubectl describe node" goes by the UID
}

// The Lease alone is deleted: it is made again, with the Node for its owner.
func TestLeaseDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusUpdateFrequency": "1h"})
	a := n.startReady()
	n.waitRenewed(time.Time{})
	began := time.Now()
	n.deleteLease()
	n.waitRenewed(began)
	lease := must.Get(n.lease())(t)
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != n.mustGet().UID {
		t.Errorf("owners: %+v, want the node, %s", lease.OwnerReferences, n.mustGet().UID)
	}
	waitLogged(t, a, "the lease is gone", 0)
	n.waitReady(a)
}

func (n *node) delete() {
	n.t.Helper()
	must.OK(n.t, n.client.CoreV1().Nodes().Delete(n.t.Context(), n.name, metav1.DeleteOptions{}))
}

func (n *node) deleteLease() {
	n.t.Helper()
	must.OK(n.t, n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(n.t.Context(), n.name, metav1.DeleteOptions{}))
}

// Another nodeprobe renews the same Lease (beside a kubelet this one would stand
// down for good). Two heartbeats in one Lease would hide
// the death of either sender, so nodeprobe gives way, and says so.
func TestForeignHeartbeat(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, nil)
	proxy := n.through(cp)
	a := n.startReady()

	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- n.renewAsAnother(ctx) }()

	const metric = "nodeprobe_heartbeat_foreign_writer"
	eventually(t, metric+" is 1", func() error { return wantMetric(a, metric, 1) })
	r := waitLogged(t, a, "not renewing the lease: somebody else does", 0)
	if r.Level != "WARN" {
		t.Errorf("logged at level %s: %s", r.Level, r.Line)
	}
	must.Note(t, wantCode(a, "/readyz", 503))
	// From here on there must be no successful write of ours while the other
	// writes. Each of our rounds begins with a look at the Lease.
	proxy.Forget()
	eventually(t, "nodeprobe has looked at the lease three times", func() error {
		if proxy.Count("GET", leasesPath+"/*") < 3 {
			return errNotYet
		}
		return nil
	})
	for _, r := range proxy.Requests() {
		if r.Method == "PUT" {
			t.Errorf("written over a fresh heartbeat: %s", r)
		}
	}
	if records := logged(t, a, r.Msg); len(records) != 1 {
		t.Errorf("logged %d times: %s", len(records), r.Line)
	}

	// The other falls silent, and after its last renewal has run out nodeprobe
	// takes over.
	stop()
	must.OK(t, <-stopped)
	n.waitRenewed(time.Now())
	eventually(t, metric+" is 0", func() error { return wantMetric(a, metric, 0) })
	n.waitReady(a)
}

// renewAsAnother renews the Lease several times in each of nodeprobe's rounds,
// until ctx ends.
func (n *node) renewAsAnother(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for ctx.Err() == nil {
		lease, err := n.lease()
		if err != nil {
			return err
		}
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		// A conflict is nodeprobe's renewal; the next try will do.
		_, _ = leases.Update(context.Background(), lease, metav1.UpdateOptions{FieldManager: "nodeprobe"})
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

func wantMetric(a *agent.Agent, series string, want float64) error {
	got, err := a.Metric(context.Background(), series)
	if err == nil && got != want {
		err = errors.New(fmt.Sprint(series, " is ", got))
	}
	return err
}
