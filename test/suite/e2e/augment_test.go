package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	ourMemory           = "nodeprobe.dev/MemoryPressure"
	ourDisk             = "nodeprobe.dev/DiskPressure"
	ourPIDs             = "nodeprobe.dev/PIDPressure"
	ourMemoryContention = "nodeprobe.dev/MemoryContention"
	ourIOContention     = "nodeprobe.dev/IOContention"
	ourReadonly         = "nodeprobe.dev/ReadonlyFilesystem"
)

// ourConditions are those of the default configuration.
var ourConditions = []corev1.NodeConditionType{ourMemory, ourDisk, ourPIDs, ourMemoryContention, ourIOContention, ourReadonly}

// newBeside makes up a Node that is a kubelet's, for a nodeprobe in mode augment.
func newBeside(t *testing.T, cp *controlplane.ControlPlane) (n *node, user string) {
	t.Helper()
	n = newNode(t, cp, agent.Config{"mode": "augment", "conditionHeartbeat": "10s"})
	user = n.asUser(permission{})
	n.register()
	return n, user
}

func (n *node) register() {
	n.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{"a": "b"}}}
	must.Get(n.Client.CoreV1().Nodes().Create(n.T.Context(), node, metav1.CreateOptions{}))(n.T)
}

func (n *node) waitOurs(but ...corev1.NodeConditionType) {
	n.T.Helper()
	for _, kind := range ourConditions {
		if !slices.Contains(but, kind) {
			n.WaitCondition(kind, corev1.ConditionFalse)
		}
	}
}

func (n *node) beat() {
	n.T.Helper()
	n.patch(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"example.com/beat": time.Now().String()}}})
}

func (n *node) setOurs(kind corev1.NodeConditionType, status corev1.ConditionStatus) {
	n.T.Helper()
	n.patchAs("nodeprobe", map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": kind, "status": status}}}}, "status")
}

// wantOurs wants so many of the Node's conditions to be no kubelet's, and returns them.
func (n *node) wantOurs(when string, want int) (types []string) {
	n.T.Helper()
	for _, c := range n.MustGet().Status.Conditions {
		if strings.HasPrefix(string(c.Type), "nodeprobe.dev/") || strings.HasPrefix(string(c.Type), "example.com/") {
			types = append(types, string(c.Type))
		}
	}
	if len(types) != want {
		n.T.Errorf("%s there is %v, want %d of them", when, types, want)
	}
	return types
}

const noNode = "it must be registered by whatever runs the node, or its name is another (nodeName, NODE_NAME)"

// Beside a kubelet only conditions of our own are written, and Events: they follow
// the disk and the mount, and nothing else of the Node changes, nor does a Lease
// come to be. They are gone when nodeprobe is, and what a configuration had and
// another has not is removed.
func TestAugment(t *testing.T) {
	t.Parallel()
	fs := pressure.Disk(t, 64)
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	row := func(when ...string) map[string]any {
		return map[string]any{"when": when, "reason": "Bad", "okReason": "Good"}
	}
	n := newNode(t, cp, agent.Config{
		"mode": "augment", "bpf": "auto", "rootDirectory": fs.Dir,
		"evictionHard":       agent.Hard(map[string]string{"nodefs.available": "20Mi"}),
		"conditionHeartbeat": "10s",
		"conditions":         map[string]any{"example.com/Dropped": row("PIDPressure")},
	})
	user := "augment-" + n.Name
	n.Spec.Kubeconfig = must.Get(cp.Kubeconfig(user))(t)
	n.bind([]permission{{"get", "", "nodes"}, {"watch", "", "nodes"}, {"patch", "", "nodes/status"}, {"create", "", "events"}, {"patch", "", "events"}}, user)

	// It waits for the kubelet to register the Node, whom we play.
	a := n.Start()
	stage.WaitUnready(t, a, noNode)
	n.register()
	now := metav1.Now()
	n.patchStatus(map[string]any{"conditions": []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", LastHeartbeatTime: now, LastTransitionTime: now},
	}})
	n.addForeign()
	n.WaitReady(a)
	n.waitOurs()
	n.WaitCondition("example.com/Dropped", corev1.ConditionFalse)
	before := n.MustGet()

	must.OK(t, fs.Fill(10<<20))
	n.WaitCondition(ourDisk, corev1.ConditionTrue)
	if c := nodewatch.Condition(n.MustGet(), ourDisk); c.Reason != "DiskIsShort" || !strings.HasPrefix(c.Message, "nodefs.available is ") || !strings.HasSuffix(c.Message, "Mi, below 20Mi") {
		t.Errorf("%+v", c)
	}
	must.OK(t, fs.Empty())
	n.WaitCondition(ourDisk, corev1.ConditionFalse)
	must.OK(t, fs.SetReadOnly(true))
	n.WaitCondition(ourReadonly, corev1.ConditionTrue)
	must.OK(t, fs.SetReadOnly(false))
	n.WaitCondition(ourReadonly, corev1.ConditionFalse)

	// What others have written has not changed in the least.
	others := func(node *corev1.Node) string {
		node = node.DeepCopy()
		node.ResourceVersion, node.ManagedFields = "", nil
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return strings.HasPrefix(string(c.Type), "nodeprobe.dev/") || c.Type == "example.com/Dropped"
		})
		return string(must.Get(json.MarshalIndent(node, "", " "))(t))
	}
	if got, want := others(n.MustGet()), others(before); got != want {
		t.Errorf("the rest of the Node has changed: %s, was %s", got, want)
	}
	if lease, err := n.Lease(); err == nil {
		t.Errorf("there is a Lease: %+v", lease)
	}
	for reason, kind := range map[string]string{"DiskIsShort": "Warning", "DiskIsSufficient": "Normal", "FilesystemIsReadOnly": "Warning", "FilesystemIsWritable": "Normal"} {
		if e := n.waitEvent(reason, ""); e.Type != kind || e.Source.Component != "nodeprobe" {
			t.Errorf("event %+v", e)
		}
	}

	// Another configuration while it runs: one row is gone, one is new.
	n.Spec.Config["conditions"] = map[string]any{"example.com/Added": row("nodefs.available < 1Mi")}
	replace(t, filepath.Join(n.Spec.Dir, n.Name+".yaml"), must.Get(json.Marshal(n.Spec.Config))(t))
	signal(t, a, syscall.SIGHUP)
	n.WaitCondition("example.com/Added", corev1.ConditionFalse)
	n.WaitCondition("example.com/Dropped", "")

	// Another configuration; and the end.
	n.Spec.Config["conditions"] = map[string]any{ourPIDs: map[string]any{"when": []string{}}}
	n.Spec.Config["conditionsOnExit"] = "keep"
	a.Stop()
	n.wantOurs("after the end", 0)
	a = n.StartReady()
	n.WaitCondition(ourDisk, corev1.ConditionFalse)
	a.Stop()
	if slices.Contains(n.wantOurs("kept", 5), ourPIDs) {
		t.Error("kept: " + ourPIDs)
	}
	out, err := exec.Command(n.Spec.Binary, "cleanup", "--kubeconfig", n.Spec.Kubeconfig, "--hostname-override", n.Name).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "removed nodeprobe.dev/DiskPressure, ") {
		t.Errorf("cleanup: %v: %s", err, out)
	}
	n.wantOurs("after cleanup", 0)
	n.wantForeign()
	n.wantOnlyConditions(user)
}

// wantOnlyConditions reads in the API server's audit log what a user has asked for:
// conditions of ours and Events, and all of it was allowed.
func (n *node) wantOnlyConditions(user string) {
	n.T.Helper()
	patches := 0
	for _, e := range must.Get(n.CP.AuditEvents())(n.T) {
		if e.User.Username != user {
			continue
		}
		if e.ResponseStatus.Code >= 400 && e.ResponseStatus.Code != 404 { // before there was a Node
			n.T.Errorf("%s %s: %d", e.Verb, e.RequestURI, e.ResponseStatus.Code)
		}
		switch e.Request() {
		case "get nodes", "watch nodes", "create events", "patch events":
		case "patch nodes/status":
			patches++
			if err := stage.OnlyConditions(e.RequestObject, "nodeprobe.dev/", "example.com/"); err != nil || e.ObjectRef.Name != n.Name {
				n.T.Errorf("%s: %v: %s", e.RequestURI, err, e.RequestObject)
			}
		default:
			n.T.Errorf("unexpected request: %s", e.Request())
		}
	}
	if patches == 0 {
		n.T.Error("the audit log has no patch")
	}
}

// The kubelet's Node is deleted while we run, and comes back: we wait for it, and
// create none.
func TestAugmentDeleted(t *testing.T) {
	t.Parallel()
	n, _ := newBeside(t, controlplane.StartForTest(t))
	a := n.StartReady()
	n.waitOurs()
	n.Delete()
	stage.WaitUnready(t, a, noNode)
	stage.WaitComplaint(t, a, notPosted, noNode)
	time.Sleep(2 * time.Second) // long enough for several attempts
	if _, err := n.Get(); err == nil {
		t.Error("somebody has created the Node")
	}
	n.register()
	n.WaitReady(a)
	n.waitOurs()
	stage.CheckOnce(t, a)
}

// Somebody else writes a condition of a type that is ours: it is left alone, which
// the log tells, and the others are posted. It is ours once they have removed it.
func TestAugmentForeignType(t *testing.T) {
	t.Parallel()
	n, _ := newBeside(t, controlplane.StartForTest(t))
	now := metav1.Now()
	n.patchStatus(map[string]any{"conditions": []corev1.NodeCondition{{
		Type: ourDisk, Status: corev1.ConditionTrue, Reason: "Theirs", Message: "not ours", LastHeartbeatTime: now, LastTransitionTime: now,
	}}})
	a := n.Start()
	r := stage.WaitComplaint(t, a, "part of the node's status could not be set", "condition "+ourDisk+" was written by ")
	t.Log(r.Err)
	if !strings.Contains(r.Err, "it is left alone; choose another type, or remove that condition") {
		t.Errorf("logged %s", r.Line)
	}
	n.WaitReady(a)
	n.waitOurs(ourDisk)
	if c := nodewatch.Condition(n.MustGet(), ourDisk); c.Status != corev1.ConditionTrue || c.Reason != "Theirs" {
		t.Errorf("theirs is now %+v", c)
	}
	stage.CheckOnce(t, a)
	n.patchStatus(map[string]any{"conditions": []map[string]string{{"$patch": "delete", "type": ourDisk}}})
	n.waitOurs()
	a.Stop()
	n.wantOurs("after the end", 0)
}

// A policy of the cluster refuses our patches: its message is logged once, the
// requests are few, whatever the conditions do, and all is well once the policy is
// gone.
func TestAugmentRefused(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	n, user := newBeside(t, cp)
	const says, name = "conditions of example.com are for the kubelet alone", "no-conditions"
	policies, create, meta := cp.Client().AdmissionregistrationV1(), metav1.CreateOptions{}, metav1.ObjectMeta{Name: name}
	must.Get(policies.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta,
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes/status"}},
				},
			}}},
			Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("request.userInfo.username != %q", user), Message: says}},
		},
	}, create))(t)
	must.Get(policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: meta,
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, create))(t)
	a := n.Start()
	r := stage.WaitComplaint(t, a, notPosted, says)
	t.Log(r.Err)
	if !strings.Contains(r.Err, "not admitted: ") || !strings.Contains(r.Err, name) {
		t.Errorf("logged %s", r.Line)
	}
	stage.WaitUnready(t, a, says)
	began := time.Now()
	for range 30 {
		n.beat()
		time.Sleep(time.Second)
	}
	sent, window := stage.Requests(t, cp, "nodeprobe", began), time.Since(began)
	if len(sent) > 2*(3+int(window/(10*time.Second)))+1 { // a burst of patches, and one in ten seconds; each after a read
		t.Errorf("%d requests in %s: %v", len(sent), window, sent)
	}
	stage.CheckOnce(t, a)
	must.OK(t, policies.ValidatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
	stage.Eventually(t, "all is posted", func() error {
		n.beat() // or within a minute
		return stage.Code(a, "/readyz", 200)
	})
	n.waitOurs()
}
