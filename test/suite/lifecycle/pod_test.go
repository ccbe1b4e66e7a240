package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

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
