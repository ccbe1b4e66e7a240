package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
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

// comparison is how long each of two took to tell of the same crossings of a
// signal's limit.
type comparison struct {
	load        *load
	ours, peers []time.Duration
	missed      int // by the peer
}

// compare crosses limits that a nodeprobe and a kubelet both have. A nodeprobe
// has one of them, since it may post six changes a minute, and the kubelet all.
func (s *stage) compare(ctx context.Context, loads []*load, crossings int, log io.Writer) (_ []*comparison, err error) {
	runtime, err := containerd.Start(ctx, containerd.Options{Dir: s.dir})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, runtime.Stop()) }()
	dir := filepath.Join(s.dir, kubeletName)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	thresholds := map[string]string{}
	for _, l := range loads {
		thresholds[l.signal] = l.text(l.limit(0))
	}
	peer := &node{name: kubeletName}
	if peer.history, err = nodewatch.Follow(ctx, s.watcher, kubeletName); err != nil {
		return nil, err
	}
	k, err := kubelet.Start(ctx, s.cp, kubelet.Options{
		NodeName: kubeletName, RuntimeEndpoint: runtime.Endpoint, Dir: dir, Log: log,
		// The same filesystem, so that the limit means the same.
		RootDir:    filepath.Join(s.rootfs, kubeletName),
		Thresholds: thresholds,
		Config:     kubelet.Config{"evictionPressureTransitionPeriod": transition.String()},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Stop()) }()
	peer.exited = k.Exited()

	var all []*comparison
	var nodes []*node
	defer func() {
		for _, n := range nodes {
			n.agent.Stop()
		}
	}()
	for _, l := range loads {
		n, err := s.start(ctx, l.name+"-beside-"+kubeletName, l, l.limit(0))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
		all = append(all, &comparison{load: l})
	}
	for len(all[0].ours) < crossings {
		if err := s.both(ctx, all, nodes, peer); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// both crosses each limit once, holds it until the peer has told of it, and lets
// go until it tells of that.
func (s *stage) both(ctx context.Context, all []*comparison, nodes []*node, peer *node) (err error) {
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.load.ramp.Give(math.MaxInt64))
		}
	}()
	for i, c := range all {
		if err := errors.Join(nodes[i].calm(ctx, c.load.condition), peer.calm(ctx, c.load.condition)); err != nil {
			return err
		}
	}
	if err := peer.wait(ctx, rand.N(kubeletPeriod)); err != nil {
		return err
	}
	traces, begun := make([]*trace, len(all)), make([]time.Time, len(all))
	for i, c := range all {
		// Once more if somebody else was faster, when that is over.
		for traces[i] == nil {
			begun[i] = time.Now()
			t, err := s.cross(ctx, nodes[i], c.load, c.load.limit(0))
			switch {
			case errors.Is(err, errForeign):
				if err := c.load.ramp.Give(math.MaxInt64); err != nil {
					return err
				}
				if err := errors.Join(nodes[i].calm(ctx, c.load.condition), peer.calm(ctx, c.load.condition)); err != nil {
					return err
				}
			case err != nil:
				return err
			}
			traces[i] = t
		}
	}
	for i, c := range all {
		seen, err := peer.see(ctx, begun[i], c.load.condition, func() error { return hold(all) })
		if err != nil {
			return err
		}
		c.ours = append(c.ours, traces[i].toNode())
		if seen.IsZero() {
			c.missed++
			c.peers = append(c.peers, kubeletTimeout)
			continue
		}
		c.peers = append(c.peers, since(traces[i].crossed.Above, seen))
	}
	return nil
}

// hold keeps all limits crossed, whatever others give back.
func hold(all []*comparison) error {
	for _, c := range all {
		l := c.load
		available, err := l.ramp.Available()
		if err != nil {
			return err
		}
		if surplus := available - l.limit(0); surplus > -l.hold/2 {
			if err := l.ramp.Take(surplus + l.hold); err != nil {
				return err
			}
		}
	}
	return nil
}

// see returns when the condition was seen to become True, zero if it was not. It
// calls meanwhile now and then.
func (n *node) see(ctx context.Context, since time.Time, condition corev1.NodeConditionType, meanwhile func() error) (time.Time, error) {
	for deadline := time.Now().Add(kubeletTimeout); time.Now().Before(deadline); {
		if err := meanwhile(); err != nil {
			return time.Time{}, err
		}
		wait, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		seen, err := n.history.Wait(wait, since, nodewatch.Has(condition, corev1.ConditionTrue))
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return seen.At, err
		}
		if err := n.wait(ctx, 0); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, nil
}

// printComparisons prints everything for people.
func printComparisons(w io.Writer, all []*comparison) error {
	fmt.Fprintf(w, "\ncrossing to Node seen, of %d crossings that both saw:\n", len(all[0].ours))
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ms\tnodeprobe p50\tmax\tkubelet p50\tmax\tmissed by kubelet")
	for _, c := range all {
		ours, peers := summarize(c.ours), summarize(c.peers)
		fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.0f\t%.0f\t%d\n", c.load.signal,
			millis(ours.p50), millis(ours.max), millis(peers.p50), millis(peers.max), c.missed)
	}
	return table.Flush()
}

// printResults prints what other programs read.
func (c *comparison) printResults(w io.Writer) {
	ours, peers := summarize(c.ours), summarize(c.peers)
	name := "latency_" + c.load.name
	fmt.Fprintf(w, "RESULT %s_%s_p50=%.0f ms\n", name, kubeletName, millis(peers.p50))
	fmt.Fprintf(w, "RESULT %s_%s_max=%.0f ms\n", name, kubeletName, millis(peers.max))
	fmt.Fprintf(w, "RESULT %s_ratio=%.0f x peer=%s:%.0fms\n", name, float64(peers.p50)/float64(max(ours.p50, 1)), kubeletName, millis(peers.p50))
}
