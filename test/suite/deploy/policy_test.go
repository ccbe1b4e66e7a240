package deploy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// patchStatus sends a strategic-merge patch of a Node's status.
func patchStatus(t *testing.T, in kubernetes.Interface, node, patch string, opts metav1.PatchOptions) error {
	_, err := in.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(patch), opts, "status")
	return err
}

// conditionPatch is a patch with one entry of conditions.
func conditionPatch(fields string) string { return `{"status":{"conditions":[{` + fields + `}]}}` }

const ourCondition = `"type":"nodeprobe.dev/DiskPressure","status":"False","reason":"DiskIsSufficient"`

// What the pod on a node may do with its token, and what not.
func TestIdentity(t *testing.T) {
	s := newStage(t, "identity", "base")
	podA := s.pod("a")
	if podA.Spec.ServiceAccountName != "nodeprobe" || podA.Spec.AutomountServiceAccountToken == nil || !*podA.Spec.AutomountServiceAccountToken {
		t.Errorf("the pod has service account %q, or no token", podA.Spec.ServiceAccountName)
	}
	onA, onB, unbound := s.client(s.config(podA)), s.client(s.config(s.pod("b"))), s.client(s.config(nil))
	s.waitPolicies(onA, "nodeprobe-node", "nodeprobe-event")
	before := s.node("a")

	// A status patch by a's token, or what else is done with it.
	patch := func(node, body string) func() error {
		return func() error { return patchStatus(t, onA, node, body, metav1.PatchOptions{}) }
	}
	event := func(node, component string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", node, time.Now().UnixNano()), Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node}, Reason: "DiskIsShort", Type: "Warning", Count: 1,
			Source: corev1.EventSource{Component: component, Host: node}, ReportingController: component, ReportingInstance: node,
		}
	}
	post := func(in kubernetes.Interface, e *corev1.Event) error {
		made, err := in.CoreV1().Events(e.Namespace).Create(t.Context(), e, metav1.CreateOptions{})
		if err == nil {
			*e = *made
		}
		return err
	}
	const (
		rbac     = `User "system:serviceaccount:nodeprobe:nodeprobe" cannot `
		metadata = "nodeprobe may write its conditions only, not metadata: "
		status   = "nodeprobe may write its conditions only, not status: "
		foreign  = "nodeprobe may not add, change or remove conditions of others: "
	)
	ofB := event("b", "nodeprobe")
	must.OK(t, post(onB, ofB))
	ctx := t.Context()
	for _, tt := range []struct {
		name string
		do   func() error
		want string // "" if it is allowed
	}{
		{"adds a condition of ours", patch("a", conditionPatch(ourCondition)), ""},
		{"changes it", patch("a", conditionPatch(strings.Replace(ourCondition, "False", "True", 1))), ""},
		{"adds another", patch("a", conditionPatch(`"type":"nodeprobe.dev/X","status":"Unknown","reason":"SignalUnavailable"`)), ""},
		{"removes it", patch("a", conditionPatch(`"$patch":"delete","type":"nodeprobe.dev/X"`)), ""},
		{"posts an event", func() error { return post(onA, event("a", "nodeprobe")) }, ""},
		{"gets its node", func() error { _, err := onA.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{}); return err }, ""},

		{"writes another node", patch("b", conditionPatch(ourCondition)), "nodeprobe on node a may not write node b"},
		{
			"has a token without a node",
			func() error { return patchStatus(t, unbound, "a", conditionPatch(ourCondition), metav1.PatchOptions{}) },
			"this token of nodeprobe is bound to no node",
		},
		{"adds another's type", patch("a", conditionPatch(`"type":"example.com/New","status":"True"`)), foreign + "example.com/New"},
		{"adds a type without prefix", patch("a", conditionPatch(`"type":"NetworkUnavailable","status":"True"`)), foreign + "NetworkUnavailable"},
		{"changes another's", patch("a", conditionPatch(`"type":"example.com/Problem3","status":"True"`)), foreign + "example.com/Problem3"},
		{"changes its message", patch("a", conditionPatch(`"type":"example.com/Problem3","message":""`)), foreign + "example.com/Problem3"},
		{"removes another's", patch("a", conditionPatch(`"$patch":"delete","type":"example.com/Problem3"`)), foreign + "example.com/Problem3"},
		{"changes the kubelet's", patch("a", conditionPatch(`"type":"Ready","status":"False"`)), foreign + "Ready"},
		{"removes the kubelet's", patch("a", conditionPatch(`"$patch":"delete","type":"Ready"`)), foreign + "Ready"},
		{"removes all", patch("a", `{"status":{"conditions":null}}`), foreign + "MemoryPressure, "},
		{"sets a label", patch("a", `{"metadata":{"labels":{"x":"y"}}}`), metadata + "labels"},
		{"removes a label", patch("a", `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`), metadata + "labels"},
		{"sets an annotation", patch("a", `{"metadata":{"annotations":{"x":"y"}}}`), metadata + "annotations"},
		{"removes all annotations", patch("a", `{"metadata":{"annotations":null}}`), metadata + "annotations"},
		{"sets a finalizer", patch("a", `{"metadata":{"finalizers":["example.com/x"]}}`), metadata + "finalizers"},
		{"sets an owner", patch("a", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"1"}]}}`), metadata + "ownerReferences"},
		{"changes capacity", patch("a", `{"status":{"capacity":{"cpu":"1"}}}`), status + "capacity"},
		{"changes allocatable", patch("a", `{"status":{"allocatable":{"example.com/gpu":"8"}}}`), status + "allocatable"},
		{"adds an address", patch("a", `{"status":{"addresses":[{"type":"ExternalIP","address":"1.2.3.4"}]}}`), status + "addresses"},
		{"removes images", patch("a", `{"status":{"images":null}}`), status + "images"},
		{"changes nodeInfo", patch("a", `{"status":{"nodeInfo":{"kubeletVersion":"v9"}}}`), status + "nodeInfo"},
		{"sets what there was not", patch("a", `{"status":{"volumesInUse":["x"]}}`), status + "volumesInUse"},
		{"hides it behind ours", patch("a", `{"metadata":{"labels":{"x":"y"}},"status":{"conditions":[{`+ourCondition+`}]}}`), metadata + "labels"},

		{"taints the node", func() error {
			_, err := onA.CoreV1().Nodes().Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
			return err
		}, rbac + `patch resource "nodes"`},
		{"replaces the status", func() error {
			_, err := onA.CoreV1().Nodes().UpdateStatus(ctx, before, metav1.UpdateOptions{})
			return err
		}, rbac + `update resource "nodes/status"`},
		{"lists nodes", func() error { _, err := onA.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); return err }, rbac + `list resource "nodes"`},
		{"creates a node", func() error {
			_, err := onA.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
			return err
		}, rbac + `create resource "nodes"`},
		{"deletes its node", func() error { return onA.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}) }, rbac + `delete resource "nodes"`},
		{"creates a lease", func() error {
			_, err := onA.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		}, rbac + `create resource "leases"`},
		{"reads secrets elsewhere", func() error {
			_, err := onA.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
			return err
		}, rbac + `list resource "secrets"`},
		{"reads secrets here", func() error { _, err := onA.CoreV1().Secrets("nodeprobe").List(ctx, metav1.ListOptions{}); return err }, rbac + `list resource "secrets"`},

		{"posts an event of another node", func() error { return post(onA, event("b", "nodeprobe")) }, "nodeprobe on node a may only write events of its own about that node"},
		{"posts an event in another's name", func() error { return post(onA, event("a", "kubelet")) }, "nodeprobe on node a may only write events of its own"},
		{"makes another's event its own", func() error {
			_, err := onA.CoreV1().Events("default").Patch(ctx, ofB.Name, types.MergePatchType, []byte(`{"count":9}`), metav1.PatchOptions{})
			return err
		}, "nodeprobe on node a may only write events of its own"},
		{"posts an event elsewhere", func() error {
			e := event("a", "nodeprobe")
			e.Namespace = "kube-system"
			return post(onA, e)
		}, rbac + `create resource "events"`},
	} {
		err := tt.do()
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}

	// The status brings no spec along: the API server drops it before policies see
	// it. Should somebody's role allow more, the policy still holds.
	taint := `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`
	must.Note(t, patchStatus(t, onA, "a", taint, metav1.PatchOptions{}))
	s.allow("", "nodes", "nodes/status")
	s.eventually("the policy refuses a taint", func() error {
		_, err := onA.CoreV1().Nodes().Patch(ctx, "a", types.StrategicMergePatchType, []byte(taint), metav1.PatchOptions{})
		return wantError(err, "nodeprobe may write its conditions only, and only through nodes/status")
	})

	// Others are none of its business; nor has any of this left a trace.
	if err := s.postAsKubelet("b", corev1.ConditionFalse); err != nil {
		t.Errorf("a kubelet cannot post: %v", err)
	}
	if got, want := s.others("a"), othersOf(before); got != want {
		t.Errorf("the rest of the node is now %s, was %s", got, want)
	}
}

// node returns a Node as it now is.
func (s *stage) node(name string) *corev1.Node {
	s.t.Helper()
	node := must.Get(s.cp.Client().CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{}))(s.t)
	return node
}
