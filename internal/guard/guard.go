// Package guard keeps an agent from writing beside a kubelet.
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
)

// ErrOccupied is wrapped by the error of [Guard.Start] if a kubelet, or another agent, is
// alive on the node. Trying again and again would take over when
// that one dies, and so hide its death from the cluster.
var ErrOccupied = errors.New("a node has one status writer")

// Guard keeps own mode from writing beside a kubelet: a heartbeat that hides a
// dead kubelet is the worst that this program could do. It refuses to start
// beside one that is alive, and stands down until a restart when one appears: if
// that one dies, the cluster must see it.
//
// As long as it cannot tell, nothing is written: Lease and Node must both have been
// read, or not exist. A credential that may not get the Lease never gets further,
// as the log and /readyz report; the Heartbeater could not use it either. A Node that
// may be patched but not read is read by an empty patch of its status, which changes
// nothing, no matter whose Node it is.
//
// The API server records the field manager of each field's last writer, by default the
// name of its binary. Programs that embed a kubelet have names of their own (k3s,
// microk8s), so on the Lease, which only node agents renew, any name but ours counts;
// a Node's status has many writers, and only a kubelet's name counts. Where the API
// server does not record who renewed the Lease, or the renewal is in the future by a
// clock that may not be set yet, the Lease is watched for as long as a renewal is
// good for: if it is not renewed meanwhile, that writer is gone.
type Guard struct {
	nodes    status.Nodes
	leases   heartbeat.Leases
	name     string        // of the node
	manager  string        // our field manager
	duration time.Duration // how long a renewal is good for, where the Lease does not say
	alive    func(within time.Duration)
	log      *slog.Logger

	unsure  atomic.Pointer[error] // why it is not known whether a kubelet is alive; nil once it is
	tripped atomic.Pointer[error]

	// Owned by look, and then by the caller of Allow.
	known time.Time // of a kubelet's last write to the Node when it was first read; zero if none

	// Owned by look.
	renewal time.Time // in the Lease, as last seen
	since   time.Time // when it was seen first
}

// guardTimeout is how long the first look may hold up the start.
const guardTimeout = 5 * time.Second

// lookSlack is how long a look may take besides its two calls.
const lookSlack = 10 * time.Second

var errNotLooked = errors.New("lease and node have not been read")

// Config is what New needs. All fields are required.
type Config struct {
	Nodes  status.Nodes
	Leases heartbeat.Leases
	// NodeName names the Node and its Lease.
	NodeName string
	// FieldManager is our own.
	FieldManager string
	// LeaseDuration is how long a renewal is good for, where the Lease does not have it.
	LeaseDuration time.Duration
	// Alive is called by Run with the time within which it will be called again; 0 stands
	// for however long.
	Alive      func(within time.Duration)
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// New returns a Guard that allows nothing until Start or Run has looked.
func New(cfg Config) *Guard {
	g := &Guard{
		nodes: cfg.Nodes, leases: cfg.Leases, name: cfg.NodeName, manager: cfg.FieldManager,
		duration: cfg.LeaseDuration, alive: cfg.Alive, log: cfg.Logger,
	}
	g.doubt(errNotLooked)
	cfg.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nodeprobe_stood_down",
		Help: "Whether own mode has stopped writing because a kubelet has appeared.",
	}, func() float64 {
		if g.StoodDown() != nil {
			return 1
		}
		return 0
	}))
	return g
}

// Start returns an error if a kubelet is alive now. What cannot be read is no
// reason not to start: Run goes on trying.
func (g *Guard) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, guardTimeout)
	defer cancel()
	if alive := g.look(ctx); alive != nil {
		return fmt.Errorf("own node %s: %w; %w: use mode augment or observe beside a kubelet, or stop it and start again %s later",
			g.name, alive, ErrOccupied, g.duration)
	}
	return nil
}

// Run tries until it can tell whether a kubelet is alive, and stands down if one is.
// OnFailure is called when it could not tell: the connection may be half dead.
func (g *Guard) Run(ctx context.Context, onFailure func()) error {
	defer g.alive(0)
	const least, most = 100 * time.Millisecond, 7 * time.Second
	for wait := least; g.unsure.Load() != nil; wait = min(2*wait, most) {
		seconds, _ := apierrors.SuggestsClientDelay(*g.unsure.Load())
		// As for a renewal: the Lease from before a restart would run out meanwhile.
		timer := time.NewTimer(max(wait, min(time.Duration(seconds)*time.Second, g.duration/4)))
		g.alive(0)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		g.alive(2*g.timeout() + lookSlack)
		if alive := g.look(ctx); alive != nil {
			g.trip(alive)
			return nil
		}
		if wait > least && g.unsure.Load() != nil {
			onFailure()
		}
	}
	return nil
}

// timeout bounds each of the two reads of look.
func (g *Guard) timeout() time.Duration { return min(10*time.Second, g.duration) }

// look reads Lease and Node, and returns which other writer is alive. If none is, it
// allows writes; if it cannot tell, it keeps the reason. Each read has as long as any
// other call: a slow API server is no reason to be silent.
func (g *Guard) look(ctx context.Context) (alive error) {
	timeout := g.timeout()
	leaseCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	lease, err := g.leases.Get(leaseCtx, g.name)
	switch {
	case err == nil:
		alive, unsure := g.renewed(lease, time.Now())
		if alive != nil || unsure != nil {
			g.doubt(unsure)
			return alive
		}
	case !apierrors.IsNotFound(err):
		g.doubt(fmt.Errorf("get lease %s: %w", g.name, err))
		return nil
	}
	nodeCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	node, _, err := status.ReadNode(nodeCtx, g.nodes, g.name)
	switch {
	case err == nil:
		writer, at := kubeletWrite(node)
		if age := time.Since(at); writer != "" && age < g.duration && age > -g.duration {
			return fmt.Errorf("%s wrote its status %s ago", writer, max(age, 0).Round(time.Second))
		}
		g.known = at
	case !apierrors.IsNotFound(err):
		g.doubt(fmt.Errorf("get node %s: %w", g.name, err))
		return nil
	}
	g.unsure.Store(nil)
	return nil
}

// renewed returns alive if another writer of the Lease is, or unsure with the reason why
// that is not known yet. The clock may have been set back since, or not be set yet: a
// machine without a battery boots in the past.
func (g *Guard) renewed(lease *coordinationv1.Lease, now time.Time) (alive, unsure error) {
	writer, at := heartbeat.Renewal(lease)
	if writer == g.manager || at.IsZero() {
		return nil, nil
	}
	again := !g.renewal.IsZero() && !at.Equal(g.renewal)
	if !at.Equal(g.renewal) {
		g.renewal, g.since = at, now
	}
	age, good := now.Sub(at), heartbeat.Duration(lease, g.duration)
	switch {
	case writer != "" && (again || age < good && age > -good):
		return fmt.Errorf("%s renewed its lease %s ago", writer, max(age, 0).Round(time.Second)), nil
	case age < good && now.Sub(g.since) < good:
		return nil, fmt.Errorf("%s renewed the lease at %s: waiting for %s to see if it does so again",
			cmp.Or(writer, "an unknown client"), at.Format(time.RFC3339), good)
	}
	return nil, nil
}

// Allow returns why the Node must not be written to, nil if it may. The Node is
// as last seen; nil if there is none.
func (g *Guard) Allow(node *v1.Node) error {
	if node != nil && g.Err() == nil {
		// What is later than what was seen first is new by any clock.
		if writer, at := kubeletWrite(node); writer != "" && at.After(g.known) {
			g.trip(fmt.Errorf("%s has written the status of node %s at %s", writer, node.Name, at.Format(time.TimeOnly)))
		}
	}
	return g.Err()
}

// Noticed stands down because of another writer that the Heartbeater has seen.
func (g *Guard) Noticed(s heartbeat.State) {
	if s.ForeignWriter && s.ForeignManager != "" && s.ForeignManager != g.manager && g.Err() == nil {
		g.trip(fmt.Errorf("%s renews the node's lease", s.ForeignManager))
	}
}

// doubt stores why it is not known whether a kubelet is alive.
func (g *Guard) doubt(why error) {
	if why != nil {
		err := fmt.Errorf("cannot tell yet whether a kubelet is alive, and writes nothing until then: %w", why)
		g.unsure.Store(&err)
	}
}

func (g *Guard) trip(why error) {
	err := fmt.Errorf("stood down until restart: %w", why)
	if g.tripped.CompareAndSwap(nil, &err) {
		g.log.Error("this node has another status writer: nothing more is written to the API server", "err", why)
	}
}

// Err returns why nothing must be written.
func (g *Guard) Err() error {
	if err := g.StoodDown(); err != nil {
		return err
	}
	if err := g.unsure.Load(); err != nil {
		return *err
	}
	return nil
}

// StoodDown returns why nothing will be written any more.
func (g *Guard) StoodDown() error {
	if err := g.tripped.Load(); err != nil {
		return *err
	}
	return nil
}

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
