// Package stage sets up what most suites are about: a Node at an API server, the
// nodeprobe that keeps it, and what can be seen of both.
package stage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// Patience is for a machine that does ten other things at the same time.
const Patience = 3 * time.Minute

// Where nodeprobe's requests go.
const (
	NodesPath  = "/api/v1/nodes"
	LeasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"
)

// BuiltIn are the conditions that a kubelet answers for, Ready last.
var BuiltIn = []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady}

// Node is a Node at the API server, and who looks after it.
type Node struct {
	T      *testing.T
	Name   string
	CP     *controlplane.ControlPlane
	Client kubernetes.Interface // the administrator's
	Spec   agent.Spec
}

// New makes up a Node for the test, with nothing of it anywhere yet, to be kept in
// mode own. Its nodeprobe talks to the API server directly; see Through.
func New(t *testing.T, cp *controlplane.ControlPlane, config agent.Config) *Node {
	t.Helper()
	name := controlplane.ObjectName(t)
	return &Node{T: t, Name: name, CP: cp, Client: cp.Client(), Spec: agent.Spec{
		Binary: build.ProductForTest(t), Dir: t.TempDir(), NodeName: name, Kubeconfig: must.Get(cp.NodeKubeconfig(name))(t), Config: agent.Own().With(config),
	}}
}

// Through makes the Node's nodeprobe talk to the API server through a proxy.
func (n *Node) Through() *fault.Proxy {
	n.T.Helper()
	user, groups := controlplane.NodeUser(n.Name)
	proxy := fault.StartForTest(n.T, n.CP, user, groups...)
	n.Spec.Kubeconfig = proxy.Kubeconfig()
	return proxy
}

// AsNode returns a client with the identity of the Node's kubelet.
func (n *Node) AsNode() kubernetes.Interface {
	n.T.Helper()
	user, groups := controlplane.NodeUser(n.Name)
	return must.Get(kubernetes.NewForConfig(n.CP.ConfigFor(user, groups...)))(n.T)
}

// Start runs nodeprobe until the test ends.
func (n *Node) Start() *agent.Agent {
	n.T.Helper()
	return agent.StartForTest(n.T, n.Spec)
}

// StartReady is Start, and waits until /readyz answers 200.
func (n *Node) StartReady() *agent.Agent {
	n.T.Helper()
	a := n.Start()
	n.WaitReady(a)
	return a
}

// WaitReady waits until /readyz answers 200.
func (n *Node) WaitReady(a *agent.Agent) {
	n.T.Helper()
	Eventually(n.T, "nodeprobe is ready", func() error { return Code(a, "/readyz", 200) })
}

// Get returns the Node as it now is.
func (n *Node) Get() (*corev1.Node, error) {
	return n.Client.CoreV1().Nodes().Get(context.Background(), n.Name, metav1.GetOptions{})
}

// MustGet is Get for a Node that must be there.
func (n *Node) MustGet() *corev1.Node {
	n.T.Helper()
	return must.Get(n.Get())(n.T)
}

// Lease returns the Node's Lease as it now is.
func (n *Node) Lease() (*coordinationv1.Lease, error) {
	return n.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(context.Background(), n.Name, metav1.GetOptions{})
}

// WaitRenewed waits until the Lease has a renew time after a time.
func (n *Node) WaitRenewed(after time.Time) {
	n.T.Helper()
	Eventually(n.T, "the lease is renewed", func() error {
		lease, err := n.Lease()
		if err == nil && !lease.Spec.RenewTime.After(after) {
			err = fmt.Errorf("renewed at %s", lease.Spec.RenewTime)
		}
		return err
	})
}

// WaitCondition waits until a condition has a status.
func (n *Node) WaitCondition(c corev1.NodeConditionType, want corev1.ConditionStatus) {
	n.T.Helper()
	n.Eventually(fmt.Sprintf("%s is %s", c, want), func(now *corev1.Node) error {
		if !nodewatch.Has(c, want)(now) {
			return errors.New(Describe(now))
		}
		return nil
	})
}

// Eventually waits until check finds nothing wrong with the Node.
func (n *Node) Eventually(what string, check func(*corev1.Node) error) {
	n.T.Helper()
	Eventually(n.T, what, func() error {
		now, err := n.Get()
		if err != nil {
			return err
		}
		return check(now)
	})
}

// Delete deletes the Node.
func (n *Node) Delete() {
	n.T.Helper()
	must.OK(n.T, n.Client.CoreV1().Nodes().Delete(n.T.Context(), n.Name, metav1.DeleteOptions{}))
}

// Follow records all versions of the Node until the test ends.
func (n *Node) Follow() *nodewatch.History {
	n.T.Helper()
	return nodewatch.FollowForTest(n.T, n.Client, n.Name)
}

// Conditions are what is expected of a Node's.
type Conditions map[corev1.NodeConditionType]corev1.ConditionStatus

// In reports whether the Node has them all.
func (want Conditions) In(node *corev1.Node) bool {
	for condition, status := range want {
		if node == nil || !nodewatch.Has(condition, status)(node) {
			return false
		}
	}
	return true
}

// Describe is the part of a Node that most tests are about.
func Describe(node *corev1.Node) string {
	if node == nil {
		return "no node"
	}
	var b strings.Builder
	for _, c := range node.Status.Conditions {
		fmt.Fprintf(&b, "%s=%s (%s) since %s; ", c.Type, c.Status, c.Reason, c.LastTransitionTime.Format(time.TimeOnly))
	}
	fmt.Fprintf(&b, "taints: %v", node.Spec.Taints)
	return b.String()
}

// HasTaint reports whether the Node has a taint, whenever it was added.
func HasTaint(node *corev1.Node, want corev1.Taint) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == want.Key && taint.Value == want.Value && taint.Effect == want.Effect {
			return true
		}
	}
	return false
}

// Eventually waits until check returns nil.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	wait.Until(t, Patience, what, check)
}

// Until waits until something is so.
func Until(t testing.TB, what string, so func() bool) {
	t.Helper()
	Eventually(t, what, func() error {
		if !so() {
			return errors.New("not yet")
		}
		return nil
	})
}

// Code wants the agent to answer a path with a code.
func Code(a *agent.Agent, path string, want int) error {
	code, body, err := a.Get(context.Background(), path)
	if err == nil && code != want {
		err = fmt.Errorf("%s: %d: %s", path, code, body)
	}
	return err
}

// Metric wants a series to have a value.
func Metric(a *agent.Agent, series string, want float64) error {
	got, err := a.Metric(context.Background(), series)
	if err == nil && got != want {
		err = fmt.Errorf("%s is %v, want %v", series, got, want)
	}
	return err
}
