package deploy

import (
	_ "embed"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// A pod's token is good for mode augment on its own node, and for nothing else. It can
// fill up neither the Node, so that others could not write it, nor the Events, and cannot
// forge a line of "kubectl describe".
func TestIdentity(t *testing.T) {
	s := newCluster(t, "", "identity", "base")
	pod := s.config(s.pod("a"))
	onA, onB := s.client(pod), s.client(s.config(s.pod("b")))
	s.waitPolicies(onA, "nodeprobe-node", "nodeprobe-event")
	s.augments(pod, "system:serviceaccount:nodeprobe:nodeprobe", nil)
	s.checkWrites(t, onA)
	s.checkNodeBounds(t, onA)
	s.checkEventBounds(t, onA, onB)
}

func (s *cluster) checkWrites(t *testing.T, onA kubernetes.Interface) {
	t.Helper()
	before := s.others("a")
	check(t, table(t, "identity", map[string]kubernetes.Interface{"": onA, "no node": s.client(s.config(nil))}))
	// Even if a role allows more, the policy still holds.
	s.allow("", "nodes", "nodes/status")
	stage.Eventually(t, "the policy refuses a taint", request{
		"taints the node", onA, merge, "nodes/a", `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`,
		"nodeprobe may write its conditions only, and only through nodes/status",
	}.do)
	if after := s.others("a"); after != before {
		t.Errorf("the rest of the node is now %s, was %s", after, before)
	}
	s.postAsKubelet("b", corev1.ConditionFalse) // the policies do not apply to kubelets
}

// As the node, nodeprobe does what mode augment consists of; the token alone is good
// for nothing, and neither is impersonation of another node or for anything else.
func TestImpersonation(t *testing.T) {
	s := newCluster(t, "", "overlays/impersonation/identity", "overlays/impersonation")
	config := s.config(s.pod("a"))
	check(t, table(t, "impersonation", map[string]kubernetes.Interface{
		"": s.client(impersonating(config, "a")), "node b": s.client(impersonating(config, "b")),
		"itself": s.client(config), "no node": s.client(impersonating(s.config(nil), "a")),
	}))
	s.augments(config, "system:node:a", agent.Config{"impersonateNode": true})
}

// As the node, nodeprobe is the only one to write its status and its Lease.
func TestOwn(t *testing.T) {
	s := newCluster(t, "", "overlays/own/identity", "overlays/own")
	s.run("label", "node", "a", "nodeprobe.dev/own=true")
	pod := s.config(s.pod("a"))
	check(t, []request{{"is another node", s.client(impersonating(pod, "b")), merge, "nodes/b/status", status(ourCondition), " is forbidden: "}})
	began := time.Now().Add(-time.Second) // times in a Node have whole seconds
	s.start(pod, agent.Config{"mode": "own", "impersonateNode": true, "registerNode": false, "volumeLimitsFromCSINode": true})
	stage.Until(t, "the node is posted", func() bool {
		c := nodewatch.Condition(s.node("a"), corev1.NodeReady)
		return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(began)
	})
	stage.Eventually(t, "the lease is renewed", func() error {
		lease, err := s.cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "a", metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(lease.CreationTimestamp.Add(2*time.Second)) {
			err = fmt.Errorf("renewed at %s", lease.Spec.RenewTime)
		}
		return err
	})
	s.requests("system:node:a", "get nodes", "watch nodes", "patch nodes/status", "create events", "patch events",
		"get leases", "create leases", "update leases", "get csinodes")
}

// The pods of a DaemonSet never run on nodes of other systems, or on those that are no
// machines. As ours tolerates every taint, it must exclude these itself.
func TestPlaces(t *testing.T) {
	s := newCluster(t, "", "identity")
	s.createNode("windows", map[string]string{"kubernetes.io/os": "windows"})
	s.createNode("fargate", map[string]string{"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"})
	s.createNode("virtual-kubelet", map[string]string{"kubernetes.io/os": "linux", "type": "virtual-kubelet"})
	s.apply("base")
	s.apply("overlays/own")
	desired := func(name string, want int32) {
		t.Helper()
		stage.Until(t, "the controller has counted nodes for "+name, func() bool {
			ds := must.Get(s.cp.Client().AppsV1().DaemonSets("nodeprobe").Get(t.Context(), name, metav1.GetOptions{}))(t)
			return ds.Status.ObservedGeneration != 0 && ds.Status.DesiredNumberScheduled == want
		})
	}
	desired("nodeprobe", 2)
	// Mode own runs there if the label says so.
	s.run("label", "node", "virtual-kubelet", "nodeprobe.dev/own=true")
	desired("nodeprobe-own", 1)
}

// criticalByQuota is how GKE keeps critical pods out of namespaces without a quota for
// them, as the documentation of Kubernetes recommends.
//
//go:embed testdata/critical-by-quota.yaml
var criticalByQuota string

// A change from augment to observe drops the identity: a DaemonSet that still named the
// account could create no pod once that is removed. As the API server keeps defaulted
// fields of an earlier apply, leaving out the name is not enough. Pods are created also
// where critical ones need a quota.
func TestModeChanges(t *testing.T) {
	s := newCluster(t, criticalByQuota, "identity", "base")
	s.pod("a")
	for _, tt := range []struct {
		kustomization, account string
		token                  bool
	}{
		{"base", "nodeprobe", true},
		{"overlays/observe", "default", false},
	} {
		s.apply(tt.kustomization)
		ds := must.Get(s.cp.Client().AppsV1().DaemonSets("nodeprobe").Get(t.Context(), "nodeprobe", metav1.GetOptions{}))(t)
		if spec := ds.Spec.Template.Spec; spec.ServiceAccountName != tt.account || *spec.AutomountServiceAccountToken != tt.token {
			t.Errorf("%s: service account %q, token %t", tt.kustomization, spec.ServiceAccountName, *spec.AutomountServiceAccountToken)
		}
	}
}
