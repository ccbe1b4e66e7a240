package e2e

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// The whole machine stands still for longer than the Lease lasts and samples may
// stay away, as virtual machines do that are paused or moved. Nothing was wrong
// with the node meanwhile, so all that may be seen of it is a late renewal: at
// once, and without making up for those that were missed.
func TestPause(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, agent.Config{"sampleInterval": "1s", "statfsTimeout": "300ms"})
	proxy := n.Through()
	a := n.StartReady()
	n.WaitRenewed(time.Now())
	history := n.Follow()
	begin := time.Now()

	for range 5 {
		signal(t, a, syscall.SIGSTOP)
		time.Sleep(5 * time.Second)
		proxy.Forget()
		resumed := time.Now()
		signal(t, a, syscall.SIGCONT)
		n.WaitRenewed(resumed)
		late := time.Since(resumed)
		time.Sleep(time.Second)
		most := 2 + int(time.Since(resumed)/time.Second) // one each second
		puts := proxy.Count("PUT", stage.LeasesPath+"/*")
		t.Logf("renewed within %s of the pause; %d renewals in a second", late.Round(time.Millisecond), puts)
		if puts > most {
			t.Errorf("%d renewals, want %d at most", puts, most)
		}
	}
	skipped, err := a.Metric(t.Context(), `nodeprobe_heartbeat_renewals_total{result="skipped_unhealthy"}`)
	if err != nil || skipped != 0 {
		t.Errorf("%v renewals were skipped (%v), want none", skipped, err)
	}
	for _, s := range history.All() {
		if s.At.After(begin) && s.Node != nil && !nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue)(s.Node) {
			t.Errorf("not ready: %+v", nodewatch.Condition(s.Node, corev1.NodeReady))
		}
	}
}

// Nor is more to be seen of a pause longer than a container runtime may be silent,
// whether nodeprobe was waiting for its answer or not: the runtime is asked before it
// is judged.
func TestPauseOfRuntime(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	const (
		pause = 40 * time.Second
		slow  = time.Second // it takes the runtime to answer
	)
	for _, name := range []string{"idle", "asking"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{})
			path := filepath.Join(t.TempDir(), "runtime.sock")
			replies := critest.Healthy()
			replies.Before = func(_ context.Context, call string) error {
				if call != "Status" {
					return nil
				}
				select {
				case asked <- struct{}{}:
				default:
				}
				if name == "asking" {
					time.Sleep(slow)
				}
				return nil
			}
			stop := startRuntime(t, path, replies)
			t.Cleanup(stop)
			waitAsked := func() {
				t.Helper()
				select {
				case <-asked:
				case <-time.After(stage.Patience):
					t.Fatal("the runtime is not asked")
				}
			}
			n := newNode(t, cp, agent.Config{"containerRuntimeEndpoint": "unix://" + path})
			proxy := n.Through()
			a := n.StartReady()
			n.WaitCondition(corev1.NodeReady, corev1.ConditionTrue)
			n.WaitRenewed(time.Now())
			history := n.Follow()
			waitAsked() // so that it is not about to be
			if name == "idle" {
				n.WaitRenewed(time.Now())
			}

			begin := time.Now()
			signal(t, a, syscall.SIGSTOP)
			time.Sleep(pause)
			proxy.Forget()
			resumed := time.Now()
			signal(t, a, syscall.SIGCONT)
			n.WaitRenewed(resumed)
			for range 2 { // it has been judged by then, twice
				waitAsked()
			}
			for _, r := range proxy.Requests() {
				if r.Method == "PATCH" || r.Method == "POST" {
					t.Errorf("after the pause: %s: %s", r, r.Body)
				}
			}
			for _, s := range history.All() {
				if s.At.After(begin) && s.Node != nil && !nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue)(s.Node) {
					t.Errorf("not ready: %+v", nodewatch.Condition(s.Node, corev1.NodeReady))
				}
			}
		})
	}
}

func signal(t *testing.T, a *agent.Agent, s syscall.Signal) {
	t.Helper()
	must.OK(t, syscall.Kill(a.PID(), s))
}
