package controlplane

import (
	"fmt"
	"os"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// clientOf reads a kubeconfig in the way that the product does.
func clientOf(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config := must.Get(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	return must.Get(kubernetes.NewForConfig(config))(t)
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func newLease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name},
	}
}

// A node may write what is its own, and nothing of another's: the API server
// enforces it (Node authorizer, NodeRestriction), and tests rely on that.
func TestNodeIdentity(t *testing.T) {
	cp := StartForTest(t)
	own, other, absent := ObjectName(t), ObjectName(t), ObjectName(t)
	kubeconfig := must.Get(cp.NodeKubeconfig(own))(t)
	node := clientOf(t, kubeconfig)
	ctx, create := t.Context(), metav1.CreateOptions{}

	if _, err := node.CoreV1().Nodes().Create(ctx, newNode(own), create); err != nil {
		t.Errorf("create own Node: %v", err)
	}
	status := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	if _, err := node.CoreV1().Nodes().PatchStatus(ctx, own, status); err != nil {
		t.Errorf("patch own status: %v", err)
	}
	leases := node.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if _, err := leases.Create(ctx, newLease(own), create); err != nil {
		t.Errorf("create own Lease: %v", err)
	}

	must.Get(cp.Client().CoreV1().Nodes().Create(ctx, newNode(other), create))(t)
	for what, attempt := range map[string]func() error{
		"create another's Node": func() error {
			_, err := node.CoreV1().Nodes().Create(ctx, newNode(absent), create)
			return err
		},
		"patch another's status": func() error {
			_, err := node.CoreV1().Nodes().Patch(ctx, other, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
			return err
		},
		"create another's Lease": func() error {
			_, err := leases.Create(ctx, newLease(other), create)
			return err
		},
	} {
		if err := attempt(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want Forbidden", what, err)
		}
	}
}

func TestStopLeavesNothing(t *testing.T) {
	skipIfShort(t)
	cp := start(t, Options{AuditLog: true})
	if _, err := cp.Client().CoreV1().Nodes().Create(t.Context(), newNode("audited"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	events, err := cp.AuditEvents()
	must.Note(t, err)
	found := false
	for _, e := range events {
		found = found || e.Verb == "create" && e.ObjectRef.Name == "audited" && e.User.Username == "admin" &&
			e.ResponseStatus.Code == 201 && strings.Contains(string(e.RequestObject), `"audited"`)
	}
	if !found {
		t.Errorf("creation of the Node is not among the %d audit events", len(events))
	}

	if cp.StartAPIServer(t.Context()) == nil {
		t.Error("StartAPIServer beside a running one: no error")
	}
	must.OK(t, cp.StopAPIServer())
	if cp.StopAPIServer() == nil {
		t.Error("StopAPIServer twice: no error")
	}
	must.OK(t, cp.StartAPIServer(t.Context()))
	var pids []int
	for _, p := range cp.running {
		pids = append(pids, p.PID())
	}
	for range 2 {
		must.Note(t, cp.Stop())
	}
	if _, err := os.Stat(cp.Dir()); !os.IsNotExist(err) {
		t.Errorf("directory after Stop: %v", err)
	}
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			t.Errorf("process %d survived Stop", pid)
		}
	}
}
