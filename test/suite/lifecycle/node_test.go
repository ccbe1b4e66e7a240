package lifecycle

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// A Node on which nothing happens stays in favour by its Lease alone, long after
// its status was posted last.
func TestAlive(t *testing.T) {
	t.Parallel()
	n := newNode(t, agent.Config{"nodeStatusUpdateFrequency": "10s", "nodeStatusReportFrequency": "1h"})
	proxy := n.Through()
	n.startReady()
	// The next renewal comes after whatever belongs to the registration.
	proxy.Forget()
	renewed := func(r fault.Request) bool { return r.Method == "PUT" }
	must.Get(proxy.WaitFor(t.Context(), renewed))(t)
	proxy.Forget()
	begin := time.Now()
	time.Sleep(3 * grace)

	renewals := 0
	for _, r := range proxy.Requests() {
		if renewed(r) {
			renewals++
		} else {
			t.Errorf("while nothing happened: %s", r)
		}
	}
	if renewals < 3 {
		t.Errorf("%d renewals in %s", renewals, 3*grace)
	}
	// From its creation on, apart from the taint that the API server gives each
	// new Node.
	for i, s := range n.history.All() {
		if s.Node == nil || !allWell.In(s.Node) {
			t.Fatalf("version %d: %s", i, stage.Describe(s.Node))
		}
		if len(s.Node.Spec.Taints) > 0 && s.At.After(begin) ||
			tainted(s.Node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule) ||
			tainted(s.Node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute) ||
			tainted(s.Node, corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute) {
			t.Errorf("version %d: %s", i, stage.Describe(s.Node))
		}
	}
	n.newPod().waitBound()
}

// An administrator takes a Node that has pods out of the cluster: cordons it, taints
// it, deletes it. It stays deleted, and so does its Lease, which the garbage collector
// removes. A restart registers the Node as new, and pods come.
func TestDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a := n.startReady()
	n.newPod().waitBound()
	_, err := n.Client.CoreV1().Nodes().Patch(t.Context(), n.Name, "application/merge-patch+json",
		[]byte(`{"spec":{"unschedulable":true,"taints":[{"key":"example.com/retired","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
	must.OK(t, err)
	old := n.wait("it is cordoned", a.Started, func(node *corev1.Node) bool { return node.Spec.Unschedulable }).Node

	deleted := time.Now()
	n.Delete()
	stage.Eventually(t, "the garbage collector has removed the lease", func() error {
		if lease, err := n.Lease(); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%v, %w", lease, err)
		}
		return nil
	})
	leases := must.Get(n.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + n.Name}))(t)
	defer leases.Stop()
	select {
	case event := <-leases.ResultChan():
		t.Errorf("after its end the lease is %s: %+v", event.Type, event.Object)
	case <-time.After(2 * grace):
	}
	for _, s := range n.since(deleted) {
		if s.Node != nil && s.Node.UID != old.UID {
			t.Fatalf("it is back %s later: %s", s.At.Sub(deleted), stage.Describe(s.Node))
		}
	}
	stage.CheckAlive(t, a)

	a.Stop()
	n.startReady()
	again := n.history.Last()
	if again.UID == old.UID || again.Spec.Unschedulable {
		t.Errorf("after the restart: %s", stage.Describe(again))
	}
	n.newPod().waitBound()
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: again.UID}}
	lease := must.Get(n.Lease())(t)
	if !apiequality.Semantic.DeepEqual(lease.OwnerReferences, want) {
		t.Errorf("owners of the new lease: %+v, want %+v", lease.OwnerReferences, want)
	}
}

// A file on the node's root disk that hangs, from the start on, costs the Node that
// fact and nothing else: it registers, is ready, and its Lease is renewed for longer
// than a silent Node would be left alone. The fact comes when the disk answers.
func TestHungRootDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t, agent.Config{"statfsTimeout": "500ms"})
	etc := filepath.Join(n.Spec.Dir, "root", "etc")
	release := filepath.Join(etc, "os-release")
	must.OK(t, os.MkdirAll(etc, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(etc, "machine-id"), []byte("0123456789abcdef0123456789abcdef\n"), 0o644))
	must.OK(t, unix.Mkfifo(release, 0o644))
	n.Spec.Args = append(n.Spec.Args, "--path.rootfs", filepath.Dir(etc))
	a := n.startReady()

	renewals := map[string]bool{}
	stage.Eventually(t, "the lease is renewed again and again", func() error {
		lease, err := n.Lease()
		if err != nil {
			return err
		}
		renewals[lease.Spec.RenewTime.String()] = true
		if len(renewals) < 12 { // one a second, and silence is noticed after eight
			return errors.New("too few renewals yet")
		}
		return nil
	})
	for _, s := range n.since(n.wait("ready", a.Started, func(node *corev1.Node) bool { return allWell.In(node) }).At) {
		if s.Node == nil || !allWell.In(s.Node) || s.Node.Status.NodeInfo.OSImage != "" || s.Node.Status.NodeInfo.MachineID == "" {
			t.Errorf("while the file hangs: %s; %+v", stage.Describe(s.Node), s.Node.Status.NodeInfo)
		}
	}
	said := 0
	for _, r := range stage.Logged(t, a, "") {
		if strings.Contains(r.Line, release+": no answer within 500ms") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("the file was named %d times in the log, want once", said)
	}

	answer := must.Get(os.OpenFile(release, os.O_RDWR, 0))(t) // which does not wait for a reader
	const text = "PRETTY_NAME=\"A disk that is back\"\n"
	must.OK(t, os.Remove(release))
	must.OK(t, os.WriteFile(release, []byte(text), 0o644))
	must.OK(t, answer.Close())
	n.wait("the OS image is known", a.Started, func(node *corev1.Node) bool {
		return node.Status.NodeInfo.OSImage == "A disk that is back"
	})
}

// Each pressure becomes a taint and keeps pods away, for as long as it lasts.
func TestPressure(t *testing.T) {
	t.Parallel()
	disk := pressure.Disk(t, 64)
	loads := pressure.Loads(t, disk)
	taints := map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: corev1.TaintNodeMemoryPressure,
		corev1.NodeDiskPressure:   corev1.TaintNodeDiskPressure,
		corev1.NodePIDPressure:    corev1.TaintNodePIDPressure,
	}
	for _, l := range loads {
		t.Run(string(l.Condition), func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { must.OK(t, l.Release()) })
			n := newNode(t, agent.Config{
				"bpf": "auto", "rootDirectory": disk.Dir, "evictionHard": agent.Hard(map[string]string{l.Signal: l.Threshold}),
			})
			a := n.startReady()

			pressed := time.Now()
			must.OK(t, l.Press())
			seen := n.wait("the condition is True", pressed, nodewatch.Has(l.Condition, corev1.ConditionTrue))
			taintedAt := n.wait("the node is tainted", pressed, func(node *corev1.Node) bool {
				return tainted(node, taints[l.Condition], corev1.TaintEffectNoSchedule)
			})
			p := n.newRefused(byTaint)

			released := time.Now()
			must.OK(t, l.Release())
			over := n.wait("the condition is False", released, nodewatch.Has(l.Condition, corev1.ConditionFalse))
			free := n.wait("the taint is gone", released, func(node *corev1.Node) bool { return len(node.Spec.Taints) == 0 })
			p.waitBound()
			t.Logf("True after %s, tainted %s later; False after %s, free %s later",
				seen.At.Sub(pressed), taintedAt.At.Sub(seen.At), over.At.Sub(released), free.At.Sub(over.At))

			others := maps.Clone(allWell)
			delete(others, l.Condition)
			n.wantAlways(a.Started, others.In)
			for _, s := range n.since(seen.At) {
				if s.At.Before(over.At) && !nodewatch.Has(l.Condition, corev1.ConditionTrue)(s.Node) {
					t.Errorf("in between: %s", stage.Describe(s.Node))
				}
			}
		})
	}
}
