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
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// grace is how long a Node may be silent: eight renewals of agent.Own.
const grace = 8 * time.Second

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.MainWith(m, controlplane.Options{Controllers: true, NodeGrace: grace}))
}

// node is a Node, and all that was seen of it.
type node struct {
	*stage.Node
	history *nodewatch.History
}

// newNode makes up a Node for the test, with nothing of it anywhere yet. It is
// deleted after the test: the controllers are more careful where many Nodes are
// silent.
func newNode(t *testing.T, config agent.Config) *node {
	t.Helper()
	n := &node{Node: stage.New(t, controlplane.StartForTest(t), config)}
	t.Cleanup(func() {
		err := n.Client.CoreV1().Nodes().Delete(context.Background(), n.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	n.history = n.Follow()
	return n
}

// start runs nodeprobe until the test ends. A kubelet's rights must do for
// whatever it asks of the API server.
func (n *node) start() *agent.Agent {
	n.T.Helper()
	a := n.Start()
	n.T.Cleanup(func() {
		for _, r := range stage.Logged(n.T, a, "") {
			if strings.Contains(r.Line, "forbidden") {
				n.T.Errorf("a kubelet's rights did not do: %s", r.Line)
			}
		}
	})
	return a
}

// startReady is start, and waits until the cluster has accepted the Node.
func (n *node) startReady() *agent.Agent {
	n.T.Helper()
	a := n.start()
	n.wait("the node is ready and has no taints", a.Started, func(node *corev1.Node) bool {
		return allWell.In(node) && len(node.Spec.Taints) == 0
	})
	return a
}

var (
	allWell  = stage.Conditions{"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
	fullDisk = stage.Conditions{"Ready": "True", "MemoryPressure": "False", "DiskPressure": "True", "PIDPressure": "False"}
	unknown  = stage.Conditions{"Ready": "Unknown", "MemoryPressure": "Unknown", "DiskPressure": "Unknown", "PIDPressure": "Unknown"}
)

// wantAlways wants all versions of the Node since a time to be there and so.
func (n *node) wantAlways(since time.Time, so func(*corev1.Node) bool) {
	n.T.Helper()
	for _, s := range n.since(since) {
		if s.Node == nil || !so(s.Node) {
			n.T.Errorf("at %s: %s", s.At.Format(time.TimeOnly), stage.Describe(s.Node))
		}
	}
}

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
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.T.Context(), stage.Patience)
	defer cancel()
	found, err := n.history.Wait(ctx, since, match)
	if err != nil {
		n.T.Fatalf("waited until %s: %v; at last: %s", what, err, stage.Describe(n.history.Last()))
	}
	return found
}

func (n *node) since(t time.Time) []nodewatch.Sighting {
	all := n.history.All()
	for len(all) > 0 && all[0].At.Before(t) {
		all = all[1:]
	}
	return all
}

// pod is a pod that wants to run on one Node and nowhere else.
type pod struct {
	t    *testing.T
	node *node
	*corev1.Pod
}

// newPod creates a pod for the Node, and deletes it after the test.
func (n *node) newPod() *pod {
	n.T.Helper()
	no := false
	made := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: controlplane.ObjectName(n.T), Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			NodeSelector:                 map[string]string{corev1.LabelHostname: n.Name},
			AutomountServiceAccountToken: &no,
			Containers:                   []corev1.Container{{Name: "idle", Image: "none"}},
		},
	}
	p := &pod{t: n.T, node: n}
	stage.Eventually(n.T, "there is a service account for the pod", func() (err error) { // which a controller makes
		p.Pod, err = n.Client.CoreV1().Pods(made.Namespace).Create(n.T.Context(), made, metav1.CreateOptions{})
		return err
	})
	n.T.Cleanup(p.delete)
	return p
}

// delete removes the pod at once: nobody is there to end it.
func (p *pod) delete() {
	now := int64(0)
	err := p.node.Client.CoreV1().Pods(p.Namespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		p.t.Error(err)
	}
}

// wait waits until the pod is such that match accepts it.
func (p *pod) wait(what string, match func(*corev1.Pod) bool) {
	p.t.Helper()
	stage.Eventually(p.t, "pod "+p.Name+" is "+what, func() error {
		pod, err := p.node.Client.CoreV1().Pods(p.Namespace).Get(p.t.Context(), p.Name, metav1.GetOptions{})
		if err == nil && !match(pod) {
			err = fmt.Errorf("node %q, conditions %+v", pod.Spec.NodeName, pod.Status.Conditions)
		}
		if err == nil {
			p.Pod = pod
		}
		return err
	})
}

func (p *pod) waitBound() {
	p.t.Helper()
	p.wait("bound", func(pod *corev1.Pod) bool { return pod.Spec.NodeName == p.node.Name })
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
	n.T.Helper()
	for deadline := time.Now().Add(stage.Patience); ; {
		p := n.newPod()
		p.wait("bound or refused: "+why, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" || isRefused(pod, why) })
		if p.Spec.NodeName == "" {
			return p
		}
		if time.Now().After(deadline) {
			n.T.Fatalf("pod %s is bound", p.Name)
		}
		p.delete()
	}
}

// byTaint is why pods are refused that do not tolerate a taint. The scheduler
// does not say which.
const byTaint = "untolerated taint"

func (p *pod) checkUnbound() {
	p.t.Helper()
	now := must.Get(p.node.Client.CoreV1().Pods(p.Namespace).Get(p.t.Context(), p.Name, metav1.GetOptions{}))(p.t)
	if now.Spec.NodeName != "" {
		p.t.Errorf("pod %s is bound to %s", p.Name, now.Spec.NodeName)
	}
}
