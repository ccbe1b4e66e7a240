// Command latency measures how long it takes from the moment at which a limit is
// crossed until nodeprobe's user space knows, and until the Node at a real API
// server shows it: for memory, PIDs and disks of each kind, as thresholds and as
// conditions of one's own. It prints one RESULT line for each figure that has a budget.
//
// A limit is crossed from near, after a rest; from far, where the burst begins at more
// than a fifth of the capacity and crosses the limits of ten nodeprobes in one go; and,
// on a disk, at once, by one fallocate(2) of all that.
//
//	go run ./bench/latency                       # 20 crossings of each
//	go run ./bench/latency -only ext4,ext4_rule  # a minute and a half each
//	go run ./bench/latency -peer kubelet         # and a few that a kubelet sees too
//
// It needs root, for the pressure. Whatever it makes or starts is gone when it
// ends, by ^C too.
package main

import (
	"fmt"
	"slices"
	"strings"

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

// names are those of all loads. The last two are what no kernel watches.
const names = "memory,pid,ext4,xfs,btrfs,memory_rule,ext4_rule,pods,tmpfs,overlay"

func run(p *program.P) {
	crossings := p.Flags.Int("crossings", 20, "how many to make of each load's limit from near, as many from far, and as many at once")
	peer := p.Flags.String("peer", "", "also compare with this `program`: kubelet")
	peerCrossings := p.Flags.Int("peer-crossings", 6, "how many to make of each limit for the peer")
	only := p.Flags.String("only", names, "only these `loads`")
	binary := p.ParseNodeprobe()
	if *peer != "" && *peer != kubeletName {
		p.Fatalf("peer %q is not known", *peer)
	}
	need.Root(p)
	s := &stage{P: p, dir: p.TempDir(), binary: binary, cp: p.ControlPlane(controlplane.Options{})}
	config := s.cp.Config()
	config.ContentType = runtime.ContentTypeProtobuf // decoding JSON takes its time
	s.watcher = must.Get(kubernetes.NewForConfig(config))(p)
	var figures []program.Figure
	for name := range strings.SplitSeq(*only, ",") {
		if !slices.Contains(strings.Split(names, ","), name) {
			p.Fatalf("load %q is not known", name)
		}
		p.Scope(func() {
			l := newLoad(p, name)
			p.Logf("%s: %d crossings of %s", name, *crossings, l.signal)
			for _, result := range s.series(l, *crossings) {
				result.print(p)
				figures = append(figures, result.figures()...)
			}
		})
	}
	if *peer != "" {
		p.Logf("%d crossings beside a %s", *peerCrossings, *peer)
		figures = append(figures, s.compare(*peerCrossings)...)
	}
	fmt.Fprintln(p.Out)
	p.Print(figures)
}
