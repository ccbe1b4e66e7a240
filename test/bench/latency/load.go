package main

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// load is one signal, and how to press on it: quantities are bytes or tasks.
type load struct {
	name      string // in the figures' names
	condition corev1.NodeConditionType
	signal    string
	text      func(int64) string // a quantity as a threshold has it
	rule      bool               // the limit is that of a condition of one's own
	config    agent.Config       // what nodeprobe needs besides

	// highest is the highest limit, below what is available at present by more
	// than a fifth of the capacity.
	highest, capacity int64
	// spacing is the distance between two limits, beginning how far above one
	// the clocked steps begin, step their size, and beyond how far the pressure
	// goes on after a crossing, as a real one would: the kernel's counters, from
	// which BPF, /proc and statfs take their figures, lag by some hundred pages.
	spacing, beginning, step, beyond int64
	// hold is what keeps a limit crossed while others use and give back as well.
	hold int64
	// From far, what is available falls by bulk at a time, and by pace per second; as
	// fast as this machine can if that is 0.
	bulk, pace int64

	disk, polled bool
	ramp         pressure.Ramp
}

const mi = 1 << 20

func mebibytes(n int64) string { return fmt.Sprintf("%dMi", n/mi) }

func (l *load) limit(i int) int64 { return l.highest - int64(i)*l.spacing }

// newLoad makes one, until the end of the scope.
func newLoad(p *program.P, name string) *load {
	var l *load
	kind, rule := strings.CutSuffix(name, "_rule")
	switch kind {
	case "memory":
		l = newMemory(p)
	case "pods":
		l = newPods(p)
	case "pid":
		l = newTasks(p)
	default:
		l = newDisk(p, kind)
	}
	if l.name = name; rule {
		l.rule, l.condition = true, "nodeprobe.dev/Short"
	}
	p.Cleanup(func() { must.Note(p, l.ramp.Close()) })
	return l
}

func newMemory(p *program.P) *load {
	l := &load{
		condition: corev1.NodeMemoryPressure, signal: "memory.available", text: mebibytes,
		spacing: 128 * mi, beginning: 24 * mi, step: 16 << 10, beyond: 2 * mi, hold: 256 * mi, bulk: 4 * mi,
	}
	var info unix.Sysinfo_t
	must.OK(p, unix.Sysinfo(&info))
	l.capacity = int64(info.Totalram) * int64(info.Unit)
	// The more, the less does it matter what else happens on the machine.
	margin := l.capacity * 22 / 100
	l.highest = (must.Get(pressure.AvailableMemory())(p) - margin) / mi * mi
	// What others give back in the meantime has to be held as well.
	l.ramp = must.Get(pressure.MemoryRamp(margin*5/4 + fleet*l.spacing + l.hold))(p)
	return l
}

// newPods has the limit apply to the memory of all pods. That of the node is far away.
func newPods(p *program.P) *load {
	const limit = 8 << 30
	return &load{
		condition: corev1.NodeMemoryPressure, signal: "memory.available", text: mebibytes,
		config: agent.Config{"enforceNodeAllocatable": []string{"pods"}}, highest: limit * 3 / 4, capacity: limit,
		spacing: 128 * mi, beginning: 24 * mi, step: 16 << 10, beyond: 2 * mi, hold: 64 * mi, bulk: 4 * mi,
		ramp: pressure.PodsRamp(p, limit),
	}
}

func newTasks(p *program.P) *load {
	l := &load{
		condition: corev1.NodePIDPressure, signal: "pid.available", text: func(n int64) string { return fmt.Sprint(n) },
		spacing: 60, beginning: 30, step: 1, beyond: 16, hold: 200, bulk: 10, ramp: must.Get(pressure.TaskRamp())(p),
	}
	available := must.Get(l.ramp.Available())(p)
	l.capacity = available // within a few hundred
	l.highest = available * 78 / 100
	return l
}

func newDisk(p *program.P, kind string) *load {
	l := &load{
		condition: corev1.NodeDiskPressure, signal: "nodefs.available", text: mebibytes, disk: true,
		spacing: 128 * mi, beginning: 16 * mi, step: 64 << 10, beyond: 12 * mi, hold: 16 * mi, bulk: 4 * mi, pace: 2 << 30,
	}
	var fs *pressure.Filesystem
	var root string
	switch kind {
	case "tmpfs":
		root = pressure.Tmpfs(p, 2048)
		fs = &pressure.Filesystem{Dir: root}
		l.polled, l.spacing = true, 16*mi
	case "overlay":
		fs = pressure.DiskOf(p, "xfs", 96<<10) // so large that the pace is the slowest
		root = pressure.Overlay(p, fs)
		l.polled, l.spacing = true, 16*mi
	default:
		fs = pressure.DiskOf(p, kind, 16<<10)
		root = fs.Dir
	}
	if kind == "btrfs" { // of which the kernel has a hint only
		l.spacing, l.beginning, l.step, l.bulk = 256*mi, 96*mi, 64*mi, 64*mi
	}
	l.config = agent.Config{"rootDirectory": root}
	l.capacity = must.Get(fs.Capacity())(p)
	l.highest = must.Get(fs.Available())(p) * 3 / 4 / mi * mi
	l.ramp = must.Get(pressure.DiskRamp(fs))(p)
	return l
}
