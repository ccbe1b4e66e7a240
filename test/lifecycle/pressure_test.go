package lifecycle

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/agent"
	"github.com/nodeprobe/nodeprobe/test/need"
	"github.com/nodeprobe/nodeprobe/test/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/pressure"
)

// load is how a test brings a condition about.
type load struct {
	signal    string
	limit     int64
	directory string // for rootDirectory
	press     func() error
	release   func() error
}

// Each pressure becomes a taint and keeps pods away, for as long as it lasts.
func TestPressure(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	for _, test := range []struct {
		condition corev1.NodeConditionType
		taint     string
		load      func(t *testing.T) load
	}{
		{corev1.NodeMemoryPressure, corev1.TaintNodeMemoryPressure, memoryLoad},
		{corev1.NodeDiskPressure, corev1.TaintNodeDiskPressure, diskLoad},
		{corev1.NodePIDPressure, corev1.TaintNodePIDPressure, pidLoad},
	} {
		t.Run(string(test.condition), func(t *testing.T) {
			t.Parallel()
			l := test.load(t)
			t.Cleanup(func() { must(t, l.release()) })
			n := newNode(t, agent.Config{
				"bpf": "auto", "rootDirectory": l.directory,
				"evictionHard": agent.Hard(map[string]string{l.signal: fmt.Sprint(l.limit)}),
			})
			a := n.startReady()

			pressed := time.Now()
			must(t, l.press())
			seen := n.wait("the condition is True", pressed, nodewatch.Has(test.condition, corev1.ConditionTrue))
			taintedAt := n.wait("the node is tainted", pressed, func(node *corev1.Node) bool {
				return tainted(node, test.taint, corev1.TaintEffectNoSchedule)
			})
			p := n.newRefused(byTaint)

			released := time.Now()
			must(t, l.release())
			over := n.wait("the condition is False", released, nodewatch.Has(test.condition, corev1.ConditionFalse))
			free := n.wait("the taint is gone", released, func(node *corev1.Node) bool { return len(node.Spec.Taints) == 0 })
			p.waitBound()
			t.Logf("True after %s, tainted %s later; False after %s, free %s later",
				seen.At.Sub(pressed), taintedAt.At.Sub(seen.At), over.At.Sub(released), free.At.Sub(over.At))

			n.checkOnly(a.Started, test.condition)
			for _, s := range n.since(seen.At) {
				if s.At.Before(over.At) && !nodewatch.Has(test.condition, corev1.ConditionTrue)(s.Node) {
					t.Errorf("in between: %s", describe(s.Node))
				}
			}
		})
	}
}

// checkOnly wants all conditions but one to have been well since a time.
func (n *node) checkOnly(since time.Time, but corev1.NodeConditionType) {
	n.t.Helper()
	for _, s := range n.since(since) {
		if s.Node == nil {
			n.t.Fatal("the node was deleted")
		}
		for condition, status := range allWell {
			if condition != but && !nodewatch.Has(condition, status)(s.Node) {
				n.t.Errorf("%s: %s", condition, describe(s.Node))
			}
		}
	}
}

// memoryLoad takes an eighth of the memory that is available. The limit lies
// half-way, so that the rest of the machine may come and go.
func memoryLoad(t *testing.T) load {
	available, err := pressure.AvailableMemory()
	must(t, err)
	take := available / 8
	return held(load{signal: "memory.available", limit: available - take/2, directory: "/"},
		func() (*pressure.Pressure, error) { return pressure.Memory(int(take >> 20)) })
}

func pidLoad(t *testing.T) load {
	available, err := pressure.AvailableTasks()
	must(t, err)
	const take = 3000
	return held(load{signal: "pid.available", limit: available - take/2, directory: "/"},
		func() (*pressure.Pressure, error) { return pressure.Tasks(take) })
}

func diskLoad(t *testing.T) load {
	fs := newDisk(t)
	return load{
		signal: "nodefs.available", limit: 8 << 20, directory: fs.Dir,
		press: func() error { return fs.Fill(1 << 20) }, release: fs.Empty,
	}
}

// newDisk makes a filesystem for nodefs to be.
func newDisk(t *testing.T) *pressure.Filesystem {
	t.Helper()
	fs, err := pressure.Disk(16)
	must(t, err)
	t.Cleanup(func() { must(t, fs.Close()) })
	return fs
}

// held completes a load with one that lasts as long as it is held.
func held(l load, start func() (*pressure.Pressure, error)) load {
	var p *pressure.Pressure
	l.press = func() (err error) {
		p, err = start()
		return err
	}
	l.release = func() error {
		if p == nil {
			return nil
		}
		return p.Release()
	}
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
