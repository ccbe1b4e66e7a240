package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const (
	// grace is how long a Node may be silent: eight renewals of agent.Own.
	grace = 8 * time.Second
	// patience is for a machine that does ten other things at the same time.
	patience = 3 * time.Minute
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.MainWith(m, controlplane.Options{Controllers: true, NodeGrace: grace}))
}

// node is a Node, who looks after it, and all that was seen of it.
type node struct {
	t       *testing.T
	name    string
	cp      *controlplane.ControlPlane
	client  kubernetes.Interface // the administrator's
	spec    agent.Spec
	history *nodewatch.History
}

// newNode makes up a Node for the test, with nothing of it anywhere yet. It is
// deleted after the test: the controllers are more careful where many Nodes are
// silent.
func newNode(t *testing.T, config agent.Config) *node {
	t.Helper()
	cp := controlplane.StartForTest(t)
	n := &node{t: t, name: controlplane.ObjectName(t), cp: cp, client: cp.Client()}
	kubeconfig := must.Get(cp.NodeKubeconfig(n.name))(t)
	n.spec = agent.Spec{
		Binary: build.ProductForTest(t), Dir: t.TempDir(), NodeName: n.name, Kubeconfig: kubeconfig, Config: agent.Own().With(config),
	}
	t.Cleanup(func() {
		err := n.client.CoreV1().Nodes().Delete(context.Background(), n.name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	n.history = nodewatch.FollowForTest(t, n.client, n.name)
	return n
}

// start runs nodeprobe until the test ends. A kubelet's rights must do for
// whatever it asks of the API server.
func (n *node) start() *agent.Agent {
	n.t.Helper()
	a := agent.StartForTest(n.t, n.spec)
	n.t.Cleanup(func() {
		records, err := a.Log()
		must.Note(n.t, err)
		for _, r := range records {
			if strings.Contains(r.Line, "forbidden") {
				n.t.Errorf("a kubelet's rights did not do: %s", r.Line)
			}
		}
	})
	return a
}

// startReady is start, and waits until the cluster has accepted the Node.
func (n *node) startReady() *agent.Agent {
	n.t.Helper()
	a := n.start()
	n.wait("the node is ready and has no taints", a.Started, func(node *corev1.Node) bool {
		return has(node, allWell) && len(node.Spec.Taints) == 0
	})
	return a
}

// conditions are what is expected of a Node's.
type conditions map[corev1.NodeConditionType]corev1.ConditionStatus

var (
	allWell = conditions{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	}
	unknown = conditions{
		corev1.NodeReady: corev1.ConditionUnknown, corev1.NodeMemoryPressure: corev1.ConditionUnknown,
		corev1.NodeDiskPressure: corev1.ConditionUnknown, corev1.NodePIDPressure: corev1.ConditionUnknown,
	}
)

// has says whether all conditions are as expected.
func has(node *corev1.Node, want conditions) bool {
	for condition, status := range want {
		if !nodewatch.Has(condition, status)(node) {
			return false
		}
	}
	return true
}

// tainted says whether the Node has taints of that key with all these effects.
func tainted(node *corev1.Node, key string, effects ...corev1.TaintEffect) bool {
	found := 0
	for _, effect := range effects {
		for _, taint := range node.Spec.Taints {
			if taint.Key == key && taint.Effect == effect {
				found++
			}
		}
	}
	return found == len(effects)
}

// wait returns the first version of the Node since a time that match accepts.
func (n *node) wait(what string, since time.Time, match func(*corev1.Node) bool) nodewatch.Sighting {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	found, err := n.history.Wait(ctx, since, match)
	if err != nil {
		n.t.Fatalf("waited until %s: %v; at last: %s", what, err, describe(n.history.Last()))
	}
	return found
}

// since returns what was seen of the Node from a time on.
func (n *node) since(t time.Time) []nodewatch.Sighting {
	all := n.history.All()
	for len(all) > 0 && all[0].At.Before(t) {
		all = all[1:]
	}
	return all
}

// describe is the part of a Node that these tests are about.
func describe(node *corev1.Node) string {
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

// until follows what a watch tells until check finds nothing wrong with an
// object, and returns that. A watch from no version begins with the objects that
// are there.
func until[T runtime.Object](t *testing.T, what string, start func(context.Context) (watch.Interface, error), check func(T) error) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watcher := must.Get(start(ctx))(t)
	defer watcher.Stop()
	err := errors.New("nothing of the kind is there")
	for {
		select {
		case <-ctx.Done():
			t.Fatalf("waited until %s: %v", what, err)
		case event := <-watcher.ResultChan():
			switch object, ok := event.Object.(T); {
			case !ok: // an error, or the end
				t.Fatalf("waited until %s: the watch ended: %+v", what, event)
			case event.Type != watch.Deleted:
				if err = check(object); err == nil {
					return object
				}
			}
		}
	}
}
