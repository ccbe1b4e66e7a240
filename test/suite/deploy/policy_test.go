package deploy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

func patchStatus(t *testing.T, in kubernetes.Interface, node, patch string, opts metav1.PatchOptions) error {
	_, err := in.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(patch), opts, "status")
	return err
}

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

func (s *stage) node(name string) *corev1.Node {
	s.t.Helper()
	return must.Get(s.cp.Client().CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{}))(s.t)
}

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

// On nodes of other systems, and on those that are no machines, the pods of a
// DaemonSet never run; one that tolerates every taint has to say so.
func TestPlaces(t *testing.T) {
	s := newStage(t, "identity")
	for name, labels := range map[string]map[string]string{
		"windows":         {"kubernetes.io/os": "windows"},
		"fargate":         {"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"},
		"virtual-kubelet": {"kubernetes.io/os": "linux", "type": "virtual-kubelet"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		must.Get(s.cp.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
	}
	s.run("apply", "--validate=strict", "-k", filepath.Join(build.RootForTest(t), "deploy", "base"))
	s.run("apply", "--validate=strict", "-k", filepath.Join(build.RootForTest(t), "deploy", "overlays", "own"))
	desired := func(name string, want int32) {
		t.Helper()
		s.eventually("the controller has counted nodes for "+name, func() error {
			ds, err := s.cp.Client().AppsV1().DaemonSets("nodeprobe").Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (ds.Status.ObservedGeneration == 0 || ds.Status.DesiredNumberScheduled != want) {
				err = fmt.Errorf("they are %d, want %d", ds.Status.DesiredNumberScheduled, want)
			}
			return err
		})
	}
	desired("nodeprobe", 2)
	// Mode own is for them, if somebody says so.
	s.run("label", "node", "virtual-kubelet", "nodeprobe.dev/own=true")
	desired("nodeprobe-own", 1)
}

// criticalByQuota is how GKE, and who follows Kubernetes' page on it, keeps critical
// pods out of namespaces that have no quota for them.
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

// Where critical pods need a quota, there are ours all the same.
func TestCriticalByQuota(t *testing.T) {
	helm := helm(t)
	s := newStageWith(t, controlplane.Options{Admission: criticalByQuota}, "identity", "base")
	s.pod("a")
	s.run("create", "namespace", "monitoring")
	run(t, nil, helm, "install", "nodeprobe-b", filepath.Join(build.RootForTest(t), "deploy", "helm", "nodeprobe"),
		"--namespace=monitoring", "--kubeconfig="+s.cp.AdminKubeconfig())
	s.eventually("the chart's DaemonSet has its pods", func() error {
		pods, err := s.cp.Client().CoreV1().Pods("monitoring").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(pods.Items) != 2 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
}

// Who goes from augment to observe loses the identity: a DaemonSet that still named it
// could make no pod once it is removed. What was applied before stays in fields that
// the API server has filled in, so leaving a name out is not enough.
func TestModeChanges(t *testing.T) {
	helm := helm(t)
	s := newStage(t, "identity", "base")
	wantAccount := func(name, when, want string) {
		t.Helper()
		ds := must.Get(s.cp.Client().AppsV1().DaemonSets("nodeprobe").Get(t.Context(), name, metav1.GetOptions{}))(t)
		if spec := ds.Spec.Template.Spec; spec.ServiceAccountName != want || *spec.AutomountServiceAccountToken != (want == name) {
			t.Errorf("%s: service account %q, token %t", when, spec.ServiceAccountName, *spec.AutomountServiceAccountToken)
		}
	}
	wantAccount("nodeprobe", "kustomize, augment", "nodeprobe")
	s.run("apply", "--validate=strict", "-k", filepath.Join(build.RootForTest(t), "deploy", "overlays", "observe"))
	wantAccount("nodeprobe", "kustomize, observe", "default")

	release := []string{"nodeprobe-b", filepath.Join(build.RootForTest(t), "deploy", "helm", "nodeprobe"), "--namespace=nodeprobe", "--kubeconfig=" + s.cp.AdminKubeconfig()}
	run(t, nil, helm, append([]string{"install"}, release...)...)
	wantAccount("nodeprobe-b", "Helm, augment", "nodeprobe-b")
	run(t, nil, helm, append([]string{"upgrade", "--set=mode=observe"}, release...)...)
	wantAccount("nodeprobe-b", "Helm, observe", "default")
}
