package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

const (
	kubeletName = "kubelet"
	// kubeletPeriod is how often a kubelet looks at its thresholds, and how often
	// at whether its Node has changed. When a crossing comes must have nothing to
	// do with either.
	kubeletPeriod = 10 * time.Second
	// kubeletTimeout is several of both.
	kubeletTimeout = 90 * time.Second
)

// comparison is how long each of two took to report the same crossings of a signal's
// limit.
type comparison struct {
	load        *load
	node        *node // ours
	ours, peers []time.Duration
	missed      int // by the peer
}

// compare crosses limits that a nodeprobe and a kubelet both have. A nodeprobe
// has one of them, since it may post six changes a minute, and the kubelet all.
func (s *stage) compare(crossings int) []program.Figure {
	loads := []*load{newLoad(s.P, "memory"), newLoad(s.P, "pid"), newLoad(s.P, "ext4")}
	rootfs := loads[2].config["rootDirectory"].(string) //nolint:forcetypeassert // it always is
	runtime := containerd.Start(s, containerd.Options{Dir: s.dir})
	dir := filepath.Join(s.dir, kubeletName)
	must.OK(s, os.Mkdir(dir, 0o755))
	thresholds := map[string]string{}
	for _, l := range loads {
		thresholds[l.signal] = l.text(l.limit(0))
	}
	peer := s.follow(kubeletName)
	k := kubelet.Start(s, s.cp, kubelet.Options{
		NodeName: kubeletName, RuntimeEndpoint: runtime.Endpoint, Dir: dir,
		// The same filesystem, so that the limit means the same.
		RootDir:    filepath.Join(rootfs, kubeletName),
		Thresholds: thresholds,
		Config:     kubelet.Config{"evictionPressureTransitionPeriod": transition.String()},
	})
	peer.exited = k.Exited()
	var all []*comparison
	for _, l := range loads {
		all = append(all, &comparison{load: l, node: s.start(l.name+"-beside-"+kubeletName, l, l.limit(0))})
	}
	for range crossings {
		peer.both(all)
	}
	return printComparisons(s.P, all)
}

// both crosses each limit once, holds it until the peer has reported it, and lets go
// until that is reported.
func (n *node) both(all []*comparison) {
	calm := func(c *comparison) {
		c.node.calm(c.load.condition)
		n.calm(c.load.condition)
	}
	for _, c := range all {
		calm(c)
	}
	n.sleep(rand.N(kubeletPeriod))
	traces, begun := make([]*trace, len(all)), make([]time.Time, len(all))
	for i, c := range all {
		// Again if another process was faster, when that is over.
		for traces[i] == nil {
			begun[i] = time.Now()
			if traces[i] = c.node.cross(c.load, c.load.limit(0)); traces[i] == nil {
				must.OK(n, c.load.ramp.Give(math.MaxInt64))
				calm(c)
			}
		}
	}
	for i, c := range all {
		var seen time.Time
		for deadline := time.Now().Add(kubeletTimeout); seen.IsZero() && time.Now().Before(deadline); n.sleep(0) {
			hold(n, all)
			seen = n.seen(begun[i], c.load.condition, 200*time.Millisecond)
		}
		c.ours = append(c.ours, traces[i].toNode())
		if seen.IsZero() {
			c.missed++
			c.peers = append(c.peers, kubeletTimeout)
		} else {
			c.peers = append(c.peers, since(traces[i].crossed.Above, seen))
		}
	}
	for _, c := range all {
		must.OK(n, c.load.ramp.Give(math.MaxInt64))
	}
}

// hold keeps all limits crossed, whatever others give back.
func hold(n *node, all []*comparison) {
	for _, c := range all {
		l := c.load
		if surplus := must.Get(l.ramp.Available())(n) - l.limit(0); surplus > -l.hold/2 {
			must.OK(n, l.ramp.Take(surplus+l.hold))
		}
	}
}

func printComparisons(p *program.P, all []*comparison) (figures []program.Figure) {
	fmt.Fprintf(p.Out, "\ncrossing to Node seen, of %d crossings that both saw:\n", len(all[0].ours))
	rows := []string{"ms\tnodeprobe p50\tmax\tkubelet p50\tmax\tmissed by kubelet"}
	for _, c := range all {
		ours, peers := summarize(c.ours), summarize(c.peers)
		rows = append(rows, fmt.Sprintf("%s\t%.3f\t%.3f\t%.0f\t%.0f\t%d", c.load.signal, ours.p50, ours.max, peers.p50, peers.max, c.missed))
		name := "latency_" + c.load.name
		figures = append(figures,
			program.Figure{Name: name + "_kubelet_p50", Value: peers.p50, Unit: "ms"},
			program.Figure{Name: name + "_kubelet_max", Value: peers.max, Unit: "ms"},
			program.Figure{Name: name + "_ratio", Value: peers.p50 / max(ours.p50, 1e-6), Unit: fmt.Sprintf("x peer=%s:%.0fms", kubeletName, peers.p50)},
		)
	}
	p.Table(rows...)
	return figures
}
