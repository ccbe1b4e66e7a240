package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// A Node appears that a kubelet could have registered, with a Lease that it
// could have made, and after that nothing goes over the wire but renewals.
func TestRegisters(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, agent.Config{
		"bpf":                "auto", // the one test that runs as most users do
		"nodeLabels":         map[string]string{"example.com/rack": "7"},
		"registerWithTaints": []map[string]string{{"key": "example.com/edge", "value": "yes", "effect": "NoSchedule"}},
		"systemReserved":     map[string]string{"cpu": "100m", "memory": "64Mi"},
	})
	proxy := n.Through()
	n.StartReady()

	n.checkNode(n.MustGet(), n.snapshot())
	n.checkLease()
	n.checkSteadyState(proxy)
}

// A Node that is there with nothing in its status has all of capacity and
// allocatable after the first patch, and declares no features of who ran it before.
func TestRegistersOnExisting(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, nil)
	proxy := n.Through()
	must.Get(n.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{}))(t)
	n.patchStatus(map[string]any{"declaredFeatures": []string{"ExtendWebSocketsToKubelet", "InPlacePodVerticalScalingInitContainers"}})
	if got := n.MustGet().Status; len(got.DeclaredFeatures) != 2 || len(got.Capacity) > 0 || len(got.Allocatable) > 0 {
		t.Fatalf("the status to begin with: %+v", got)
	}
	n.StartReady()

	var first struct{ Status map[string]json.RawMessage }
	for _, r := range proxy.Requests() {
		if r.Method == "PATCH" {
			must.OK(t, json.Unmarshal(r.Body, &first))
			break
		}
	}
	if got := string(first.Status["declaredFeatures"]); got != "null" {
		t.Errorf("declared features in the first patch: %q, want null", got)
	}
	want := n.snapshot().Status
	for field, want := range map[string]corev1.ResourceList{"capacity": want.Capacity, "allocatable": want.Allocatable} {
		var got corev1.ResourceList
		if err := json.Unmarshal(first.Status[field], &got); err != nil || !apiequality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s in the first patch: %s (%v), want %v", field, first.Status[field], err, want)
		}
	}
	if got := n.MustGet().Status.DeclaredFeatures; len(got) > 0 {
		t.Errorf("the node still declares %v", got)
	}
}

// snapshot returns the Node that "nodeprobe snapshot" would post from the same
// machine with the same configuration.
func (n *node) snapshot() *corev1.Node {
	n.T.Helper()
	config := must.Get(json.Marshal(n.Spec.Config.With(agent.Config{"nodeName": n.Name})))(n.T)
	file := filepath.Join(n.T.TempDir(), "snapshot.yaml")
	must.OK(n.T, os.WriteFile(file, config, 0o600))
	cmd := exec.CommandContext(n.T.Context(), n.Spec.Binary, "snapshot", "--config", file, "-o", "json")
	stdout, err := cmd.Output()
	// 3: some signal cannot be read here, such as those that need root.
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 3) {
		n.T.Fatalf("nodeprobe snapshot: %v", err)
	}
	var output struct{ Node *corev1.Node }
	must.OK(n.T, json.Unmarshal(stdout, &output))
	return output.Node
}

// checkNode compares the Node at the API server with a snapshot, and with what
// a kubelet would have written.
func (n *node) checkNode(got, want *corev1.Node) {
	t := n.T
	for _, field := range []struct {
		name      string
		got, want any
	}{
		{"labels", got.Labels, want.Labels},
		{"annotations", got.Annotations, want.Annotations},
		{"capacity", got.Status.Capacity, want.Status.Capacity},
		{"allocatable", got.Status.Allocatable, want.Status.Allocatable},
		{"addresses", got.Status.Addresses, want.Status.Addresses},
		{"nodeInfo", got.Status.NodeInfo, want.Status.NodeInfo},
		{"daemonEndpoints", got.Status.DaemonEndpoints, want.Status.DaemonEndpoints},
	} {
		if !apiequality.Semantic.DeepEqual(field.got, field.want) {
			t.Errorf("%s: got  %+v\nwant %+v", field.name, field.got, field.want)
		}
	}
	for key, want := range map[string]string{
		corev1.LabelHostname: got.Name, corev1.LabelOSStable: "linux", "beta.kubernetes.io/os": "linux",
		corev1.LabelArchStable: got.Status.NodeInfo.Architecture, "beta.kubernetes.io/arch": got.Status.NodeInfo.Architecture,
		"example.com/rack": "7",
	} {
		if value, ok := got.Labels[key]; !ok || value != want {
			t.Errorf("label %s: %q, want %q", key, value, want)
		}
	}
	if key := "volumes.kubernetes.io/controller-managed-attach-detach"; got.Annotations[key] != "true" {
		t.Errorf("annotation %s: %q", key, got.Annotations[key])
	}
	// The API server adds a taint of its own until a controller finds the Node
	// ready.
	if want := (corev1.Taint{Key: "example.com/edge", Value: "yes", Effect: corev1.TaintEffectNoSchedule}); !stage.HasTaint(got, want) {
		t.Errorf("taints: %+v, want %+v among them", got.Spec.Taints, want)
	}
	info := got.Status.NodeInfo
	if info.BootID == "" || info.KernelVersion == "" || info.OSImage == "" || info.KubeletVersion == "" {
		t.Errorf("something is missing: %+v", info)
	}
	reserved := got.Status.Capacity.Cpu().DeepCopy()
	reserved.Sub(*got.Status.Allocatable.Cpu())
	if reserved.MilliValue() != 100 {
		t.Errorf("%s of CPU reserved, want 100m", reserved.String())
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeHostName} {
		if !slices.ContainsFunc(got.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == kind }) {
			t.Errorf("addresses: %+v, want %s among them", got.Status.Addresses, kind)
		}
	}
	checkConditions(t, got)
}

// checkConditions wants the kubelet's four conditions, in its order and words.
func checkConditions(t *testing.T, node *corev1.Node) {
	t.Helper()
	want := []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
	}
	// Those of our own are another test's.
	conditions := slices.DeleteFunc(slices.Clone(node.Status.Conditions), func(c corev1.NodeCondition) bool { return !slices.Contains(stage.BuiltIn, c.Type) })
	if len(conditions) != len(want) {
		t.Fatalf("conditions: %+v", node.Status.Conditions)
	}
	for i, got := range conditions {
		if got.LastHeartbeatTime.IsZero() || got.LastTransitionTime.IsZero() {
			t.Errorf("%s has no times: %+v", got.Type, got)
		}
		got.LastHeartbeatTime, got.LastTransitionTime = metav1.Time{}, metav1.Time{}
		if got != want[i] {
			t.Errorf("condition %d: got %+v, want %+v", i, got, want[i])
		}
	}
}

func (n *node) checkLease() {
	t := n.T
	lease := must.Get(n.Lease())(t)
	n.wantOwnedLease(n.MustGet())
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != n.Name {
		t.Errorf("holder: %v, want %s", holder, n.Name)
	}
	if seconds := lease.Spec.LeaseDurationSeconds; seconds == nil || *seconds != 4 {
		t.Errorf("duration: %v, want 4", seconds)
	}
	n.WaitRenewed(lease.Spec.RenewTime.Time)
	if age := time.Since(must.Get(n.Lease())(t).Spec.RenewTime.Time); age < 0 {
		t.Errorf("renewed %s ago", age)
	}
}

// checkSteadyState wants one watch from the start, and then renewals only.
func (n *node) checkSteadyState(proxy *fault.Proxy) {
	t := n.T
	if watches := proxy.Count("GET", stage.NodesPath); watches != 1 {
		t.Errorf("%d watches of the node, want 1", watches)
	}
	proxy.Forget()
	stage.Until(t, "five renewals have gone by", func() bool { return proxy.Count("PUT", "") >= 5 })
	for _, r := range proxy.Requests() {
		if bytes.Contains(r.Body, []byte(`"OOMKilling"`)) {
			continue // a victim of another test is news to every nodeprobe on this machine
		}
		if r.Method != "PUT" || r.Path != stage.LeasesPath+"/"+n.Name {
			t.Errorf("in steady state: %s", r)
		}
		var lease coordinationv1.Lease
		if json.Unmarshal(r.Body, &lease) == nil && lease.ResourceVersion == "" {
			t.Errorf("renewal without a resource version: %s", r.Body)
		}
	}
}

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
