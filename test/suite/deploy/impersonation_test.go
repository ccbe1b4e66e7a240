package deploy

import (
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// as returns a configuration that asks for being a node.
func as(config *rest.Config, node string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Impersonate.UserName = "system:node:" + node
	return config
}

// As the node, nodeprobe does what mode augment consists of; the token alone is good
// for nothing, and as another node, or for anything else, neither is impersonation.
func TestImpersonation(t *testing.T) {
	s := newStage(t, "overlays/impersonation/identity", "overlays/impersonation")
	config := s.config(s.pod("a"))
	bare, onA, onB, unbound := s.client(config), s.client(as(config, "a")), s.client(as(config, "b")), s.client(as(s.config(nil), "a"))
	ours, dry := conditionPatch(ourCondition), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	ctx := t.Context()
	for _, tt := range []struct {
		name    string
		do      func() error
		refused bool
	}{
		{"writes its node", func() error { return patchStatus(t, onA, "a", ours, dry) }, false},
		// What deploy/identity has a policy against: the kubelet may do it, too.
		{"writes the kubelet's condition", func() error {
			return patchStatus(t, onA, "a", conditionPatch(`"type":"Ready","status":"False"`), dry)
		}, false},

		{"writes it in its own name", func() error { return patchStatus(t, bare, "a", ours, dry) }, true},
		{"has a token without a node", func() error { return patchStatus(t, unbound, "a", ours, dry) }, true},
		{"is another node", func() error { return patchStatus(t, onB, "b", ours, dry) }, true},
		{"writes another node", func() error { return patchStatus(t, onA, "b", ours, dry) }, true},
		{"gets another node", func() error { _, err := onA.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{}); return err }, true},
		{"labels the node as restricted", func() error {
			return patchStatus(t, onA, "a", `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`, dry)
		}, true},
		{"posts an event elsewhere", func() error {
			_, err := onA.CoreV1().Events("kube-system").Create(ctx, &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Name: "a.1", Namespace: "kube-system"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "kube-system", Name: "x"},
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}, true},
		{"creates a lease", func() error {
			_, err := onA.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		}, true},
		{"lists pods", func() error {
			_, err := onA.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=a"})
			return err
		}, true},
		{"deletes its node", func() error { return onA.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}) }, true},
	} {
		err := tt.do()
		if tt.refused != apierrors.IsForbidden(err) || !tt.refused && err != nil {
			t.Errorf("%s: %v, want refused %t", tt.name, err, tt.refused)
		}
	}
	s.augments(t, config, "system:node:a", agent.Config{"impersonateNode": true})
}

// As the node, nodeprobe is the only one to write its status and its Lease.
func TestOwn(t *testing.T) {
	s := newStage(t, "overlays/own/identity", "overlays/own")
	s.run("label", "node", "a", "nodeprobe.dev/own=true")
	pod := s.config(s.pod("a"))
	if err := patchStatus(t, s.client(as(pod, "b")), "b", conditionPatch(ourCondition), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("as another node: %v", err)
	}
	began := time.Now()
	s.start(pod, agent.Config{"mode": "own", "impersonateNode": true, "registerNode": false, "volumeLimitsFromCSINode": true})
	s.eventually("the node is posted", func() error {
		if c := nodewatch.Condition(s.node("a"), corev1.NodeReady); c.Status != corev1.ConditionTrue || c.LastHeartbeatTime.Before(&metav1.Time{Time: began.Add(-time.Second)}) {
			return errors.New("it is not")
		}
		return nil
	})
	s.eventually("the lease is renewed", func() error {
		lease, err := s.cp.Client().CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "a", metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(lease.CreationTimestamp.Add(2*time.Second)) {
			err = errors.New("not yet")
		}
		return err
	})
	s.requests("system:node:a", "get nodes", "watch nodes", "patch nodes/status", "create events", "patch events",
		"get leases", "create leases", "update leases", "get csinodes")
}
