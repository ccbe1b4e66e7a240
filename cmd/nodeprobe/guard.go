package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
)

// guard keeps own mode from writing beside a kubelet: a heartbeat that hides a
// dead kubelet is the worst that this program could do. It refuses to start
// beside one that is alive, and stands down for good when one appears: if that
// one dies, the cluster must see it. Who takes the kubelet away for good starts
// nodeprobe again.
//
// The API server notes the binary's name of whoever wrote a field last. All that
// runs a kubelet has a name of its own (k3s, microk8s), so for the Lease, which
// nobody but a node agent renews, any name but ours will do; a Node's status has
// many writers, and only a kubelet's name counts.
type guard struct {
	began time.Time     // what was written before is history
	lease time.Duration // how long a renewal is good for
	log   *slog.Logger

	// Owned by who calls allow.
	looked bool
	known  time.Time // of a kubelet's write on the Node as first seen; zero if there was none

	tripped atomic.Pointer[error]
}

func newGuard(duration time.Duration, log *slog.Logger, reg prometheus.Registerer) *guard {
	g := &guard{began: time.Now(), lease: duration, log: log}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nodeprobe_stood_down",
		Help: "Whether own mode has stopped writing because a kubelet has appeared.",
	}, func() float64 {
		if g.err() != nil {
			return 1
		}
		return 0
	}))
	return g
}

// start returns an error if a kubelet is alive now. What cannot be read is no
// reason not to start: the Updater looks again before it writes.
func (g *guard) start(ctx context.Context, nodes status.Nodes, leases heartbeat.Leases, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	recent := func(at time.Time) (ago time.Duration, is bool) {
		age := time.Since(at)
		return max(age, 0).Round(time.Second), g.within(age, g.lease)
	}
	const advice = "; a node has one status writer: use mode observe beside a kubelet, or stop it and start nodeprobe %s later"
	if lease, err := leases.Get(ctx, name); err == nil {
		writer, at := heartbeat.Renewal(lease)
		if ago, is := recent(at); foreignRenewal(writer) && is {
			return fmt.Errorf("own node %s: %s renewed its lease %s ago"+advice, name, writer, ago, g.lease)
		}
	} else if !apierrors.IsNotFound(err) {
		g.log.Warn("cannot tell yet whether a kubelet is alive", "err", err)
		return nil
	}
	if node, err := nodes.Get(ctx, name); err == nil {
		writer, at := kubeletWrite(node)
		if ago, is := recent(at); writer != "" && is {
			return fmt.Errorf("own node %s: %s wrote its status %s ago"+advice, name, writer, ago, g.lease)
		}
	}
	return nil
}

// allow returns why the Node must not be written to, nil if it may. The Node is
// as last seen; nil if there is none.
func (g *guard) allow(node *v1.Node) error {
	if node != nil && g.err() == nil {
		writer, at := kubeletWrite(node)
		// What is later than what we have seen is new by any clock. The first time ours
		// has to do, and the API server's times are in whole seconds.
		news := at.After(g.known)
		if !g.looked {
			g.looked, g.known = true, at
			news = g.within(time.Since(at), time.Since(g.began)+time.Second)
		}
		if writer != "" && news {
			g.trip(fmt.Errorf("%s has written the status of node %s at %s", writer, node.Name, at.Format(time.TimeOnly)))
		}
	}
	return g.err()
}

// within says whether something was written less than limit ago, by its age. The clock
// may have been set back since, or not be set yet: a machine without a battery boots
// in the past. What is far in the future was written before that.
func (g *guard) within(age, limit time.Duration) bool { return age < limit && age > -g.lease }

// renewed is told what the Heartbeater has seen of others.
func (g *guard) renewed(s heartbeat.State) {
	if s.ForeignWriter && foreignRenewal(s.ForeignManager) && g.err() == nil {
		g.trip(fmt.Errorf("%s renews the node's lease", s.ForeignManager))
	}
}

func (g *guard) trip(why error) {
	err := fmt.Errorf("stood down until restart: %w", why)
	if g.tripped.CompareAndSwap(nil, &err) {
		g.log.Error("this node has another status writer: nothing more is written to the API server", "err", why)
	}
}

func (g *guard) err() error {
	if err := g.tripped.Load(); err != nil {
		return *err
	}
	return nil
}

// foreignRenewal says whether the writer of a renewal is known and not us.
func foreignRenewal(writer string) bool { return writer != "" && writer != status.Manager }

// kubeletWrite returns when a kubelet last wrote the Node's status, and its name;
// "" if none did.
func kubeletWrite(node *v1.Node) (writer string, at time.Time) {
	for _, entry := range node.ManagedFields {
		if entry.Subresource == "status" && strings.Contains(entry.Manager, "kubelet") &&
			entry.Time != nil && !entry.Time.Time.Before(at) {
			writer, at = entry.Manager, entry.Time.Time
		}
	}
	return writer, at
}
