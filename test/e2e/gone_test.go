package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/agent"
	"github.com/nodeprobe/nodeprobe/test/controlplane"
	"github.com/nodeprobe/nodeprobe/test/fault"
)

// saysGone is how one may put it.
var saysGone = regexp.MustCompile(`node (is gone|was deleted)`)

// Somebody deletes the Node by hand, and a garbage collector, which this
// control plane does not have, would delete the Lease with it.
func TestDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusUpdateFrequency": "1h"})
	a := n.startReady()

	old := n.mustGet()
	if err := n.client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is registered again", func() error {
		got, err := n.get()
		if err == nil && got.UID == old.UID {
			err = errNotYet
		}
		return err
	})
	n.waitReady(a)
	checkConditions(t, n.mustGet())
	waitLogged(t, a, "node is registered", 1)
	if !slices.ContainsFunc(allLogged(t, a), func(r agent.Record) bool { return r.Bad() && saysGone.MatchString(r.Line) }) {
		t.Error("nothing is said of the node's end")
	}
	n.waitEvent("NodeHasSufficientMemory", n.name) // of the new node: "kubectl describe node" goes by the UID

	oldLease, err := n.lease()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var lease *coordinationv1.Lease
	eventually(t, "the lease is created again", func() error {
		if lease, err = n.lease(); err == nil && lease.UID == oldLease.UID {
			err = errNotYet
		}
		return err
	})
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != n.mustGet().UID {
		t.Errorf("owners: %+v, want the new node, %s", lease.OwnerReferences, n.mustGet().UID)
	}
	waitLogged(t, a, "the lease is gone", 0)
	n.waitRenewed(time.Now())
	n.waitReady(a)
}

// Another nodeprobe renews the same Lease (beside a kubelet this one would stand
// down for good). Two heartbeats in one Lease would hide
// the death of either sender, so nodeprobe gives way, and says so.
func TestForeignHeartbeat(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, nil)
	user, groups := controlplane.NodeUser(n.name)
	proxy := fault.StartForTest(t, cp, user, groups...)
	n.spec.Kubeconfig = proxy.Kubeconfig()
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
	if err := wantCode(a, "/readyz", 503); err != nil {
		t.Error(err)
	}
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
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
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
