package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const (
	ourDisk     = "nodeprobe.dev/DiskPressure"
	ourReadonly = "nodeprobe.dev/ReadonlyFilesystem"
)

// grantAugment gives a user the rights that mode augment needs, and no other.
func grantAugment(t *testing.T, cp *controlplane.ControlPlane, user string) {
	t.Helper()
	ctx, create := t.Context(), metav1.CreateOptions{}
	name := strings.ReplaceAll(user, ":", "-")
	must.Get(cp.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}, create))(t)
	must.Get(cp.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, create))(t)
}

// Beside a kubelet only conditions of our own are written, and Events: they follow
// the disk and the mount, and nothing else of the Node changes, nor does a Lease
// come to be. They are gone when nodeprobe is, and what a configuration had and
// another has not is removed.
func TestAugment(t *testing.T) {
	t.Parallel()
	fs := pressure.DiskForTest(t, 64)
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	n := newNode(t, cp, agent.Config{
		"mode": "augment", "bpf": "auto", "rootDirectory": fs.Dir,
		"evictionHard":       agent.Hard(map[string]string{"nodefs.available": "20Mi"}),
		"conditionHeartbeat": "10s",
		"conditions":         map[string]any{"example.com/Dropped": map[string]any{"when": []string{"PIDPressure"}, "reason": "Bad", "okReason": "Good"}},
	})
	user := "augment-" + n.name
	var err error
	n.spec.Kubeconfig = must.Get(cp.Kubeconfig(user))(t)
	grantAugment(t, cp, user)

	// It waits for the kubelet to register the Node, whom we play.
	a := n.start()
	eventually(t, "nodeprobe says that there is no Node", func() error {
		code, body, err := a.Get(t.Context(), "/readyz")
		if err == nil && (code != 503 || !strings.Contains(string(body), "not its name (nodeName, NODE_NAME)")) {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	})
	must.Get(cp.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{"a": "b"}}}, metav1.CreateOptions{}))(t)
	now := metav1.Now()
	n.patchStatus(map[string]any{"conditions": []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", LastHeartbeatTime: now, LastTransitionTime: now},
	}})
	n.addForeign()
	n.waitReady(a)
	history := n.follow()
	for _, kind := range []corev1.NodeConditionType{
		"nodeprobe.dev/MemoryPressure", ourDisk, "nodeprobe.dev/PIDPressure", "nodeprobe.dev/MemoryContention",
		"nodeprobe.dev/IOContention", ourReadonly, "example.com/Dropped",
	} {
		n.waitCondition(kind, corev1.ConditionFalse)
	}
	before := n.mustGet()

	filled := time.Now()
	must.OK(t, fs.Fill(10<<20))
	n.waitCondition(ourDisk, corev1.ConditionTrue)
	for _, seen := range history.All() {
		if !seen.At.Before(filled) && nodewatch.Has(ourDisk, corev1.ConditionTrue)(seen.Node) {
			t.Logf("full: True %s after the first write", seen.At.Sub(filled).Round(time.Millisecond))
			break
		}
	}
	if c := nodewatch.Condition(n.mustGet(), ourDisk); c.Reason != "DiskIsShort" || !strings.HasPrefix(c.Message, "nodefs.available is ") || !strings.HasSuffix(c.Message, "Mi, below 20Mi") {
		t.Errorf("%+v", c)
	}
	must.OK(t, fs.Empty())
	n.waitCondition(ourDisk, corev1.ConditionFalse)
	must.OK(t, fs.SetReadOnly(true))
	n.waitCondition(ourReadonly, corev1.ConditionTrue)
	must.OK(t, fs.SetReadOnly(false))
	n.waitCondition(ourReadonly, corev1.ConditionFalse)

	// What others have written has not changed in the least.
	others := func(node *corev1.Node) string {
		node = node.DeepCopy()
		node.ResourceVersion, node.ManagedFields = "", nil
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return strings.HasPrefix(string(c.Type), "nodeprobe.dev/") || c.Type == "example.com/Dropped"
		})
		text := must.Get(json.MarshalIndent(node, "", " "))(t)
		return string(text)
	}
	if got, want := others(n.mustGet()), others(before); got != want {
		t.Errorf("the rest of the Node has changed: %s, was %s", got, want)
	}
	if lease, err := n.lease(); err == nil {
		t.Errorf("there is a Lease: %+v", lease)
	}
	n.wantAugmentEvents()

	// Another configuration while it runs: one row is gone, one is new.
	n.spec.Config["conditions"] = map[string]any{"example.com/Added": map[string]any{"when": []string{"nodefs.available < 1Mi"}, "reason": "Bad", "okReason": "Good"}}
	config := must.Get(json.Marshal(n.spec.Config))(t)
	must.OK(t, os.WriteFile(filepath.Join(n.spec.Dir, n.name+".yaml"), config, 0o600))
	must.OK(t, syscall.Kill(a.PID(), syscall.SIGHUP))
	n.waitCondition("example.com/Added", corev1.ConditionFalse)
	eventually(t, "the row that is gone has no condition", func() error {
		if left := n.ours(); slices.Contains(left, "example.com/Dropped") {
			return fmt.Errorf("there is %v", left)
		}
		return nil
	})

	// Another configuration; and the end.
	n.spec.Config["conditions"] = map[string]any{"nodeprobe.dev/PIDPressure": map[string]any{"when": []string{}}}
	n.spec.Config["conditionsOnExit"] = "keep"
	a.Stop()
	if left := n.ours(); len(left) > 0 {
		t.Errorf("after the end there is %v", left)
	}
	a = n.startReady()
	n.waitCondition(ourDisk, corev1.ConditionFalse)
	a.Stop()
	if left := n.ours(); len(left) != 5 || slices.Contains(left, "nodeprobe.dev/PIDPressure") {
		t.Errorf("kept: %v", left)
	}
	out, err := exec.Command(n.spec.Binary, "cleanup", "--kubeconfig", n.spec.Kubeconfig, "--hostname-override", n.name).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "removed nodeprobe.dev/DiskPressure, ") {
		t.Errorf("cleanup: %v: %s", err, out)
	}
	if left := n.ours(); len(left) > 0 {
		t.Errorf("after cleanup there is %v", left)
	}
	n.wantForeign()
	wantOnlyConditions(t, cp, user, n.name)
}

// ours returns the types of the Node's conditions that are no kubelet's.
func (n *node) ours() (types []string) {
	n.t.Helper()
	for _, c := range n.mustGet().Status.Conditions {
		if strings.HasPrefix(string(c.Type), "nodeprobe.dev/") || strings.HasPrefix(string(c.Type), "example.com/") {
			types = append(types, string(c.Type))
		}
	}
	return types
}

// wantAugmentEvents waits for the Events of what has happened.
func (n *node) wantAugmentEvents() {
	n.t.Helper()
	for _, want := range []string{"Warning DiskIsShort", "Normal DiskIsSufficient", "Warning FilesystemIsReadOnly", "Normal FilesystemIsWritable"} {
		eventually(n.t, "there is an Event "+want, func() error {
			list, err := n.client.CoreV1().Events("").List(n.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name})
			if err != nil {
				return err
			}
			for _, e := range list.Items {
				if e.Type+" "+e.Reason == want && e.InvolvedObject.UID != "" && e.Source.Component == "nodeprobe" {
					return nil
				}
			}
			return fmt.Errorf("there are %d others", len(list.Items))
		})
	}
}

// wantOnlyConditions reads in the API server's audit log what a user has written,
// and that all of it was allowed.
func wantOnlyConditions(t *testing.T, cp *controlplane.ControlPlane, user, node string) {
	t.Helper()
	all := must.Get(cp.AuditEvents())(t)
	writes := map[string]int{}
	for _, e := range all {
		if e.User.Username != user {
			continue
		}
		writes[e.Request()]++
		if e.ResponseStatus.Code >= 400 && e.ResponseStatus.Code != 404 { // before there was a Node
			t.Errorf("%s %s: %d", e.Verb, e.RequestURI, e.ResponseStatus.Code)
		}
		if e.Verb != "patch" || e.ObjectRef.Resource != "nodes" {
			continue
		}
		var patch map[string]map[string][]struct{ Type string }
		if err := json.Unmarshal(e.RequestObject, &patch); err != nil || len(patch) != 1 || len(patch["status"]) != 1 || e.ObjectRef.Name != node {
			t.Errorf("%s: more than conditions, or another node: %s, %v", e.RequestURI, e.RequestObject, err)
		}
		for _, c := range patch["status"]["conditions"] {
			if !strings.Contains(c.Type, "/") {
				t.Errorf("a condition that is not ours: %s", e.RequestObject)
			}
		}
	}
	t.Logf("requests: %v", writes)
	for request := range writes {
		if !slices.Contains([]string{"get nodes", "watch nodes", "patch nodes/status", "create events", "patch events"}, request) {
			t.Errorf("unexpected request: %s", request)
		}
	}
	if writes["patch nodes/status"] == 0 {
		t.Error("the audit log has no patch")
	}
}
