package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// permission is a verb and what it may be done to.
type permission struct{ verb, group, resource string }

const leaseGroup = "coordination.k8s.io"

// needed is all that own mode asks the API server for.
var needed = []permission{
	{"create", "", "nodes"},
	{"get", "", "nodes"},
	{"watch", "", "nodes"},
	{"patch", "", "nodes/status"},
	{"get", leaseGroup, "leases"},
	{"create", leaseGroup, "leases"},
	{"update", leaseGroup, "leases"},
	{"create", "", "events"},
	{"patch", "", "events"},
}

// grant gives users all permissions but one, and returns when the API server
// knows.
func (n *node) grant(but permission, users ...string) {
	n.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	for _, p := range needed {
		if p != but {
			role.Rules = append(role.Rules, rbacv1.PolicyRule{Verbs: []string{p.verb}, APIGroups: []string{p.group}, Resources: []string{p.resource}})
		}
	}
	rbac := n.client.RbacV1()
	// This creates it, too.
	must.Get(rbac.ClusterRoles().Update(n.t.Context(), role, metav1.UpdateOptions{}))(n.t)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: n.name},
	}
	for _, user := range users {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user})
	}
	must.Get(rbac.ClusterRoleBindings().Update(n.t.Context(), binding, metav1.UpdateOptions{}))(n.t)
	eventually(n.t, "the role is in force", func() error {
		for _, p := range needed {
			resource, sub, _ := strings.Cut(p.resource, "/")
			review, err := n.client.AuthorizationV1().SubjectAccessReviews().Create(n.t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: users[0], ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: p.verb, Group: p.group, Resource: resource, Subresource: sub, Name: n.name,
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if want := p != but; review.Status.Allowed != want {
				return fmt.Errorf("%+v is allowed: %v", p, review.Status.Allowed)
			}
		}
		return nil
	})
}

// wantReadyz waits until /readyz names what is wrong.
func wantReadyz(t *testing.T, a *agent.Agent, text string) {
	t.Helper()
	eventually(t, "/readyz says "+text, func() error {
		code, body, err := a.Get(context.Background(), "/readyz")
		if err == nil && (code != 503 || !strings.Contains(string(body), text)) {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	})
}

// waitComplaint waits until the message is logged with a text in its error, and
// returns the record.
func waitComplaint(t *testing.T, a *agent.Agent, msg, text string) (found agent.Record) {
	t.Helper()
	eventually(t, msg+": "+text, func() error {
		all := logged(t, a, msg)
		i := slices.IndexFunc(all, func(r agent.Record) bool { return strings.Contains(r.Err, text) })
		if i < 0 {
			return fmt.Errorf("logged %+v", all)
		}
		found = all[i]
		return nil
	})
	return found
}

// checkOnce wants no complaint twice.
func checkOnce(t *testing.T, a *agent.Agent) {
	t.Helper()
	count := map[string]int{}
	for _, r := range allLogged(t, a) {
		if !r.Bad() {
			continue
		}
		key := r.Msg + ": " + r.Err
		if count[key]++; count[key] == 2 {
			t.Errorf("logged more than once: %s", r.Line)
		}
	}
}

// An identity that lacks exactly one permission: nodeprobe says which, where it is
// to be had, and does all that it can without.
func TestMissingPermission(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	const status, lease = "node status is not posted", "failed to renew the lease"
	// What works without.
	ready := func(n *node, a *agent.Agent) { n.waitReady(a) }
	posted := func(n *node, _ *agent.Agent) { n.waitCondition(corev1.NodeReady, corev1.ConditionTrue) }
	tests := []struct {
		lacks permission
		// exists has the Node be there before.
		exists bool
		log    string // the message of the complaint
		readyz bool   // /readyz tells, too
		still  func(n *node, a *agent.Agent)
		// heals says that the permission is found out when it is given.
		heals bool
	}{
		{permission{"create", "", "nodes"}, false, status, true, nil, true},
		{permission{"create", "", "nodes"}, true, "", false, ready, false},
		{permission{"get", "", "nodes"}, false, "", false, ready, false},
		{permission{"get", "", "nodes"}, true, "node cannot be read; a patch that changes nothing is answered with it", false, ready, false},
		{permission{"watch", "", "nodes"}, false, "watch of the node ended", false, func(n *node, a *agent.Agent) {
			n.waitReady(a)
			n.addForeign()
			n.markUnknown() // which the answer to the next patch shows
			n.waitMended()
			n.wantForeign()
		}, false},
		{permission{"patch", "", "nodes/status"}, false, status, true, func(n *node, _ *agent.Agent) { n.waitRenewed(time.Now()) }, true},
		// Nobody can tell whether a kubelet is alive.
		{permission{"get", leaseGroup, "leases"}, false, status, true, func(n *node, a *agent.Agent) {
			waitComplaint(n.t, a, "not renewing the lease: unhealthy", "cannot tell yet whether a kubelet is alive")
			if _, err := n.get(); !apierrors.IsNotFound(err) {
				n.t.Errorf("there is a Node: %v", err)
			}
		}, true},
		{permission{"create", leaseGroup, "leases"}, false, lease, true, posted, true},
		{permission{"update", leaseGroup, "leases"}, false, lease, true, posted, true},
		{permission{"create", "", "events"}, false, "event is not posted", false, ready, false},
		{permission{"patch", "", "events"}, false, "", false, func(n *node, a *agent.Agent) {
			n.waitReady(a)
			for range 2 {
				n.markUnknown()
				n.waitMended()
			}
			waitComplaint(n.t, a, "events are created again instead of counted up", "missing permission: patch events in namespace default (")
		}, false},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s %s, exists %v", test.lacks.verb, test.lacks.resource, test.exists), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s"})
			user := "agent-of-" + n.name
			n.spec.Kubeconfig = must.Get(cp.Kubeconfig(user))(t)
			n.grant(test.lacks, user)
			if test.exists {
				must.Get(n.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{}))(t)
				n.addForeign()
			}
			a := n.start()
			missing := "missing permission: " + test.lacks.String() + " (a kubelet's identity has it: user system:node:" + n.name + " in group system:nodes; or bind a role that has it to this user)"
			if test.log != "" {
				r := waitComplaint(t, a, test.log, missing)
				t.Log(r.Err)
				if !r.Bad() || !strings.Contains(r.Err, `User "`+user+`" cannot `) {
					t.Errorf("logged %s", r.Line)
				}
			}
			if test.readyz {
				wantReadyz(t, a, missing)
			}
			if test.still != nil {
				test.still(n, a)
			}
			if test.exists {
				n.wantForeign()
			}
			checkOnce(t, a)
			if test.heals {
				n.grant(permission{}, user)
				n.waitReady(a)
				n.waitRenewed(time.Now())
			}
			if got := nodewatch.Condition(n.mustGet(), corev1.NodeMemoryPressure).Status; got != corev1.ConditionFalse {
				t.Errorf("MemoryPressure is %s", got)
			}
		})
	}
}

// String is the permission as nodeprobe names it.
func (p permission) String() string {
	switch p.resource {
	case "leases":
		return p.verb + " leases." + leaseGroup + " in namespace " + corev1.NamespaceNodeLease
	case "events":
		return p.verb + " events in namespace default"
	}
	return p.verb + " " + p.resource
}

// The credentials of another node, and labels that no node may give itself.
func TestNodeRestriction(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for name, test := range map[string]struct {
		change func(n *node) (want string, err error)
	}{
		"another node": {func(n *node) (string, error) {
			kubeconfig, err := cp.NodeKubeconfig("other-" + n.name)
			n.spec.Kubeconfig = kubeconfig
			return "are those of node other-" + n.name + ", and this is node " + n.name + " (see --hostname-override): ", err
		}},
		"label": {func(n *node) (string, error) {
			n.spec.Config = n.spec.Config.With(agent.Config{"nodeLabels": map[string]string{"node-restriction.kubernetes.io/a": "b"}})
			return "create node " + n.name + ": not admitted: ", nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, nil)
			want := must.Get(test.change(n))(t)
			a := n.start()
			t.Log(waitComplaint(t, a, "node status is not posted", want).Err)
			wantReadyz(t, a, want)
			checkOnce(t, a)
			if _, err := n.get(); err == nil {
				t.Error("there is a Node")
			}
		})
	}
}
