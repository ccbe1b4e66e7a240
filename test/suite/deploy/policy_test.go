package deploy

import (
	"fmt"
	"strings"
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

const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

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
	const (
		rbac     = `User "system:serviceaccount:nodeprobe:nodeprobe" cannot `
		metadata = "nodeprobe may write its conditions only, not metadata: "
		stat     = "nodeprobe may write its conditions only, not status: "
		foreign  = "nodeprobe may not add, change or remove conditions of others: "
		taint    = `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`
	)
	for _, tt := range []struct{ name, patch, want string }{
		{"adds its own condition", status(ourCondition), ""},
		{"changes it", status(strings.Replace(ourCondition, "False", "True", 1)), ""},
		{"adds another", status(`"type":"nodeprobe.dev/X","status":"Unknown","reason":"SignalUnavailable"`), ""},
		{"removes it", status(`"$patch":"delete","type":"nodeprobe.dev/X"`), ""},
		{"adds another's type", status(`"type":"example.com/New","status":"True"`), foreign + "example.com/New"},
		{"adds a type without prefix", status(`"type":"NetworkUnavailable","status":"True"`), foreign + "NetworkUnavailable"},
		{"changes another's", status(`"type":"example.com/Problem3","status":"True"`), foreign + "example.com/Problem3"},
		{"changes its message", status(`"type":"example.com/Problem3","message":""`), foreign + "example.com/Problem3"},
		{"removes another's", status(`"$patch":"delete","type":"example.com/Problem3"`), foreign + "example.com/Problem3"},
		{"changes the kubelet's", status(`"type":"Ready","status":"False"`), foreign + "Ready"},
		{"removes the kubelet's", status(`"$patch":"delete","type":"Ready"`), foreign + "Ready"},
		{"removes all", `{"status":{"conditions":null}}`, foreign + "MemoryPressure, "},
		{"sets a label", `{"metadata":{"labels":{"x":"y"}}}`, metadata + "labels"},
		{"removes a label", `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, metadata + "labels"},
		{"sets an annotation", `{"metadata":{"annotations":{"x":"y"}}}`, metadata + "annotations"},
		{"removes all annotations", `{"metadata":{"annotations":null}}`, metadata + "annotations"},
		{"sets a finalizer", `{"metadata":{"finalizers":["example.com/x"]}}`, metadata + "finalizers"},
		{"sets an owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"1"}]}}`, metadata + "ownerReferences"},
		{"changes capacity", `{"status":{"capacity":{"cpu":"1"}}}`, stat + "capacity"},
		{"changes allocatable", `{"status":{"allocatable":{"example.com/gpu":"8"}}}`, stat + "allocatable"},
		{"adds an address", `{"status":{"addresses":[{"type":"ExternalIP","address":"1.2.3.4"}]}}`, stat + "addresses"},
		{"removes images", `{"status":{"images":null}}`, stat + "images"},
		{"changes nodeInfo", `{"status":{"nodeInfo":{"kubeletVersion":"v9"}}}`, stat + "nodeInfo"},
		{"sets a field that was not set", `{"status":{"volumesInUse":["x"]}}`, stat + "volumesInUse"},
		{"hides it behind its own", `{"metadata":{"labels":{"x":"y"}},"status":{"conditions":[{` + ourCondition + `}]}}`, metadata + "labels"},
		{"removes its first", status(`"$patch":"delete","type":"nodeprobe.dev/DiskPressure"`), ""},
		// The API server drops a spec from a status before policies see it.
		{"taints the node with its status", taint, ""},
	} {
		must.Note(t, request{tt.name, onA, merge, "nodes/a/status", tt.patch, tt.want}.do())
	}
	check(t, []request{
		{"gets its node", onA, "GET", "nodes/a", "", ""},
		{"writes another node", onA, merge, "nodes/b/status", status(ourCondition), "nodeprobe on node a may not write node b"},
		{"has a token without a node", s.client(s.config(nil)), merge, "nodes/a/status", status(ourCondition), "this token of nodeprobe is bound to no node"},
		{"taints the node", onA, merge, "nodes/a", taint, rbac + `patch resource "nodes"`},
		{"replaces the status", onA, "PUT", "nodes/a/status", `{"metadata":{"name":"a"}}`, rbac + `update resource "nodes/status"`},
		{"lists nodes", onA, "GET", "nodes", "", rbac + `list resource "nodes"`},
		{"creates a node", onA, "POST", "nodes", `{"metadata":{"name":"c"}}`, rbac + `create resource "nodes"`},
		{"deletes its node", onA, "DELETE", "nodes/a", "", rbac + `delete resource "nodes"`},
		{"creates a lease", onA, "POST", leases, `{"metadata":{"name":"a"}}`, rbac + `create resource "leases"`},
		{"reads secrets elsewhere", onA, "GET", "namespaces/kube-system/secrets", "", rbac + `list resource "secrets"`},
		{"reads secrets here", onA, "GET", "namespaces/nodeprobe/secrets", "", rbac + `list resource "secrets"`},
		{"posts an event elsewhere", onA, "POST", "namespaces/kube-system/events", `{"metadata":{"name":"a.1"}}`, rbac + `create resource "events"`},
	})
	// Even if a role allows more, the policy still holds.
	s.allow("", "nodes", "nodes/status")
	stage.Eventually(t, "the policy refuses a taint", request{
		"taints the node", onA, merge, "nodes/a", taint, "nodeprobe may write its conditions only, and only through nodes/status",
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
	onA, onB := s.client(impersonating(config, "a")), s.client(impersonating(config, "b"))
	const dryA, dryB, forbidden = "nodes/a/status?dryRun=All", "nodes/b/status?dryRun=All", " is forbidden: "
	ours := status(ourCondition)
	const ofPod = `{"metadata":{"name":"a.1","namespace":"kube-system"},"involvedObject":{"kind":"Pod","namespace":"kube-system","name":"x"}}`
	check(t, []request{
		{"writes its node", onA, merge, dryA, ours, ""},
		// deploy/identity has a policy against it, but a kubelet may do it, too.
		{"writes the kubelet's condition", onA, merge, dryA, status(`"type":"Ready","status":"False"`), ""},
		{"writes it in its own name", s.client(config), merge, dryA, ours, forbidden},
		{"has a token without a node", s.client(impersonating(s.config(nil), "a")), merge, dryA, ours, forbidden},
		{"is another node", onB, merge, dryB, ours, forbidden},
		{"writes another node", onA, merge, dryB, ours, forbidden},
		{"gets another node", onA, "GET", "nodes/b", "", forbidden},
		{"labels the node as restricted", onA, merge, dryA, `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`, forbidden},
		{"posts an event elsewhere", onA, "POST", "namespaces/kube-system/events?dryRun=All", ofPod, forbidden},
		{"creates a lease", onA, "POST", leases, `{"metadata":{"name":"a"}}`, forbidden},
		{"lists pods", onA, "GET", "pods?fieldSelector=spec.nodeName%3Da", "", forbidden},
		{"deletes its node", onA, "DELETE", "nodes/a", "", forbidden},
	})
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
const criticalByQuota = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`

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
