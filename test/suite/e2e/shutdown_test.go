package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/logind"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// The machine's shutdown waits until the API server knows that the node is not
// ready, and a cancelled one is taken back.
func TestMachineShutdown(t *testing.T) { //nolint:paralleltest // it sets the environment
	need.Command(t, "dbus-daemon", "dbus-daemon")
	l := must.Get(logind.Start(t.Context(), t.TempDir()))(t)
	t.Cleanup(l.Stop)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", l.Address)
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"shutdownGracePeriod": "30s"})
	a := n.StartReady()
	ctx, stop := context.WithTimeout(t.Context(), stage.Patience)
	defer stop()
	for range 2 {
		lock := must.Get(l.NextLock(ctx))(t)
		if lock.What != "shutdown" || lock.Mode != "delay" || lock.Who != "nodeprobe" {
			t.Errorf("lock: %+v", lock)
		}
		began := time.Now()
		must.OK(t, l.PrepareForShutdown(true))
		must.OK(t, lock.WaitReleased(ctx))
		t.Logf("held up for %s", time.Since(began))
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
	need.Command(t, "dbus-daemon", "dbus-daemon")
	l := must.Get(logind.Start(t.Context(), t.TempDir()))(t)
	t.Cleanup(l.Stop)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", l.Address)
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"shutdownGracePeriod": "30s"})
	n.startReady().Stop()

	must.OK(t, l.PrepareForShutdown(true))
	second := n.start()
	waitLogged(t, second, "machine is shutting down", 0)
	n.waitCondition(corev1.NodeReady, corev1.ConditionFalse)
	second.Stop()
	if ready := nodewatch.Condition(n.mustGet(), corev1.NodeReady); ready.Status != corev1.ConditionFalse {
		t.Errorf("after the second one: %+v", ready)
	}

	must.OK(t, l.PrepareForShutdown(false))
	n.startReady()
	n.waitCondition(corev1.NodeReady, corev1.ConditionTrue)
}

// Told to stop, it says so, if it is to.
func TestLastWord(t *testing.T) {
	t.Parallel()
	for name, word := range map[string]string{"none": "", "some": "taken out of service"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, controlplane.StartForTest(t), agent.Config{"lastWord": word})
			n.StartReady().Stop()
			ready := nodewatch.Condition(n.MustGet(), corev1.NodeReady)
			want, message := corev1.ConditionTrue, "kubelet is posting ready status"
			if word != "" {
				want, message = corev1.ConditionFalse, word
			}
			if ready.Status != want || ready.Message != message {
				t.Errorf("%+v, want %s: %s", ready, want, message)
			}
		})
	}
}
