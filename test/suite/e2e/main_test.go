package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

// node is a Node at the API server, and who looks after it.
type node struct {
	t      *testing.T
	name   string
	client kubernetes.Interface // the administrator's
	spec   agent.Spec
}

// newNode makes up a Node for the test, with nothing of it anywhere yet. Its
// nodeprobe speaks to the API server directly; see through.
func newNode(t *testing.T, cp *controlplane.ControlPlane, config agent.Config) *node {
	t.Helper()
	name := controlplane.ObjectName(t)
	kubeconfig := must.Get(cp.NodeKubeconfig(name))(t)
	return &node{t: t, name: name, client: cp.Client(), spec: agent.Spec{
		Binary: build.ProductForTest(t), Dir: t.TempDir(), NodeName: name, Kubeconfig: kubeconfig, Config: agent.Own().With(config),
	}}
}

// through has the Node's nodeprobe speak to the API server through a proxy.
func (n *node) through(cp *controlplane.ControlPlane) *fault.Proxy {
	n.t.Helper()
	user, groups := controlplane.NodeUser(n.name)
	proxy := fault.StartForTest(n.t, cp, user, groups...)
	n.spec.Kubeconfig = proxy.Kubeconfig()
	return proxy
}

// start runs nodeprobe until the test ends, and complains if it ended earlier
// of its own accord.
func (n *node) start() *agent.Agent {
	n.t.Helper()
	return agent.StartForTest(n.t, n.spec)
}

// startReady is start, and waits until the Node is there and nodeprobe is
// content.
func (n *node) startReady() *agent.Agent {
	n.t.Helper()
	a := n.start()
	n.waitReady(a)
	return a
}

func (n *node) waitReady(a *agent.Agent) {
	n.t.Helper()
	eventually(n.t, "nodeprobe is ready", func() error { return wantCode(a, "/readyz", 200) })
}

func wantCode(a *agent.Agent, path string, want int) error {
	code, body, err := a.Get(context.Background(), path)
	if err == nil && code != want {
		err = fmt.Errorf("%s: %d: %s", path, code, body)
	}
	return err
}

// get returns the Node as it now is.
func (n *node) get() (*corev1.Node, error) {
	return n.client.CoreV1().Nodes().Get(context.Background(), n.name, metav1.GetOptions{})
}

// mustGet is get for a Node that must be there.
func (n *node) mustGet() *corev1.Node {
	n.t.Helper()
	found := must.Get(n.get())(n.t)
	return found
}

// lease returns the Node's Lease as it now is.
func (n *node) lease() (*coordinationv1.Lease, error) {
	return n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(context.Background(), n.name, metav1.GetOptions{})
}

// waitRenewed waits until the Lease has a renew time after t.
func (n *node) waitRenewed(after time.Time) {
	n.t.Helper()
	eventually(n.t, "the lease is renewed", func() error {
		lease, err := n.lease()
		if err == nil && !lease.Spec.RenewTime.After(after) {
			err = fmt.Errorf("renewed at %s", lease.Spec.RenewTime)
		}
		return err
	})
}

// waitCondition waits until a condition has a status.
func (n *node) waitCondition(c corev1.NodeConditionType, want corev1.ConditionStatus) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%s is %s", c, want), func() error {
		found, err := n.get()
		if err == nil && !nodewatch.Has(c, want)(found) {
			err = fmt.Errorf("conditions: %+v", found.Status.Conditions)
		}
		return err
	})
}

// follow records all versions of the Node until the test ends.
func (n *node) follow() *nodewatch.History {
	n.t.Helper()
	return nodewatch.FollowForTest(n.t, n.client, n.name)
}

// patience is for a machine that does ten other things at the same time.
const patience = 3 * time.Minute

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	wait.Until(t, patience, what, check)
}

var errNotYet = errors.New("not yet")

// allLogged returns what the agent has logged so far.
func allLogged(t *testing.T, a *agent.Agent) []agent.Record {
	t.Helper()
	all := must.Get(a.Log())(t)
	return all
}

// logged returns the records of the agent's log with the message.
func logged(t *testing.T, a *agent.Agent, msg string) []agent.Record {
	t.Helper()
	var found []agent.Record
	for _, r := range allLogged(t, a) {
		if r.Msg == msg {
			found = append(found, r)
		}
	}
	return found
}

// waitLogged waits until the agent has logged the message more than n times,
// and returns the latest record of it.
func waitLogged(t *testing.T, a *agent.Agent, msg string, n int) agent.Record {
	t.Helper()
	var found []agent.Record
	eventually(t, fmt.Sprintf("%q is logged", msg), func() error {
		if found = logged(t, a, msg); len(found) <= n {
			return errNotYet
		}
		return nil
	})
	return found[len(found)-1]
}

// changed returns what the agent has logged of changes of the kubelet's conditions.
// Those of our own follow rules of their own.
func changed(t *testing.T, a *agent.Agent) []agent.Record {
	t.Helper()
	return slices.DeleteFunc(logged(t, a, "condition changed"), func(r agent.Record) bool {
		return strings.Contains(r.Line, `"condition":"nodeprobe.dev/`)
	})
}

// waitChanged waits until there are more than n, and returns the one after them.
func waitChanged(t *testing.T, a *agent.Agent, n int) agent.Record {
	t.Helper()
	eventually(t, "a condition has changed", func() error {
		if len(changed(t, a)) <= n {
			return errNotYet
		}
		return nil
	})
	return changed(t, a)[n]
}
