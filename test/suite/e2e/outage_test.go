package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
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
	fs := pressure.Disk(t, 16)
	n := newNode(t, cp, agent.Config{
		"rootDirectory": fs.Dir,
		"evictionHard":  agent.Hard(map[string]string{"nodefs.available": "30%"}),
	}.With(config))
	return n, fs
}

// full is how many bytes are left when the filesystem is full, well below the
// threshold.
const full = 1 << 20

// A restart is no reason for a condition to end, not even where what caused it
// is over by then: it is held for the transition period all the same.
func TestRestartUnderPressure(t *testing.T) {
	t.Parallel()
	const period = 4 * time.Second
	cp := controlplane.StartForTest(t)
	n, fs := newFullableNode(t, cp, agent.Config{"evictionPressureTransitionPeriod": period.String()})
	must.OK(t, fs.Fill(full))
	first := n.StartReady()
	n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
	since := nodewatch.Condition(n.MustGet(), corev1.NodeDiskPressure).LastTransitionTime
	history := n.Follow()

	first.Stop()
	must.OK(t, fs.Empty())
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
		time.Sleep(time.Second)
		most := 2 + int(time.Since(resumed)/time.Second) // one each second
		puts := proxy.Count("PUT", stage.LeasesPath+"/*")
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

func signal(t *testing.T, a *agent.Agent, s syscall.Signal) {
	t.Helper()
	must.OK(t, syscall.Kill(a.PID(), s))
}

// On a node that has run out of PIDs nobody can start a thread, and that is when
// nodeprobe is needed. A program in Go dies if it cannot when it wants to.
func TestNoNewThreads(t *testing.T) {
	t.Parallel()
	fs := pressure.Disk(t, 64)
	none := must.Get(pressure.NoNewTasks())(t)
	t.Cleanup(func() { // after nodeprobe has ended
		must.Note(t, none.Release())
	})
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, agent.Config{
		"bpf": "auto", "evictionPressureTransitionPeriod": "0s", "rootDirectory": fs.Dir,
		"evictionHard": agent.Hard(map[string]string{"nodefs.available": "20Mi"}),
	})
	a := n.StartReady()
	must.OK(t, none.Add(a.PID()))
	threads := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.PID()))
		must.Note(t, err)
		return len(entries)
	}
	before := threads()

	// All at once: scrapes, samples, patches, renewals, and a filesystem that is
	// slow to answer now and then.
	var scrapers sync.WaitGroup
	end := time.Now().Add(10 * time.Second)
	for range 8 {
		scrapers.Go(func() {
			for time.Now().Before(end) {
				if _, _, err := a.Get(t.Context(), "/metrics"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := 0; time.Now().Before(end); i++ {
		must.OK(t, fs.Fill([]int64{10 << 20, 40 << 20}[i%2]))
		time.Sleep(time.Second / 4)
	}
	scrapers.Wait()
	t.Logf("%d threads before, %d after", before, threads())
	n.WaitRenewed(time.Now())
	must.OK(t, fs.Fill(10<<20))
	n.WaitCondition(corev1.NodeDiskPressure, corev1.ConditionTrue)
	stage.CheckAlive(t, a)
}

// The API server cannot be reached when nodeprobe starts: it runs, reports that once,
// and asks again. Once it knows that nobody else is alive, all goes on as at any start.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for manager, age := range map[string]time.Duration{
		kubeletManager: 41 * time.Second, // a kubelet's that is gone
		"nodeprobe":    time.Second,      // our own, before a restart
	} {
		t.Run(manager, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, controlplane.StartForTest(t), agent.Config{"nodeStatusUpdateFrequency": "1h"})
			proxy := n.Through()
			began := time.Now()
			n.createLease(manager, began.Add(-age))
			proxy.Refuse()
			a := n.Start()
			if r := stage.WaitComplaint(t, a, notPosted, "connection refused"); !strings.Contains(r.Err, "127.0.0.1:") {
				t.Errorf("the server is not named: %s", r.Line)
			}
			stage.WaitUnready(t, a, cannotTell)
			time.Sleep(2 * time.Second) // several more attempts
			must.Note(t, stage.Code(a, "/livez", 200))
			must.Note(t, stage.Code(a, "/metrics", 200))
			must.OK(t, proxy.Accept())
			n.WaitReady(a)
			n.WaitRenewed(began)
			stage.CheckOnce(t, a)
			a.Stop()
			if len(stage.Logged(t, a, "nodeprobe has stopped")) != 1 {
				t.Error("nodeprobe had to be killed")
			}
			checkConditions(t, n.MustGet()) // without an exit message Ready stays
		})
	}
}
