package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// kubeletManager is the field manager under which the API server sees what a kubelet writes.
const kubeletManager = "kubelet"

const (
	stoodDown  = "this node has another status writer: nothing more is written to the API server"
	cannotTell = "cannot tell yet whether a kubelet is alive"
)

// createLease makes the Node's Lease, which a field manager has renewed at some time.
func (n *node) createLease(manager string, renewed time.Time) {
	n.T.Helper()
	at := metav1.NewMicroTime(renewed)
	must.Get(n.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(n.T.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &n.Name, RenewTime: &at, LeaseDurationSeconds: new(int32(40))},
	}, metav1.CreateOptions{FieldManager: manager}))(n.T)
}

// keepRenewing renews the Lease as a kubelet once a second until the test ends.
func (n *node) keepRenewing() {
	leases, as := n.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease), metav1.PatchOptions{FieldManager: kubeletManager}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			if _, err := leases.Patch(ctx, n.Name, types.MergePatchType, patch, as); err != nil && ctx.Err() == nil {
				n.T.Error(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	n.T.Cleanup(func() { cancel(); running.Wait() })
}

// waitStoodDown waits until nodeprobe has left the node to somebody else.
func waitStoodDown(t *testing.T, a *agent.Agent) agent.Record {
	t.Helper()
	stage.WaitUnready(t, a, "[-]status failed: stood down until restart: kubelet ")
	stage.WaitUnready(t, a, "[-]lease failed: stood down until restart: kubelet ")
	stage.Eventually(t, "the metric tells", func() error { return stage.Metric(a, "nodeprobe_stood_down", 1) })
	must.Note(t, stage.Code(a, "/livez", 200))
	return stage.WaitLogged(t, a, stoodDown, 0)
}

// A kubelet is alive, and nobody can tell: its Lease cannot be read when nodeprobe
// starts. It writes nothing, reports why, and stands down as soon as it can read.
func TestGuardCannotTell(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for name, unreadable := range map[string][]string{"lease": {leasePath}, "lease and node": {leasePath, stage.NodesPath + "/*"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, agent.Config{"exitMessage": "gone for maintenance"})
			proxy := n.Through()
			n.register()
			n.createLease(kubeletManager, time.Now())
			n.keepRenewing()
			for _, path := range unreadable {
				proxy.Inject(fault.Rule{Methods: []string{"GET"}, Path: path, Fault: fault.Status(503)})
			}
			a := n.Start()
			stage.Until(t, "it has tried to read more than once", func() bool { return proxy.Count("GET", leasePath) >= 3 })
			stage.WaitUnready(t, a, cannotTell)
			stage.WaitComplaint(t, a, notPosted, cannotTell)
			must.Note(t, stage.Metric(a, "nodeprobe_stood_down", 0))
			stage.CheckOnce(t, a)
			proxy.Clear()
			waitStoodDown(t, a)
			time.Sleep(5 * time.Second)
			a.Stop()
			wantOnlyReads(t, proxy)
		})
	}
}

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
	runtime := containerd.Start(t, containerd.Options{Dir: t.TempDir()})
	n := newNode(t, cp, agent.Config{"nodeLeaseDurationSeconds": int(leaseOfBoth.Seconds()), "nodeStatusReportFrequency": "1s"})
	start := func() *kubelet.Kubelet {
		k := kubelet.Start(t, cp, kubelet.Options{
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

	// A kubelet is alive: nodeprobe ends with exit code 4, says why, and writes nothing.
	k := start()
	began := time.Now()
	_, err := agent.Start(t, n.Spec)
	if exit, ok := errors.AsType[*process.ExitError](err); !ok || exit.Err.Error() != "exit status 4" || !kubeletAlive.MatchString(exit.Log) {
		t.Fatalf("beside a kubelet: %v", err)
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
	k = start()
	r := waitStoodDown(t, a)
	if r.Level != "ERROR" || !strings.Contains(r.Err, "kubelet") {
		t.Errorf("logged: %s", r.Line)
	}
	since := r.Time.Add(3 * time.Second) // a write that was on its way may still arrive
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
	time.Sleep(2 * leaseOfBoth)
	n.wantSilence(since)
	if len(stage.Writes(t, cp, "kubelet", since)) > 0 {
		t.Error("the kubelet has not ended")
	}
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

func (n *node) wantSilence(since time.Time) {
	n.T.Helper()
	for _, e := range stage.Writes(n.T, n.CP, "nodeprobe", since) {
		n.T.Errorf("nodeprobe has written at %s: %s %s %s", e.RequestReceivedTimestamp, e.Verb, e.RequestURI, e.RequestObject)
	}
}
