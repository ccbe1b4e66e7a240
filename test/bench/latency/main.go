// Command latency measures how long it takes from the moment at which a limit is
// crossed until nodeprobe's user space knows, and until the Node at a real API
// server shows it: for memory, PIDs and disk, as thresholds and as conditions of one's
// own. It prints one RESULT line for each figure that has a budget.
//
//	go run ./bench/latency                # 50 crossings of each
//	go run ./bench/latency -peer kubelet  # and a few that a kubelet sees too
//
// It needs root, for the pressure. Whatever it makes or starts is gone when it
// ends, by ^C too.
package main

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func main() {
	pressure.Main()
	program.Main("latency", run)
}

func run(p *program.P) {
	crossings := p.Flags.Int("crossings", 50, "how many to make of each signal's limit")
	peer := p.Flags.String("peer", "", "also compare with this `program`: kubelet")
	peerCrossings := p.Flags.Int("peer-crossings", 6, "how many to make of each limit for the peer")
	only := p.Flags.String("only", "", "only this `load`: memory, pid, disk, memory_rule or disk_rule")
	binary := p.ParseNodeprobe()
	if *peer != "" && *peer != kubeletName {
		p.Fatalf("peer %q is not known", *peer)
	}
	need.Root(p)
	s := &stage{P: p, dir: p.TempDir(), binary: binary, cp: p.ControlPlane(controlplane.Options{})}
	config := s.cp.Config()
	config.ContentType = runtime.ContentTypeProtobuf // decoding JSON takes its time
	s.watcher = must.Get(kubernetes.NewForConfig(config))(p)
	fs := pressure.Disk(p, filesystemSize)
	s.rootfs = fs.Dir
	loads := slices.DeleteFunc(newLoads(p, fs, fleet), func(l *load) bool { return *only != "" && l.name != *only })
	if len(loads) == 0 {
		p.Fatalf("load %q is not known", *only)
	}
	var figures []program.Figure
	for _, l := range loads {
		p.Logf("%s: %d crossings", l.signal, *crossings)
		result := s.series(l, *crossings)
		result.print(p)
		figures = append(figures, result.figures()...)
	}
	if *peer != "" {
		p.Logf("%d crossings beside a %s", *peerCrossings, *peer)
		figures = append(figures, s.compare(loads, *peerCrossings)...)
	}
	fmt.Fprintln(p.Out)
	p.Print(figures)
}

// load is one signal, and how to press on it: quantities are bytes or tasks.
type load struct {
	name      string // in the figures' names
	condition corev1.NodeConditionType
	signal    string
	text      func(int64) string // a quantity as a threshold has it
	rule      bool               // the limit is that of a condition of one's own

	// highest is the highest limit, below what is available at present by more
	// than the kernel waits for before it reports that a figure is back.
	highest int64
	// spacing is the distance between two limits, beginning how far above one
	// the clocked steps begin, step their size, and beyond how far the pressure
	// goes on after a crossing, as a real one would: the kernel's counters, from
	// which BPF, /proc and statfs take their figures, lag by some hundred pages.
	spacing, beginning, step, beyond int64
	// hold is what keeps a limit crossed while others use and give back as well.
	hold int64

	ramp pressure.Ramp
}

const mi = 1 << 20

func mebibytes(n int64) string { return fmt.Sprintf("%dMi", n/mi) }

func (l *load) limit(i int) int64 { return l.highest - int64(i)*l.spacing }

// filesystemSize leaves room above the highest limit and below the lowest.
const filesystemSize = 64 // MiB

// newLoads decides on all limits; most is how many each load has.
func newLoads(p *program.P, fs *pressure.Filesystem, most int) []*load {
	opened := func(r pressure.Ramp, err error) pressure.Ramp {
		must.OK(p, err)
		p.Cleanup(func() { must.Note(p, r.Close()) })
		return r
	}
	memory := &load{
		name: "memory", condition: corev1.NodeMemoryPressure, signal: "memory.available", text: mebibytes,
		spacing: 32 * mi, beginning: 24 * mi, step: 16 << 10, beyond: 2 * mi, hold: 256 * mi,
	}
	present := must.Get(pressure.AvailableMemory())(p)
	// The more, the less does it matter what else happens on the machine.
	margin := min(present/8, 2<<30)
	memory.highest = (present - margin) / mi * mi
	// What others give back in the meantime has to be held as well.
	memory.ramp = opened(pressure.MemoryRamp(2*margin + int64(most)*memory.spacing + memory.hold))
	tasks := &load{
		name: "pid", condition: corev1.NodePIDPressure, signal: "pid.available", text: func(n int64) string { return fmt.Sprint(n) },
		spacing: 60, beginning: 30, step: 1, beyond: 16, hold: 500, ramp: opened(pressure.TaskRamp()),
	}
	tasks.highest = must.Get(tasks.ramp.Available())(p) - 1500
	disk := &load{
		name: "disk", condition: corev1.NodeDiskPressure, signal: "nodefs.available", text: mebibytes,
		spacing: 2 * mi, beginning: mi, step: 16 << 10, beyond: mi * 3 / 4, hold: mi,
		highest: 40 * mi, ramp: opened(pressure.DiskRamp(fs)),
	}
	loads := []*load{memory, tasks, disk}
	for _, l := range []*load{memory, disk} {
		rule := *l
		rule.name, rule.rule, rule.condition = l.name+"_rule", true, "nodeprobe.dev/Short"
		loads = append(loads, &rule)
	}
	return loads
}
