package lifecycle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// A Node on which nothing happens stays in favour by its Lease alone, long after
// its status was posted last.
func TestAlive(t *testing.T) {
	t.Parallel()
	n := newNode(t, agent.Config{"nodeStatusUpdateFrequency": "10s", "nodeStatusReportFrequency": "1h"})
	user, groups := controlplane.NodeUser(n.name)
	proxy := fault.StartForTest(t, n.cp, user, groups...)
	n.spec.Kubeconfig = proxy.Kubeconfig()
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
		if s.Node == nil || !has(s.Node, allWell) {
			t.Fatalf("version %d: %s", i, describe(s.Node))
		}
		if len(s.Node.Spec.Taints) > 0 && s.At.After(begin) ||
			tainted(s.Node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule) ||
			tainted(s.Node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute) ||
			tainted(s.Node, corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute) {
			t.Errorf("version %d: %s", i, describe(s.Node))
		}
	}
	n.newPod(nil).waitBound()
}
