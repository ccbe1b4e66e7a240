package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// ourConditions are those of the default configuration.
var ourConditions = []corev1.NodeConditionType{
	"nodeprobe.dev/MemoryPressure", ourDisk, "nodeprobe.dev/PIDPressure", "nodeprobe.dev/MemoryContention",
	"nodeprobe.dev/IOContention", ourReadonly,
}

const notPosted = "node status is not posted"

// newBeside makes up a Node that is a kubelet's, for a nodeprobe in mode augment
// that has the rights it needs, but one.
func newBeside(t *testing.T, cp *controlplane.ControlPlane, lacks permission) (n *node, user string) {
	t.Helper()
	n = newNode(t, cp, agent.Config{"mode": "augment", "conditionHeartbeat": "10s"})
	user = "augment-" + n.name
	n.spec.Kubeconfig = must.Get(cp.Kubeconfig(user))(t)
	n.grant(lacks, user)
	return n, user
}

// register does what a kubelet does at its start.
func (n *node) register() {
	n.t.Helper()
	must.Get(n.client.CoreV1().Nodes().Create(n.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{"a": "b"}}}, metav1.CreateOptions{}))(n.t)
}

// waitOurs waits until our conditions are there and False, but those named.
func (n *node) waitOurs(but ...corev1.NodeConditionType) {
	n.t.Helper()
	for _, kind := range ourConditions {
		if !slices.Contains(but, kind) {
			n.waitCondition(kind, corev1.ConditionFalse)
		}
	}
}

// An identity beside a kubelet's that lacks exactly one permission: nodeprobe says
// which, and does all that it can without.
func TestAugmentMissingPermission(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	ready := func(n *node, a *agent.Agent) {
		n.waitReady(a)
		n.waitOurs()
	}
	// An Event comes of a condition that is another one than we have left there.
	flip := func(n *node, times int) {
		for range times {
			n.setOurs(ourDisk, corev1.ConditionTrue)
			n.waitOurs()
		}
	}
	for _, test := range []struct {
		lacks permission
		log   string // the message of the complaint
		// still is what works without.
		still func(n *node, a *agent.Agent)
		heals bool
	}{
		{permission{"get", "", "nodes"}, "node cannot be read; a patch that changes nothing is answered with it", ready, false},
		{permission{"watch", "", "nodes"}, "watch of the node ended", ready, false},
		{permission{"patch", "", "nodes/status"}, notPosted, func(n *node, a *agent.Agent) {
			wantReadyz(n.t, a, "missing permission: patch nodes/status (")
			must.Note(n.t, wantCode(a, "/livez", 200))
		}, true},
		{permission{"create", "", "events"}, "event is not posted", func(n *node, a *agent.Agent) {
			ready(n, a)
			flip(n, 1)
		}, false},
		{permission{"patch", "", "events"}, "events are created again instead of counted up", func(n *node, a *agent.Agent) {
			ready(n, a)
			flip(n, 3)
		}, false},
		// These are not needed.
		{permission{"create", "", "nodes"}, "", ready, false},
		{permission{"get", leaseGroup, "leases"}, "", ready, false},
	} {
		t.Run(test.lacks.verb+" "+test.lacks.resource, func(t *testing.T) {
			t.Parallel()
			n, user := newBeside(t, cp, test.lacks)
			n.register()
			n.addForeign()
			a := n.start()
			test.still(n, a)
			if test.log != "" {
				r := waitComplaint(t, a, test.log, "missing permission: "+test.lacks.String()+" (")
				t.Log(r.Err)
				if !r.Bad() || !strings.Contains(r.Err, "bind a role that has it to this user") {
					t.Errorf("logged %s", r.Line)
				}
			}
			checkOnce(t, a)
			if test.heals {
				n.grant(permission{}, user)
				n.beat() // or within a minute
				n.waitReady(a)
				n.waitOurs()
			}
			n.wantForeign()
		})
	}
}

// beat has the Node change, as a kubelet does every now and then.
func (n *node) beat() {
	n.t.Helper()
	n.patch(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"example.com/beat": time.Now().String()}}})
}

// setOurs gives one of our conditions another status, in our name.
func (n *node) setOurs(kind corev1.NodeConditionType, status corev1.ConditionStatus) {
	n.t.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, kind, status)
	must.Get(n.client.CoreV1().Nodes().Patch(n.t.Context(), n.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "nodeprobe"}, "status"))(n.t)
}

// The kubelet's Node is deleted while we run, and comes back: we wait for it, and
// create none.
func TestAugmentDeleted(t *testing.T) {
	t.Parallel()
	n, _ := newBeside(t, controlplane.StartForTest(t), permission{})
	n.register()
	a := n.start()
	n.waitReady(a)
	n.waitOurs()
	must.OK(t, n.client.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}))
	const want = "who runs the node has to register it, or this is not its name (nodeName, NODE_NAME)"
	wantReadyz(t, a, want)
	waitComplaint(t, a, notPosted, want)
	time.Sleep(2 * time.Second) // long enough for several attempts
	if _, err := n.get(); err == nil {
		t.Error("somebody has created the Node")
	}
	n.register()
	n.waitReady(a)
	n.waitOurs()
	checkOnce(t, a)
}

// Somebody else writes a condition of a type that is ours: it is left alone, which
// the log tells, and the others are posted. It is ours once they have removed it.
func TestAugmentForeignType(t *testing.T) {
	t.Parallel()
	n, _ := newBeside(t, controlplane.StartForTest(t), permission{})
	n.register()
	now := metav1.Now()
	n.patchStatus(map[string]any{"conditions": []corev1.NodeCondition{{
		Type: ourDisk, Status: corev1.ConditionTrue, Reason: "Theirs", Message: "not ours", LastHeartbeatTime: now, LastTransitionTime: now,
	}}})
	a := n.start()
	r := waitComplaint(t, a, "part of the node's status could not be set", "condition "+ourDisk+" was written by ")
	t.Log(r.Err)
	if !strings.Contains(r.Err, "it is left alone; choose another type, or remove that condition") {
		t.Errorf("logged %s", r.Line)
	}
	n.waitReady(a)
	n.waitOurs(ourDisk)
	if c := nodewatch.Condition(n.mustGet(), ourDisk); c.Status != corev1.ConditionTrue || c.Reason != "Theirs" {
		t.Errorf("theirs is now %+v", c)
	}
	checkOnce(t, a)
	n.patchStatus(map[string]any{"conditions": []map[string]string{{"$patch": "delete", "type": ourDisk}}})
	n.waitOurs()
	a.Stop()
	if left := n.ours(); len(left) > 0 {
		t.Errorf("after the end there is %v", left)
	}
}

// A policy of the cluster refuses our patches: its message is logged once, the
// requests are few, whatever the conditions do, and all is well once the policy is
// gone.
func TestAugmentRefused(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	n, user := newBeside(t, cp, permission{})
	n.register()
	const says = "conditions of example.com are for the kubelet alone"
	policies, create := cp.Client().AdmissionregistrationV1(), metav1.CreateOptions{}
	name := "no-conditions"
	must.Get(policies.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
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
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, create))(t)
	a := n.start()
	r := waitComplaint(t, a, notPosted, says)
	t.Log(r.Err)
	if !strings.Contains(r.Err, "not admitted: ") || !strings.Contains(r.Err, name) {
		t.Errorf("logged %s", r.Line)
	}
	wantReadyz(t, a, says)

	before := len(n.requests(cp, user))
	began := time.Now()
	for time.Since(began) < 30*time.Second {
		n.beat()
		time.Sleep(time.Second)
	}
	sent, window := n.requests(cp, user)[before:], time.Since(began)
	t.Logf("%d requests in %s: %v", len(sent), window, sent)
	if len(sent) > 2*(3+int(window/(10*time.Second)))+1 { // a burst of patches, and one in ten seconds; each after a read
		t.Errorf("%d requests in %s", len(sent), window)
	}
	checkOnce(t, a)
	must.OK(t, policies.ValidatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
	eventually(t, "all is posted", func() error {
		n.beat() // or within a minute
		return wantCode(a, "/readyz", 200)
	})
	n.waitOurs()
}

// requests returns what a user has asked for so far.
func (n *node) requests(cp *controlplane.ControlPlane, user string) (sent []string) {
	n.t.Helper()
	all := must.Get(cp.AuditEvents())(n.t)
	for _, e := range all {
		if e.User.Username == user {
			sent = append(sent, fmt.Sprintf("%s %d", e.Request(), e.ResponseStatus.Code))
		}
	}
	return sent
}
