package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
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
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// leaseOfBoth is for how long a renewal is good, of the kubelet's and of ours.
const leaseOfBoth = 8 * time.Second

// beside is a Node that a real kubelet and nodeprobe both want.
type beside struct {
	*node
	cp      *controlplane.ControlPlane
	runtime *containerd.Containerd
}

// A real kubelet comes and goes, by turns with nodeprobe: no more than one of
// them writes, and the kubelet is the one wherever there is a choice.
func TestGuardBesideKubelet(t *testing.T) {
	t.Parallel()
	need.Root(t)
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	runtime := containerd.StartForTest(t, containerd.Options{Dir: t.TempDir()})
	b := &beside{node: newNode(t, cp, agent.Config{
		"nodeLeaseDurationSeconds": int(leaseOfBoth.Seconds()), "nodeStatusReportFrequency": "1s",
	}), cp: cp, runtime: runtime}

	k := b.startKubelet()
	b.checkRefuses()
	b.stopKubelet(k)
	time.Sleep(leaseOfBoth)
	a := b.checkTakesOver()

	began := time.Now()
	k = b.startKubelet()
	b.checkStandsDown(a, began)
	b.stopKubelet(k)
	b.checkSilent(a)
	a.Stop()
	b.checkTakesOver()
}

// startKubelet runs a kubelet for the Node, and returns when it has said that it
// is ready and renews the Lease.
func (b *beside) startKubelet() *kubelet.Kubelet {
	b.t.Helper()
	k := kubelet.StartForTest(b.t, b.cp, kubelet.Options{
		NodeName: b.name, RuntimeEndpoint: b.runtime.Endpoint, Dir: b.t.TempDir(),
		Thresholds: map[string]string{"memory.available": "1Mi"},
		Config: kubelet.Config{
			"nodeLeaseDurationSeconds":  int(leaseOfBoth.Seconds()),
			"nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "1s",
		},
	})
	b.waitKubelets()
	return k
}

// waitKubelets waits until the Node is ready in the kubelet's words, and the
// kubelet has renewed the Lease.
func (b *beside) waitKubelets() {
	b.t.Helper()
	since := time.Now()
	eventually(b.t, "the kubelet has the node", func() error {
		node, err := b.get()
		if err != nil {
			return err
		}
		// nodeprobe has a version of its own, and knows of no runtime.
		ready, info := nodewatch.Condition(node, corev1.NodeReady), node.Status.NodeInfo
		if ready.Status != corev1.ConditionTrue || !strings.HasPrefix(info.ContainerRuntimeVersion, "containerd://") ||
			info.KubeletVersion != "v1.36.3" || ready.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return fmt.Errorf("%+v, %+v", info, ready)
		}
		if len(of(writes(b.t, b.cp, "kubelet", since), "update leases")) < 2 {
			return errors.New("the lease is not renewed by the kubelet")
		}
		return nil
	})
}

func (b *beside) stopKubelet(k *kubelet.Kubelet) {
	b.t.Helper()
	must.OK(b.t, k.Stop())
}

// checkRefuses: a kubelet is alive. nodeprobe ends, says why, and writes nothing.
func (b *beside) checkRefuses() {
	b.t.Helper()
	began := time.Now()
	a, err := agent.Start(b.t.Context(), b.spec)
	if err == nil {
		a.Stop()
		b.t.Fatal("nodeprobe has started beside a kubelet")
	}
	exit, ok := errors.AsType[*process.ExitError](err)
	if !ok {
		b.t.Fatal(err)
	}
	if code, ok := errors.AsType[*exec.ExitError](exit.Err); !ok || code.ExitCode() <= 0 {
		b.t.Errorf("it ended with %v", exit.Err)
	}
	b.t.Logf("it says:\n%s", exit.Log)
	if why := regexp.MustCompile(`own node ` + b.name + `: kubelet (renewed its lease|wrote its status) [0-8]s ago; a node has one status writer`); !why.MatchString(exit.Log) {
		b.t.Errorf("it does not say why: %s", exit.Log)
	}
	b.wantSilence(began)
	if asked := requests(b.t, b.cp, "nodeprobe", began); len(asked) == 0 {
		b.t.Error("nothing of nodeprobe is in the audit log, not even a look at the lease: has its user agent changed?")
	}
	b.waitKubelets() // it goes on undisturbed
}

// checkStandsDown: a kubelet has come since. nodeprobe says so wherever it can,
// and leaves the node to the kubelet.
func (b *beside) checkStandsDown(a *agent.Agent, began time.Time) {
	b.t.Helper()
	r := waitLogged(b.t, a, "this node has another status writer: nothing more is written to the API server", 0)
	if r.Level != "ERROR" || !strings.Contains(r.Err, "kubelet") {
		b.t.Errorf("logged: %s", r.Line)
	}
	must.Note(b.t, wantMetric(a, "nodeprobe_stood_down", 1))
	// A write that was on its way may still arrive.
	since := r.Time.Add(3 * time.Second)
	theirs := of(writes(b.t, b.cp, "kubelet", began), "patch nodes/status")
	if len(theirs) == 0 {
		b.t.Fatal("the kubelet has not patched the node")
	}
	first := theirs[0].RequestReceivedTimestamp
	b.t.Logf("%s after the kubelet's first patch, and %d writes of its own later, it says: %s",
		r.Time.Sub(first), len(writes(b.t, b.cp, "nodeprobe", first)), r.Err)
	time.Sleep(3 * leaseOfBoth)
	b.wantSilence(since)
	b.wantUnready(a)
	if n := len(of(writes(b.t, b.cp, "kubelet", since), "update leases")); n < 3 {
		b.t.Errorf("the kubelet has renewed the lease %d times in %s", n, 3*leaseOfBoth)
	}
	b.waitKubelets()
	if again := logged(b.t, a, r.Msg); len(again) != 1 {
		b.t.Errorf("logged %d times: %s", len(again), r.Line)
	}
}

// wantUnready checks that nodeprobe lives, but is not ready and says why.
func (b *beside) wantUnready(a *agent.Agent) {
	b.t.Helper()
	must.Note(b.t, wantCode(a, "/livez", 200))
	code, body, err := a.Get(context.Background(), "/readyz")
	if err != nil || code != 503 ||
		!regexp.MustCompile(`\[-\]status failed: stood down until restart: kubelet `).Match(body) ||
		!regexp.MustCompile(`\[-\]lease failed: stood down until restart: kubelet `).Match(body) {
		b.t.Errorf("/readyz: %d, %v: %s", code, err, body)
	}
}

// checkSilent: that kubelet is gone. The cluster must see it: the Lease runs out,
// and nobody says that the node is well.
func (b *beside) checkSilent(a *agent.Agent) {
	b.t.Helper()
	since := time.Now()
	before := must.Get(b.lease())(b.t)
	node := b.mustGet()
	time.Sleep(2 * leaseOfBoth)
	after := must.Get(b.lease())(b.t)
	if age := time.Since(after.Spec.RenewTime.Time); after.ResourceVersion != before.ResourceVersion || age < 2*leaseOfBoth {
		b.t.Errorf("the lease was renewed %s ago: %+v", age, after)
	}
	if now := b.mustGet(); now.ResourceVersion != node.ResourceVersion {
		b.t.Errorf("the node was written to: %+v", now.Status.Conditions)
	}
	b.wantSilence(since)
	b.wantUnready(a)
}

// checkTakesOver: the kubelet's last renewal has run out. A nodeprobe that starts
// now adopts the Node, and says what it knows.
func (b *beside) checkTakesOver() *agent.Agent {
	b.t.Helper()
	before := b.mustGet()
	if len(before.Status.DeclaredFeatures) == 0 {
		b.t.Error("the kubelet has declared no features")
	}
	began := time.Now()
	a := b.startReady()
	if r := waitLogged(b.t, a, "node is registered", 0); !strings.Contains(r.Line, `"how":"adopted"`) {
		b.t.Errorf("logged: %s", r.Line)
	}
	got := b.mustGet()
	if got.UID != before.UID {
		b.t.Error("the node was registered anew")
	}
	checkConditions(b.t, got)
	if len(got.Status.DeclaredFeatures) > 0 {
		b.t.Errorf("the node still declares the kubelet's features: %v", got.Status.DeclaredFeatures)
	}
	if got.Status.NodeInfo.KubeletVersion == "v1.36.3" {
		b.t.Error("the node still has the kubelet's version")
	}
	b.waitRenewed(began)
	b.waitRenewed(time.Now())
	must.Note(b.t, wantMetric(a, "nodeprobe_stood_down", 0))
	return a
}

// wantSilence checks that nodeprobe has written nothing since.
func (b *beside) wantSilence(since time.Time) {
	b.t.Helper()
	for _, e := range writes(b.t, b.cp, "nodeprobe", since) {
		b.t.Errorf("nodeprobe has written at %s: %s %s %s", e.RequestReceivedTimestamp, e.Verb, e.RequestURI, e.RequestObject)
	}
}
