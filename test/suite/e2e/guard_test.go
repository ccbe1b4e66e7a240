package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// asKubelet is how the API server sees what a kubelet writes.
var asKubelet = metav1.PatchOptions{FieldManager: "kubelet"}

// renewAsKubelet renews the Node's Lease under a kubelet's name.
func (n *node) renewAsKubelet() {
	n.t.Helper()
	must.OK(n.t, n.renewAs(n.t.Context(), asKubelet.FieldManager))
}

func (n *node) renewAs(ctx context.Context, manager string) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": metav1.NowMicro()}})
	if err == nil {
		_, err = n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	}
	return err
}

// A kubelet that is alive already: own mode does not start.
func TestGuardRefusesToStart(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{})
	_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &n.name}}, metav1.CreateOptions{})
	must.OK(t, err)
	n.renewAsKubelet()
	a, err := agent.Start(t.Context(), n.spec)
	if err == nil {
		a.Stop()
		t.Fatal("it has started")
	}
	exit, ok := errors.AsType[*process.ExitError](err)
	if !ok || exit.Err.Error() != "exit status 4" || !strings.Contains(exit.Log, "kubelet renewed its lease") || !strings.Contains(exit.Log, "one status writer") {
		t.Errorf("it does not say why: %v", err)
	}
	if _, err := n.get(); err == nil {
		t.Error("there is a Node")
	}
}

// A Lease that another agent has left behind, in its own name: that is no other
// writer.
func TestLeaseLeftBehind(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeLeaseDurationSeconds": 4})
	holder, renewed := "other-agent", metav1.NewMicroTime(time.Now().Add(-time.Hour))
	must.Get(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed},
	}, metav1.CreateOptions{FieldManager: holder}))(t)
	a := n.startReady()
	n.waitRenewed(time.Now())
	if lease, err := n.lease(); err != nil || *lease.Spec.HolderIdentity != holder {
		t.Errorf("lease %+v, error %v: its holder is for others to change", lease, err)
	}
	must.Note(t, wantCode(a, "/readyz", 200))
}

// A kubelet that comes later: nothing more is written, for as long as the process
// lasts.
func TestGuardStandsDown(t *testing.T) {
	for name, appear := range map[string]func(n *node){
		"status": func(n *node) {
			_, err := n.client.CoreV1().Nodes().Patch(n.t.Context(), n.name, types.StrategicMergePatchType,
				[]byte(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"from a kubelet"}]}}`), asKubelet, "status")
			must.OK(n.t, err)
		},
		"lease": func(n *node) { n.renewAsKubelet() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, controlplane.StartForTest(t), agent.Config{
				"nodeStatusReportFrequency": "1s", "nodeStatusUpdateFrequency": "1s", "nodeLeaseDurationSeconds": 4,
			})
			a := n.startReady()
			appear(n)
			eventually(t, "nodeprobe is not ready", func() error { return wantCode(a, "/readyz", 503) })
			must.Note(t, wantCode(a, "/livez", 200))
			eventually(t, "the metric tells", func() error {
				down, err := a.Metric(t.Context(), "nodeprobe_stood_down")
				if err == nil && down != 1 {
					err = errNotYet
				}
				return err
			})
			time.Sleep(2 * time.Second) // a write that was on its way may still arrive
			node := n.mustGet()
			lease := must.Get(n.lease())(t)
			time.Sleep(6 * time.Second) // longer than each of its periods, and than the lease
			if now := n.mustGet(); now.ResourceVersion != node.ResourceVersion {
				t.Errorf("the node was written to: %+v", now.Status.Conditions)
			}
			if now, err := n.lease(); err != nil || now.ResourceVersion != lease.ResourceVersion {
				t.Errorf("the lease was written to: %+v, %v", now, err)
			}
			waitLogged(t, a, "this node has another status writer: nothing more is written to the API server", 0)
		})
	}
}

// A kubelet is alive, and nobody can tell: its Lease cannot be read when nodeprobe
// starts. It writes nothing, says why, and stands down as soon as it can read.
func TestGuardCannotTell(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for name, unreadable := range map[string][]string{
		"lease": {leasesPath + "/*"}, "lease and node": {leasesPath + "/*", nodesPath + "/*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, agent.Config{"lastWord": "gone for maintenance"})
			proxy := n.through(cp)
			n.playKubelet()

			for _, path := range unreadable {
				proxy.Inject(fault.Rule{Methods: []string{"GET"}, Path: path, Fault: fault.Status(503)})
			}
			a := n.start()
			const want = "cannot tell yet whether a kubelet is alive"
			eventually(t, "it has tried to read more than once", func() error {
				if proxy.Count("GET", leasesPath+"/*") < 3 {
					return errNotYet
				}
				return nil
			})
			wantReadyz(t, a, want)
			waitComplaint(t, a, "node status is not posted", want)
			must.Note(t, wantMetric(a, "nodeprobe_stood_down", 0))
			checkOnce(t, a)
			proxy.Clear()
			waitStoodDown(t, a)
			time.Sleep(5 * time.Second)
			a.Stop()
			for _, r := range proxy.Requests() {
				if r.Method != "GET" {
					t.Errorf("written beside a kubelet that is alive: %s", r)
				}
			}
		})
	}
}

// playKubelet creates the Node and renews its Lease as a kubelet does, until the test
// ends.
func (n *node) playKubelet() {
	n.t.Helper()
	created := metav1.CreateOptions{FieldManager: "kubelet"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{corev1.LabelHostname: n.name}}}
	must.Get(n.client.CoreV1().Nodes().Create(n.t.Context(), node, created))(n.t)
	n.createLease("kubelet", time.Now())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.t.Cleanup(func() { stop(); <-done })
	go func() {
		defer close(done)
		for range time.Tick(time.Second) {
			if ctx.Err() != nil {
				return
			}
			if err := n.renewAs(ctx, "kubelet"); err != nil && ctx.Err() == nil {
				n.t.Error(err)
			}
		}
	}()
}

// createLease is the Lease that a field manager has renewed at some time.
func (n *node) createLease(manager string, renewed time.Time) {
	n.t.Helper()
	at := metav1.NewMicroTime(renewed)
	must.Get(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(n.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &n.name, RenewTime: &at, LeaseDurationSeconds: new(int32(40))},
	}, metav1.CreateOptions{FieldManager: manager}))(n.t)
}

// A Lease that a kubelet renewed 2 s ago is a live kubelet's, at first sight: it is left
// alone even where it could not be read at the very start, and is never renewed again.
func TestGuardKubeletsLease(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusUpdateFrequency": "1h"})
	proxy := n.through(controlplane.StartForTest(t))
	n.createLease("kubelet", time.Now().Add(-2*time.Second))
	before := must.Get(n.lease())(t)
	proxy.Inject(fault.Rule{Methods: []string{"GET"}, Path: leasesPath + "/*", Count: 1, Fault: fault.Reset()})
	a := n.start()
	waitStoodDown(t, a)
	time.Sleep(5 * time.Second)
	if lease, err := n.lease(); err != nil || lease.ResourceVersion != before.ResourceVersion {
		t.Errorf("the lease was written to: %+v, %v", lease, err)
	}
	if _, err := n.get(); !apierrors.IsNotFound(err) {
		t.Errorf("there is a Node: %v", err)
	}
}

// What cannot be read is asked for again; where nobody else is alive all goes on as at
// any start.
func TestGuardReadsInTheEnd(t *testing.T) {
	t.Parallel()
	for _, manager := range []string{"kubelet", "nodeprobe"} {
		t.Run(manager, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusUpdateFrequency": "1h"})
			proxy := n.through(controlplane.StartForTest(t))
			began := time.Now()
			age := 41 * time.Second // a kubelet's that is gone
			if manager == "nodeprobe" {
				age = time.Second // our own, before a restart
			}
			n.createLease(manager, began.Add(-age))
			proxy.Refuse()
			a := n.start()
			wantReadyz(t, a, "cannot tell yet whether a kubelet is alive")
			must.OK(t, proxy.Accept())
			n.waitReady(a)
			n.waitRenewed(began)
			checkConditions(t, n.mustGet())
			checkOnce(t, a)
		})
	}
}

// waitStoodDown waits until nodeprobe has left the node to somebody else.
func waitStoodDown(t *testing.T, a *agent.Agent) {
	t.Helper()
	eventually(t, "nodeprobe has stood down", func() error { return wantMetric(a, "nodeprobe_stood_down", 1) })
	wantReadyz(t, a, "stood down until restart: kubelet ")
}
