package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// leaseOfBoth is for how long a renewal is good, of the kubelet's and of ours.
const leaseOfBoth = 8 * time.Second

// kubeletAlive is what own mode says when it does not start.
var kubeletAlive = regexp.MustCompile(`own node \S+: kubelet (renewed its lease|wrote its status) [0-8]s ago; a node has one status writer`)

// A real kubelet comes and goes, by turns with nodeprobe: no more than one of
// them writes, and the kubelet is the one wherever there is a choice.
func TestGuardBesideKubelet(t *testing.T) {
	t.Parallel()
	need.Root(t)
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	runtime := containerd.StartForTest(t, containerd.Options{Dir: t.TempDir()})
	n := newNode(t, cp, agent.Config{"nodeLeaseDurationSeconds": int(leaseOfBoth.Seconds()), "nodeStatusReportFrequency": "1s"})
	start := func() *kubelet.Kubelet {
		k := kubelet.StartForTest(t, cp, kubelet.Options{
			NodeName: n.Name, RuntimeEndpoint: runtime.Endpoint, Dir: t.TempDir(),
			Thresholds: map[string]string{"memory.available": "1Mi"},
			Config: kubelet.Config{
				"nodeLeaseDurationSeconds":  int(leaseOfBoth.Seconds()),
				"nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "1s",
			},
		})
		n.waitKubelets()
		return k
	}

	// A kubelet is alive: nodeprobe ends, says why, and writes nothing.
	k := start()
	began := time.Now()
	if log := n.wantRefused(); !kubeletAlive.MatchString(log) {
		t.Errorf("it does not say why: %s", log)
	}
	n.wantSilence(began)
	if len(stage.Requests(t, cp, "nodeprobe", began)) == 0 {
		t.Error("nothing of nodeprobe is in the audit log, not even a look at the lease: has its user agent changed?")
	}
	n.waitKubelets() // it goes on undisturbed
	must.OK(t, k.Stop())
	time.Sleep(leaseOfBoth)
	a := n.takesOver()

	// A kubelet has come since: nodeprobe reports that wherever it can, and leaves the
	// node to it.
	began = time.Now()
	k = start()
	r := waitStoodDown(t, a)
	if r.Level != "ERROR" || !strings.Contains(r.Err, "kubelet") {
		t.Errorf("logged: %s", r.Line)
	}
	since := r.Time.Add(3 * time.Second) // a write that was on its way may still arrive
	theirs := stage.Writes(t, cp, "kubelet", began).Of("patch nodes/status")
	if len(theirs) == 0 {
		t.Fatal("the kubelet has not patched the node")
	}
	first := theirs[0].RequestReceivedTimestamp
	t.Logf("%s after the kubelet's first patch, and %d writes of its own later, it says: %s",
		r.Time.Sub(first), len(stage.Writes(t, cp, "nodeprobe", first)), r.Err)
	time.Sleep(3 * leaseOfBoth)
	n.wantSilence(since)
	waitStoodDown(t, a)
	if renewed := len(stage.Writes(t, cp, "kubelet", since).Of("update leases")); renewed < 3 {
		t.Errorf("the kubelet has renewed the lease %d times in %s", renewed, 3*leaseOfBoth)
	}
	n.waitKubelets()
	if again := stage.Logged(t, a, r.Msg); len(again) != 1 {
		t.Errorf("logged %d times: %s", len(again), r.Line)
	}

	// That kubelet is gone. The cluster must see it: the Lease runs out, and nobody
	// reports that the node is well.
	must.OK(t, k.Stop())
	since = time.Now()
	n.wantUntouched(2 * leaseOfBoth)
	n.wantSilence(since)
	waitStoodDown(t, a)
	a.Stop()
	n.takesOver()
}

// waitKubelets waits until the Node is ready in the kubelet's words, and the
// kubelet has renewed the Lease.
func (n *node) waitKubelets() {
	n.T.Helper()
	since := time.Now()
	n.Eventually("the kubelet has the node", func(node *corev1.Node) error {
		// nodeprobe has a version of its own, and knows of no runtime.
		ready, info := nodewatch.Condition(node, corev1.NodeReady), node.Status.NodeInfo
		if ready.Status != corev1.ConditionTrue || !strings.HasPrefix(info.ContainerRuntimeVersion, "containerd://") ||
			info.KubeletVersion != "v1.36.3" || ready.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return fmt.Errorf("%+v, %+v", info, ready)
		}
		if len(stage.Writes(n.T, n.CP, "kubelet", since).Of("update leases")) < 2 {
			return errors.New("the lease is not renewed by the kubelet")
		}
		return nil
	})
}

// takesOver starts a nodeprobe when the kubelet's last renewal has run out: it adopts
// the Node, and posts what it knows.
func (n *node) takesOver() *agent.Agent {
	n.T.Helper()
	before := n.MustGet()
	if len(before.Status.DeclaredFeatures) == 0 {
		n.T.Error("the kubelet has declared no features")
	}
	began := time.Now()
	a := n.StartReady()
	if r := stage.WaitLogged(n.T, a, "node is registered", 0); !strings.Contains(r.Line, `"how":"adopted"`) {
		n.T.Errorf("logged: %s", r.Line)
	}
	got := n.MustGet()
	checkConditions(n.T, got)
	if got.UID != before.UID || len(got.Status.DeclaredFeatures) > 0 || got.Status.NodeInfo.KubeletVersion == "v1.36.3" {
		n.T.Errorf("it was registered anew, or still has features %v or version %s of the kubelet", got.Status.DeclaredFeatures, got.Status.NodeInfo.KubeletVersion)
	}
	n.WaitRenewed(began)
	n.WaitRenewed(time.Now())
	must.Note(n.T, stage.Metric(a, "nodeprobe_stood_down", 0))
	return a
}

// wantSilence wants nodeprobe to have written nothing since.
func (n *node) wantSilence(since time.Time) {
	n.T.Helper()
	for _, e := range stage.Writes(n.T, n.CP, "nodeprobe", since) {
		n.T.Errorf("nodeprobe has written at %s: %s %s %s", e.RequestReceivedTimestamp, e.Verb, e.RequestURI, e.RequestObject)
	}
}
