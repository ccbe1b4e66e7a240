package e2e

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// On a node that has run out of PIDs nobody can start a thread, and that is when
// nodeprobe is needed. A program in Go dies if it cannot when it wants to.
func TestNoNewThreads(t *testing.T) {
	t.Parallel()
	fs := pressure.DiskForTest(t, 64)
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
	select {
	case <-a.Exited():
		t.Error("nodeprobe has died")
	default:
	}
}
