package e2e

import (
	"context"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/watch"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// stillDeleted is what the log and /readyz say of it.
const (
	stillDeleted = "node was deleted; restart nodeprobe to register it again"
	deleted      = "nodeprobe_status_node_deleted"
)

func (n *node) deleteLease() {
	n.T.Helper()
	must.OK(n.T, n.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(n.T.Context(), n.Name, metav1.DeleteOptions{}))
}

func (n *node) wantOwnedLease(node *corev1.Node) {
	n.T.Helper()
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: node.UID}}
	if got := must.Get(n.Lease())(n.T).OwnerReferences; !apiequality.Semantic.DeepEqual(got, want) {
		n.T.Errorf("owners of the lease: %+v, want %+v", got, want)
	}
}

// A node is deleted: it stays deleted, and so does its Lease, which a garbage
// collector, played by the test, removes with it. Log, /readyz and a metric report it,
// and what to do. When somebody else creates the Node again nodeprobe keeps its status
// and its Lease, as a kubelet would. What it does not know of it, it leaves alone.
func TestDeleted(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s", "nodeLeaseDurationSeconds": 4})
	a := n.StartReady()
	must.Note(t, stage.Metric(a, deleted, 0))
	n.Delete()
	stage.WaitUnready(t, a, "[-]status failed: "+stillDeleted)
	stage.WaitUnready(t, a, "[-]lease failed: "+stillDeleted)
	stage.Eventually(t, deleted+" is 1", func() error { return stage.Metric(a, deleted, 1) })
	stage.WaitComplaint(t, a, notPosted, stillDeleted)

	since := time.Now()
	n.deleteLease()
	time.Sleep(10 * time.Second) // longer than the longest back-off and the lease
	n.wantSilence(since)
	_, err1 := n.Get()
	if _, err2 := n.Lease(); !apierrors.IsNotFound(err1) || !apierrors.IsNotFound(err2) {
		t.Fatalf("what was deleted is back: node: %v, lease: %v", err1, err2)
	}
	must.Note(t, stage.Code(a, "/livez", 200))
	stage.CheckOnce(t, a)

	created := time.Now()
	again := must.Get(n.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{"example.com/by": "hand"}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}, metav1.CreateOptions{}))(t)
	n.WaitReady(a)
	n.WaitRenewed(created)
	got := n.MustGet()
	if got.UID != again.UID || !got.Spec.Unschedulable || got.Labels["example.com/by"] != "hand" || got.Labels[corev1.LabelHostname] == "" {
		t.Errorf("the node: %+v, %+v", got.ObjectMeta, got.Spec)
	}
	checkConditions(t, got)
	n.wantOwnedLease(got)
	must.Note(t, stage.Metric(a, deleted, 0))
	n.waitEvent("NodeNotSchedulable", n.Name) // of the new node: "kubectl describe node" goes by the UID
}

// A controller deletes the Node 25 ms after it appears, again and again.
func TestDeletedByController(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s"})
	nodes := n.Client.CoreV1().Nodes()
	watcher := must.Get(nodes.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + n.Name}))(t)
	first, stopped := make(chan time.Time, 1), make(chan struct{})
	go func() {
		defer close(stopped)
		for event := range watcher.ResultChan() {
			if event.Type != watch.Added {
				continue
			}
			time.Sleep(25 * time.Millisecond)
			if err := nodes.Delete(context.Background(), n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			select {
			case first <- time.Now():
			default:
			}
		}
	}()
	defer func() { watcher.Stop(); <-stopped }()
	began := time.Now()
	n.Start()
	at := <-first
	time.Sleep(20 * time.Second)
	all := stage.Writes(t, cp, "nodeprobe", began).About("nodes")
	if creations := len(all.Of("create nodes")); creations != 1 || len(all) > 4 {
		t.Errorf("%d writes of the node, %d of them creations", len(all), creations)
	}
	for _, e := range all {
		// What was on its way may still arrive.
		if e.RequestReceivedTimestamp.After(at.Add(time.Second)) {
			t.Errorf("%s after it was deleted: %s %s", e.RequestReceivedTimestamp.Sub(at), e.Verb, e.RequestURI)
			break
		}
	}
}
