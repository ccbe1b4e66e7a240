package e2e

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// The API server is down when nodeprobe starts, and goes down again later. The
// two parts share a control plane, and so are one test.
func TestOutage(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	stopAPIServer := func(t *testing.T) {
		t.Helper()
		must.OK(t, cp.StopAPIServer())
	}
	startAPIServer := func(t *testing.T) {
		t.Helper()
		must.OK(t, cp.StartAPIServer(t.Context()))
	}

	t.Run("at start", func(t *testing.T) {
		n := newNode(t, cp, nil)
		stopAPIServer(t)
		a := n.Start()
		r := stage.WaitLogged(t, a, "node status is not posted", 0)
		if !r.Bad() {
			t.Errorf("logged at level %s: %s", r.Level, r.Line)
		}
		must.Note(t, stage.Code(a, "/metrics", 200))
		must.Note(t, stage.Code(a, "/readyz", 503))
		startAPIServer(t)
		n.WaitReady(a)
		checkConditions(t, n.MustGet())
		n.WaitRenewed(time.Now())
		if again := stage.Logged(t, a, r.Msg); len(again) > 2 {
			t.Errorf("logged %d times: %s", len(again), r.Line)
		}
	})

	t.Run("in the middle", func(t *testing.T) {
		n, fs := newFullableNode(t, cp, nil)
		a := n.StartReady()
		before := n.MustGet()

		stopAPIServer(t)
		stage.Eventually(t, "nodeprobe is not ready", func() error { return stage.Code(a, "/readyz", 503) })
		fill(t, fs)
		stage.Eventually(t, "nodeprobe sees the pressure", func() error {
			return stage.Metric(a, `nodeprobe_condition_status{condition="DiskPressure"}`, 1)
		})
		flip := stage.WaitLogged(t, a, "condition changed", 0).Time
		// So that the time of the flip and the time of its post differ.
		time.Sleep(2 * time.Second)
		must.Note(t, stage.Code(a, "/livez", 200))
		up := time.Now()
		startAPIServer(t)

		n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
		n.WaitReady(a)
		n.WaitRenewed(time.Now())
		got := n.MustGet()
		// The API has whole seconds; the log is written a moment after the sample.
		if at := nodewatch.Condition(got, corev1.NodeDiskPressure).LastTransitionTime; at.After(flip) || flip.Sub(at.Time) > 2*time.Second {
			t.Errorf("the condition says that it changed at %s; that was at %s", at, flip)
		}
		if got.UID != before.UID {
			t.Error("the node was registered again")
		}
		if reason := nodewatch.Condition(got, corev1.NodeDiskPressure).Reason; reason != "KubeletHasDiskPressure" {
			t.Errorf("reason: %q", reason)
		}
		checkOnePatch(t, cp, n, up)
		select {
		case <-a.Exited():
			t.Error("nodeprobe has ended")
		default:
		}
	})
}

// checkOnePatch wants one successful patch of the Node since the given time,
// and the flip in it.
func checkOnePatch(t *testing.T, cp *controlplane.ControlPlane, n *node, since time.Time) {
	t.Helper()
	events := must.Get(cp.AuditEvents())(t)
	var patches []string
	for _, e := range events {
		if e.Verb != "patch" || e.ObjectRef.Resource != "nodes" || e.ObjectRef.Name != n.Name ||
			e.ResponseStatus.Code != 200 || e.RequestReceivedTimestamp.Before(since) {
			continue
		}
		patches = append(patches, string(e.RequestObject))
		var patch corev1.Node
		must.Note(t, json.Unmarshal(e.RequestObject, &patch))
		if !nodewatch.Has(corev1.NodeDiskPressure, corev1.ConditionTrue)(&patch) {
			t.Errorf("patch without the flip: %s", e.RequestObject)
		}
	}
	if len(patches) != 1 {
		t.Errorf("%d patches after the outage, want 1: %s", len(patches), patches)
	}
}
