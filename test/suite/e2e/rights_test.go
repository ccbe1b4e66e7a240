package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	notPosted  = "node status is not posted"
	notRenewed = "failed to renew the lease"
	unhealthy  = "not renewing the lease: unhealthy"
	leaseGroup = "coordination.k8s.io"
)

// permission is a verb and what it may be done to.
type permission struct{ verb, group, resource string }

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

// grant gives a user all permissions but one, and returns when the API server
// knows.
func (n *node) grant(but permission, user string) {
	n.T.Helper()
	allowed := slices.DeleteFunc(slices.Clone(needed), func(p permission) bool { return p == but })
	n.bind(allowed, user)
	stage.Eventually(n.T, "the role is in force", func() error {
		for _, p := range needed {
			resource, sub, _ := strings.Cut(p.resource, "/")
			review, err := n.Client.AuthorizationV1().SubjectAccessReviews().Create(n.T.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: p.verb, Group: p.group, Resource: resource, Subresource: sub, Name: n.Name,
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

func (n *node) bind(permissions []permission, user string) {
	n.T.Helper()
	meta := metav1.ObjectMeta{Name: n.Name}
	role := &rbacv1.ClusterRole{ObjectMeta: meta}
	for _, p := range permissions {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{Verbs: []string{p.verb}, APIGroups: []string{p.group}, Resources: []string{p.resource}})
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: n.Name}}
	binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	// An update creates them, too.
	must.Get(n.Client.RbacV1().ClusterRoles().Update(n.T.Context(), role, metav1.UpdateOptions{}))(n.T)
	must.Get(n.Client.RbacV1().ClusterRoleBindings().Update(n.T.Context(), binding, metav1.UpdateOptions{}))(n.T)
}

// asUser makes the Node's nodeprobe a user of its own that lacks one permission.
func (n *node) asUser(lacks permission) (user string) {
	n.T.Helper()
	user = "agent-of-" + n.Name
	n.Spec.Kubeconfig = must.Get(n.CP.Kubeconfig(user))(n.T)
	n.grant(lacks, user)
	return user
}

// An identity that lacks exactly one permission, in both modes: nodeprobe reports which,
// where it is to be had, and does all that it can without.
func TestMissingPermission(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	// What works without.
	ready := func(n *node, a *agent.Agent) { n.WaitReady(a) }
	posted := func(n *node, _ *agent.Agent) { n.WaitCondition(corev1.NodeReady, corev1.ConditionTrue) }
	renewed := func(n *node, _ *agent.Agent) { n.WaitRenewed(time.Now()) }
	live := func(n *node, a *agent.Agent) { must.Note(n.T, stage.Code(a, "/livez", 200)) }
	ours := func(n *node, a *agent.Agent) { n.WaitReady(a); n.waitOurs() }
	mended := func(times int) func(n *node, a *agent.Agent) {
		return func(n *node, a *agent.Agent) {
			n.WaitReady(a)
			n.addForeign()
			for range times {
				n.markUnknown() // which the answer to the next patch shows
				n.waitMended()
			}
			n.wantForeign()
		}
	}
	// An Event comes of a condition that is another one than we have left there.
	flipped := func(times int) func(n *node, a *agent.Agent) {
		return func(n *node, a *agent.Agent) {
			ours(n, a)
			for range times {
				n.setOurs(ourDisk, corev1.ConditionTrue)
				n.waitOurs()
			}
		}
	}
	const read, watch, event, counted = "cannot read the node; reading it by a patch that changes nothing", "watch of the node ended",
		"event is not posted", "events are created anew instead of counted up"
	for _, test := range []struct {
		mode           string
		lacks          permission
		exists         bool   // the Node, before
		log            string // the message of the complaint
		unready, heals bool   // in /readyz too; once it is given
		still          func(n *node, a *agent.Agent)
	}{
		{"own", permission{"create", "", "nodes"}, false, notPosted, true, true, nil},
		{"own", permission{"create", "", "nodes"}, true, "", false, false, ready},
		{"own", permission{"get", "", "nodes"}, false, "", false, false, ready},
		{"own", permission{"get", "", "nodes"}, true, read, false, false, ready},
		{"own", permission{"watch", "", "nodes"}, false, watch, false, false, mended(1)},
		{"own", permission{"patch", "", "nodes/status"}, false, notPosted, true, true, renewed},
		// Nobody can tell whether a kubelet is alive.
		{"own", permission{"get", leaseGroup, "leases"}, false, notPosted, true, true, func(n *node, a *agent.Agent) {
			stage.WaitComplaint(n.T, a, unhealthy, "cannot tell yet whether a kubelet is alive")
			if _, err := n.Get(); !apierrors.IsNotFound(err) {
				n.T.Errorf("there is a Node: %v", err)
			}
		}},
		{"own", permission{"create", leaseGroup, "leases"}, false, notRenewed, true, true, posted},
		{"own", permission{"update", leaseGroup, "leases"}, false, notRenewed, true, true, posted},
		{"own", permission{"create", "", "events"}, false, event, false, false, ready},
		{"own", permission{"patch", "", "events"}, false, counted, false, false, mended(2)},

		{"augment", permission{"get", "", "nodes"}, true, read, false, false, ours},
		{"augment", permission{"watch", "", "nodes"}, true, watch, false, false, ours},
		{"augment", permission{"patch", "", "nodes/status"}, true, notPosted, true, true, live},
		{"augment", permission{"create", "", "events"}, true, event, false, false, flipped(1)},
		{"augment", permission{"patch", "", "events"}, true, counted, false, false, flipped(3)},
		// These are not needed.
		{"augment", permission{"create", "", "nodes"}, true, "", false, false, ours},
		{"augment", permission{"get", leaseGroup, "leases"}, true, "", false, false, ours},
	} {
		t.Run(fmt.Sprintf("%s, %s %s, exists %v", test.mode, test.lacks.verb, test.lacks.resource, test.exists), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s", "mode": test.mode, "conditionHeartbeat": "10s"})
			user := n.asUser(test.lacks)
			if test.exists {
				n.register()
				n.addForeign()
			}
			a := n.Start()
			missing, cause := "missing permission: "+test.lacks.String()+" (", `User "`+user+`" cannot `
			if test.mode == "own" {
				missing += "a kubelet's identity has it: user system:node:" + n.Name + " in group system:nodes; or bind a role that has it to this user)"
			} else {
				cause = "bind a role that has it to this user"
			}
			if test.unready {
				stage.WaitUnready(t, a, missing)
			}
			if test.still != nil {
				test.still(n, a)
			}
			if test.log != "" {
				r := stage.WaitComplaint(t, a, test.log, missing)
				t.Log(r.Err)
				if !r.Bad() || !strings.Contains(r.Err, cause) {
					t.Errorf("logged %s", r.Line)
				}
			}
			stage.CheckOnce(t, a)
			if test.heals {
				n.grant(permission{}, user)
				if test.mode == "own" {
					n.WaitReady(a)
					n.WaitRenewed(time.Now())
				} else {
					n.beat() // or within a minute
					ours(n, a)
				}
			}
			if test.exists {
				n.wantForeign()
			}
			if got := nodewatch.Condition(n.MustGet(), corev1.NodeMemoryPressure).Status; test.mode == "own" && got != corev1.ConditionFalse {
				t.Errorf("MemoryPressure is %s", got)
			}
		})
	}
}

// The credentials of another node, and labels that no node may give itself.
func TestNodeRestriction(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for name, change := range map[string]func(n *node) (want string){
		"another node": func(n *node) string {
			n.Spec.Kubeconfig = must.Get(cp.NodeKubeconfig("other-" + n.Name))(n.T)
			return "are those of node other-" + n.Name + ", and this is node " + n.Name + " (see --hostname-override): "
		},
		"label": func(n *node) string {
			n.Spec.Config["nodeLabels"] = map[string]string{"node-restriction.kubernetes.io/a": "b"}
			return "create node " + n.Name + ": not admitted: "
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, nil)
			want := change(n)
			a := n.Start()
			t.Log(stage.WaitComplaint(t, a, notPosted, want).Err)
			stage.WaitUnready(t, a, want)
			stage.CheckOnce(t, a)
			if _, err := n.Get(); err == nil {
				t.Error("there is a Node")
			}
		})
	}
}

// A client certificate in files ends, and another takes its place: nodeprobe reports
// it, and uses the new one without a restart.
func TestRotatedCertificate(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusReportFrequency": "1s"})
	user := &clientcmdapi.AuthInfo{ClientCertificate: filepath.Join(n.Spec.Dir, "client.crt"), ClientKey: filepath.Join(n.Spec.Dir, "client.key")}
	issue := func(validity time.Duration) {
		t.Helper()
		name, groups := controlplane.NodeUser(n.Name)
		cert, key := n.CP.ClientCertificate(validity, name, groups...)
		replace(t, user.ClientKey, key)
		replace(t, user.ClientCertificate, cert)
	}
	issue(25 * time.Second) // once nodeprobe has had the time to start
	config := clientcmdapi.NewConfig()
	config.CurrentContext = "x"
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
	config.Clusters["x"] = &clientcmdapi.Cluster{Server: n.CP.Config().Host, CertificateAuthorityData: n.CP.Config().CAData}
	config.AuthInfos["x"] = user
	n.Spec.Kubeconfig = filepath.Join(n.Spec.Dir, "kubeconfig")
	must.OK(t, clientcmd.WriteToFile(*config, n.Spec.Kubeconfig))
	a := n.StartReady()
	const refused = "the credentials of kubeconfig "
	stage.WaitComplaint(t, a, notPosted, refused+n.Spec.Kubeconfig+" are refused, or have expired: Unauthorized")
	stage.WaitComplaint(t, a, notRenewed, refused)
	stage.WaitUnready(t, a, refused)
	began := time.Now()
	issue(time.Hour)
	n.WaitReady(a)
	n.WaitRenewed(began)
	stage.CheckOnce(t, a)
}

func replace(t *testing.T, path string, data []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(path+".new", data, 0o600))
	must.OK(t, os.Rename(path+".new", path))
}
