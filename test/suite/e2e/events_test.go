package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/logind"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// events returns the Events that "kubectl describe node" would show.
func (n *node) events() []corev1.Event {
	n.T.Helper()
	return must.Get(n.Client.CoreV1().Events("").List(n.T.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + n.Name + ",involvedObject.uid=" + string(n.MustGet().UID),
	}))(n.T).Items
}

func (n *node) waitEvent(reason, text string) corev1.Event {
	n.T.Helper()
	var found corev1.Event
	stage.Eventually(n.T, "there is an event "+reason, func() error {
		var seen []string
		for _, found = range n.events() {
			if found.Reason == reason && strings.Contains(found.Message, text) {
				return nil
			}
			seen = append(seen, found.Reason+": "+found.Message)
		}
		return fmt.Errorf("only %q", seen)
	})
	return found
}

// countEvents returns how often there were such events.
func (n *node) countEvents(reason, text string) (count int32) {
	n.T.Helper()
	for _, e := range n.events() {
		if e.Reason == reason && strings.Contains(e.Message, text) {
			count += e.Count
		}
	}
	return count
}

// A process that the kernel kills for lack of memory is an Event of the Node, and
// each transition of a condition is one; a restart of nodeprobe repeats none.
func TestEvents(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"bpf": "auto"})
	a := n.StartReady()
	for _, reason := range []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"} {
		n.waitEvent(reason, n.Name)
	}

	pid := must.Get(pressure.OOMKill())(t)
	e := n.waitEvent("OOMKilling", fmt.Sprintf("Killed process %d", pid))
	if e.Type != corev1.EventTypeWarning || !strings.HasPrefix(e.Message, "Memory cgroup out of memory: ") || !strings.Contains(e.Message, "cgroup: /nodeprobe-test-") {
		t.Errorf("event: %+v", e)
	}

	// Anybody may call a process of theirs what they like.
	pid = must.Get(pressure.OOMKillNamed("a\nb\x1b[31m"))(t)
	e = n.waitEvent("OOMKilling", fmt.Sprintf("Killed process %d", pid))
	if strings.ContainsFunc(e.Message, unicode.IsControl) || !strings.Contains(e.Message, fmt.Sprintf(`%d ("a\nb\x1b[31m")`, pid)) {
		t.Errorf("message of an event: %q", e.Message)
	}
	for _, r := range stage.Logged(t, a, "process killed for lack of memory") {
		if strings.ContainsFunc(r.Line, unicode.IsControl) {
			t.Errorf("line of the log: %q", r.Line)
		}
	}

	n.patch(map[string]any{"spec": map[string]any{"unschedulable": true}})
	n.waitEvent("NodeNotSchedulable", n.Name)

	a.Stop()
	n.StartReady()
	if n.countEvents("Rebooted", "") > 0 || n.countEvents("NodeHasSufficientMemory", "") > 1 {
		t.Errorf("after a restart: %+v", n.events())
	}
}

// Without BPF nobody knows who it was, but that it happened is told.
func TestOOMKillWithoutBPF(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"bpf": "off"})
	n.StartReady()
	must.Get(pressure.OOMKill())(t)
	n.waitEvent("OOMKilling", "killed for lack of memory; the kernel did not report which")
}

func startLogind(t *testing.T) *logind.Logind {
	t.Helper()
	need.Command(t, "dbus-daemon", "dbus-daemon")
	l := logind.Start(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", l.Address)
	return l
}

// The machine's shutdown waits until the API server knows that the node is not
// ready, and a cancelled one is taken back.
func TestMachineShutdown(t *testing.T) { //nolint:paralleltest // it sets the environment
	l := startLogind(t)
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"shutdownGracePeriod": "30s"})
	a := n.StartReady()
	ctx, stop := context.WithTimeout(t.Context(), stage.Patience)
	defer stop()
	for range 2 {
		lock := must.Get(l.NextLock(ctx))(t)
		if lock.What != "shutdown" || lock.Mode != "delay" || lock.Who != "nodeprobe" {
			t.Errorf("lock: %+v", lock)
		}
		must.OK(t, l.PrepareForShutdown(true))
		must.OK(t, lock.WaitReleased(ctx))
		ready := nodewatch.Condition(n.MustGet(), corev1.NodeReady)
		if ready.Status != corev1.ConditionFalse || ready.Reason != "KubeletNotReady" || ready.Message != "node is shutting down" {
			t.Errorf("once the lock was released: %+v", ready)
		}
		must.OK(t, l.PrepareForShutdown(false))
		n.WaitCondition(corev1.NodeReady, corev1.ConditionTrue)
	}
	n.waitEvent("Shutdown", "Shutdown manager detected shutdown event")
	n.waitEvent("Shutdown", "Shutdown manager detected shutdown cancellation")

	// There is nothing to post for a node that was deleted.
	n.Delete()
	stage.WaitUnready(t, a, stillDeleted)
	lock := must.Get(l.NextLock(ctx))(t)
	began := time.Now()
	must.OK(t, l.PrepareForShutdown(true))
	must.OK(t, lock.WaitReleased(ctx))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("held up for %s, want much less than the grace period", took)
	}
}

// A shutdown is not missed by a nodeprobe that starts during one, and one that is cancelled
// while none runs is not left in the Node.
func TestRestartDuringShutdown(t *testing.T) { //nolint:paralleltest // it sets the environment
	l := startLogind(t)
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"shutdownGracePeriod": "30s"})
	n.StartReady().Stop()

	must.OK(t, l.PrepareForShutdown(true))
	second := n.Start()
	stage.WaitLogged(t, second, "machine is shutting down", 0)
	n.WaitCondition(corev1.NodeReady, corev1.ConditionFalse)
	second.Stop()
	if ready := nodewatch.Condition(n.MustGet(), corev1.NodeReady); ready.Status != corev1.ConditionFalse {
		t.Errorf("after the second one: %+v", ready)
	}

	must.OK(t, l.PrepareForShutdown(false))
	n.StartReady()
	n.WaitCondition(corev1.NodeReady, corev1.ConditionTrue)
}

// The exit message is the last thing posted.
func TestExitMessage(t *testing.T) {
	t.Parallel()
	const message = "taken out of service"
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"exitMessage": message})
	n.StartReady().Stop()
	if ready := nodewatch.Condition(n.MustGet(), corev1.NodeReady); ready.Status != corev1.ConditionFalse || ready.Message != message {
		t.Errorf("%+v", ready)
	}
}
