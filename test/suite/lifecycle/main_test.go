// Package lifecycle tests that a cluster treats a Node kept by nodeprobe, in
// mode own, as it treats a kubelet's: the real kube-controller-manager taints it
// by its conditions and misses it when it is silent, and the real kube-scheduler
// places pods by what is allocatable. Nobody runs the pods: that they are bound
// is all there is to see.
//
// The tests share one control plane, in which a Node may be silent for a few
// seconds only. Where possible they judge by all versions of the Node that a
// watch has seen. nodeprobe has the rights of a kubelet, and no others.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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

// pod is a pod that wants to run on one Node and nowhere else.
type pod struct {
	t    *testing.T
	node *node
	*corev1.Pod
}

// newPod creates a pod for the Node, with what it requests, and deletes it after
// the test.
func (n *node) newPod(requests corev1.ResourceList) *pod {
	n.t.Helper()
	no := false
	made := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: controlplane.ObjectName(n.t), Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			NodeSelector:                 map[string]string{corev1.LabelHostname: n.name},
			AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{
				Name: "idle", Image: "none", Resources: corev1.ResourceRequirements{Requests: requests},
			}},
		},
	}
	n.waitServiceAccount()
	made = must.Get(n.client.CoreV1().Pods(made.Namespace).Create(n.t.Context(), made, metav1.CreateOptions{}))(n.t)
	p := &pod{n.t, n, made}
	n.t.Cleanup(p.delete)
	return p
}

// waitServiceAccount waits for what every pod needs and a controller makes.
func (n *node) waitServiceAccount() {
	n.t.Helper()
	accounts := n.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	until(n.t, "there is a service account", func(ctx context.Context) (watch.Interface, error) {
		return accounts.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=default"})
	}, func(*corev1.ServiceAccount) error { return nil })
}

// delete removes the pod at once: nobody is there to end it.
func (p *pod) delete() {
	now := int64(0)
	err := p.node.client.CoreV1().Pods(p.Namespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		p.t.Error(err)
	}
}

// wait waits until the pod is such that match accepts it.
func (p *pod) wait(what string, match func(*corev1.Pod) bool) {
	p.t.Helper()
	p.Pod = until(p.t, "pod "+p.Name+" is "+what, func(ctx context.Context) (watch.Interface, error) {
		return p.node.client.CoreV1().Pods(p.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name})
	}, func(pod *corev1.Pod) error {
		if !match(pod) {
			return fmt.Errorf("node %q, conditions %+v", pod.Spec.NodeName, pod.Status.Conditions)
		}
		return nil
	})
}

// waitBound waits until the scheduler has given the pod to its Node.
func (p *pod) waitBound() {
	p.t.Helper()
	p.wait("bound", func(pod *corev1.Pod) bool { return pod.Spec.NodeName == p.node.name })
}

// waitRefused waits until the scheduler has said that no Node takes the pod, for
// that reason, in its status and in an Event.
func (p *pod) waitRefused(why string) {
	p.t.Helper()
	p.wait("refused: "+why, func(pod *corev1.Pod) bool { return isRefused(pod, why) })
	p.node.waitEvent("involvedObject.uid="+string(p.UID), "FailedScheduling", why)
	p.checkUnbound()
}

func isRefused(pod *corev1.Pod, why string) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, why)
	})
}

// newRefused creates a pod for the Node as soon as the scheduler refuses such pods
// for that reason: it may learn of the pod before it learns of the Node's latest
// version, and bind it.
func (n *node) newRefused(why string) *pod {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		p := n.newPod(nil)
		p.wait("bound or refused", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" || isRefused(pod, why) })
		if p.Spec.NodeName == "" || time.Now().After(deadline) {
			p.waitRefused(why)
			return p
		}
		n.t.Logf("pod %s was bound before the scheduler knew better", p.Name)
		p.delete()
	}
}

// byTaint is why pods are refused that do not tolerate a taint. The scheduler
// does not say which.
const byTaint = "untolerated taint"

// checkUnbound wants the pod to be nowhere still.
func (p *pod) checkUnbound() {
	p.t.Helper()
	now := must.Get(p.node.client.CoreV1().Pods(p.Namespace).Get(p.t.Context(), p.Name, metav1.GetOptions{}))(p.t)
	if now.Spec.NodeName != "" {
		p.t.Errorf("pod %s is bound to %s", p.Name, now.Spec.NodeName)
	}
}

// waitEvent waits for an Event with a reason and a text in its message.
func (n *node) waitEvent(selector, reason, text string) *corev1.Event {
	n.t.Helper()
	return until(n.t, "there is an event "+reason+": "+text, func(ctx context.Context) (watch.Interface, error) {
		return n.client.CoreV1().Events("").Watch(ctx, metav1.ListOptions{FieldSelector: selector})
	}, func(e *corev1.Event) error {
		if e.Reason != reason || !strings.Contains(e.Message, text) {
			return fmt.Errorf("only %s: %s", e.Reason, e.Message)
		}
		return nil
	})
}
