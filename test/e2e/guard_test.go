package e2e

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/agent"
	"github.com/nodeprobe/nodeprobe/test/controlplane"
	"github.com/nodeprobe/nodeprobe/test/process"
)

// asKubelet is how the API server sees what a kubelet writes.
var asKubelet = metav1.PatchOptions{FieldManager: "kubelet"}

// renewAsKubelet renews the Node's Lease under a kubelet's name.
func (n *node) renewAsKubelet() {
	n.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": metav1.NowMicro()}})
	if err != nil {
		n.t.Fatal(err)
	}
	_, err = n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(n.t.Context(), n.name, types.MergePatchType, patch, asKubelet)
	if err != nil {
		n.t.Fatal(err)
	}
}

// A kubelet that is alive already: own mode does not start.
func TestGuardRefusesToStart(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{})
	_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &n.name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.renewAsKubelet()
	a, err := agent.Start(t.Context(), n.spec)
	if err == nil {
		a.Stop()
		t.Fatal("it has started")
	}
	exit, ok := errors.AsType[*process.ExitError](err)
	if !ok || exit.Err.Error() != "exit status 4" || !strings.Contains(exit.Log, "kubelet renewed its lease") || !strings.Contains(exit.Log, "one status writer") {
		t.Errorf("it does not say why: %v", err)
	}
	if _, err := n.get(); err == nil {
		t.Error("there is a Node")
	}
}

// A Lease that another agent has left behind, in its own name: that is no other
// writer.
func TestLeaseLeftBehind(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeLeaseDurationSeconds": 4})
	holder, renewed := "other-agent", metav1.NewMicroTime(time.Now().Add(-time.Hour))
	_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed},
	}, metav1.CreateOptions{FieldManager: holder})
	if err != nil {
		t.Fatal(err)
	}
	a := n.startReady()
	n.waitRenewed(time.Now())
	if lease, err := n.lease(); err != nil || *lease.Spec.HolderIdentity != holder {
		t.Errorf("lease %+v, error %v: its holder is for others to change", lease, err)
	}
	if err := wantCode(a, "/readyz", 200); err != nil {
		t.Error(err)
	}
}

// A kubelet that comes later: nothing more is written, for as long as the process
// lasts.
func TestGuardStandsDown(t *testing.T) {
	for name, appear := range map[string]func(n *node){
		"status": func(n *node) {
			_, err := n.client.CoreV1().Nodes().Patch(n.t.Context(), n.name, types.StrategicMergePatchType,
				[]byte(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"from a kubelet"}]}}`), asKubelet, "status")
			if err != nil {
				n.t.Fatal(err)
			}
		},
		"lease": func(n *node) { n.renewAsKubelet() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, controlplane.StartForTest(t), agent.Config{
				"nodeStatusReportFrequency": "1s", "nodeStatusUpdateFrequency": "1s", "nodeLeaseDurationSeconds": 4,
			})
			a := n.startReady()
			appear(n)
			eventually(t, "nodeprobe is not ready", func() error { return wantCode(a, "/readyz", 503) })
			if err := wantCode(a, "/livez", 200); err != nil {
				t.Error(err)
			}
			eventually(t, "the metric tells", func() error {
				down, err := a.Metric(t.Context(), "nodeprobe_stood_down")
				if err == nil && down != 1 {
					err = errNotYet
				}
				return err
			})
			time.Sleep(2 * time.Second) // a write that was on its way may still arrive
			node := n.mustGet()
			lease, err := n.lease()
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(6 * time.Second) // longer than each of its periods, and than the lease
			if now := n.mustGet(); now.ResourceVersion != node.ResourceVersion {
				t.Errorf("the node was written to: %+v", now.Status.Conditions)
			}
			if now, err := n.lease(); err != nil || now.ResourceVersion != lease.ResourceVersion {
				t.Errorf("the lease was written to: %+v, %v", now, err)
			}
			waitLogged(t, a, "this node has another status writer: nothing more is written to the API server", 0)
		})
	}
}
