package e2e

import (
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
)

// The status, the Lease and Events have connections of their own: while writes of
// one kind hang, and connections are closed for that again and again, no renewal of
// the Lease fails, although one is under way most of the time.
func TestHangingWrites(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for name, test := range map[string]struct{ method, path string }{
		"events": {"POST", "/api/v1/namespaces/default/events"},
		"status": {"PATCH", nodesPath + "/*/status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const slow = 2 * time.Second
			n := newNode(t, cp, agent.Config{"nodeLeaseDurationSeconds": 4})
			proxy := n.through(cp)
			a := n.startReady()
			proxy.Inject(fault.Rule{Methods: []string{"PUT"}, Path: leasesPath + "/*", Fault: fault.Delay(slow)})
			proxy.Inject(fault.Rule{Methods: []string{test.method}, Path: test.path, Fault: fault.Hang()})
			proxy.Forget()
			n.markUnknown() // which is worth a patch, and that an Event
			eventually(t, "the fault is met", func() error {
				met := 0
				for _, r := range proxy.Requests() {
					if r.Fault == fault.Hang().String() && r.Done {
						met++
					}
				}
				if met < 4 {
					return errNotYet
				}
				return nil
			})
			if failed, err := a.Metric(t.Context(), `nodeprobe_heartbeat_renewals_total{result="failure"}`); err != nil || failed != 0 {
				t.Errorf("%v renewals failed (%v), want none", failed, err)
			}
			renewals := 0
			for _, r := range proxy.Requests() {
				if r.Method != "PUT" || !r.Done {
					continue
				}
				if renewals++; r.Code != 200 {
					t.Errorf("renewal: %s", r)
				}
			}
			if renewals == 0 {
				t.Error("no renewal was under way")
			}
		})
	}
}
