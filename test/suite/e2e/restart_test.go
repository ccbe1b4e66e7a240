package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// newFullableNode is newNode for a Node whose nodefs can be filled, and which
// is then under disk pressure.
func newFullableNode(t *testing.T, cp *controlplane.ControlPlane, config agent.Config) (*node, *pressure.Filesystem) {
	t.Helper()
	fs := pressure.DiskForTest(t, 16)
	n := newNode(t, cp, agent.Config{
		"rootDirectory": fs.Dir,
		"evictionHard":  agent.Hard(map[string]string{"nodefs.available": "30%"}),
	}.With(config))
	return n, fs
}

// full is how many bytes are left when the filesystem is full, well below the
// threshold.
const full = 1 << 20

func fill(t *testing.T, fs *pressure.Filesystem) {
	t.Helper()
	must.OK(t, fs.Fill(full))
}

func empty(t *testing.T, fs *pressure.Filesystem) {
	t.Helper()
	must.OK(t, fs.Empty())
}

// A restart is no reason for a condition to end, not even where what caused it
// is over by then: it is held for the transition period all the same.
func TestRestartUnderPressure(t *testing.T) {
	t.Parallel()
	const period = 4 * time.Second
	cp := controlplane.StartForTest(t)
	n, fs := newFullableNode(t, cp, agent.Config{"evictionPressureTransitionPeriod": period.String()})
	fill(t, fs)
	first := n.StartReady()
	n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
	since := nodewatch.Condition(n.MustGet(), corev1.NodeDiskPressure).LastTransitionTime
	history := n.Follow()

	first.Stop()
	empty(t, fs)
	time.Sleep(period + time.Second) // so that nothing is left of the first one's period
	second := n.StartReady()
	ctx, cancel := context.WithTimeout(t.Context(), stage.Patience)
	defer cancel()
	ended := must.Get(history.Wait(ctx, first.Started, nodewatch.Has(corev1.NodeDiskPressure, corev1.ConditionFalse)))(t)
	if held := ended.At.Sub(second.Started); held < period {
		t.Errorf("DiskPressure was held for %s after the restart, want %s", held, period)
	}
	for _, s := range history.All() {
		if s.Node == nil {
			t.Fatal("the node was deleted")
		}
		condition := nodewatch.Condition(s.Node, corev1.NodeDiskPressure)
		if s.At.Before(ended.At) && (condition.Status != corev1.ConditionTrue || !condition.LastTransitionTime.Equal(&since)) {
			t.Errorf("at %s, before its end at %s: %+v", s.At, ended.At, condition)
		}
	}
	uid := n.MustGet().UID
	if records := stage.Logged(t, second, "node is registered"); len(records) != 1 || history.All()[0].Node.UID != uid {
		t.Errorf("the node was not adopted: %+v", records)
	}
}
