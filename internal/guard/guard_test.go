package guard

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
)

// renewedBy is a Lease that a manager renewed so long ago.
func renewedBy(manager string, age time.Duration) *coordinationv1.Lease {
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now().Add(-age)}}}
	l.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`)}}
	return l
}

// writtenBy is a Node whose status a manager wrote so long ago.
func writtenBy(manager, subresource string, age time.Duration) *v1.Node {
	at := metav1.NewTime(time.Now().Add(-age))
	n := &v1.Node{}
	n.Name = "n"
	n.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", Subresource: "status", Time: &at},
		{Manager: manager, Subresource: subresource, Time: &at},
	}
	return n
}

// stored is an API server that has a Node and a Lease, or errors. Each may be changed
// between two looks.
type stored struct {
	node              *v1.Node
	lease             *coordinationv1.Lease
	nodeErr, leaseErr error
	latency           time.Duration // of each call
	writes            int
	due               time.Time // of the next beat of the guard; zero while none is

	mu sync.Mutex
}

func (s *stored) edit(f func(*stored)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// alive is a beat of the guard.
func (s *stored) alive(within time.Duration) {
	s.edit(func(s *stored) {
		s.due = time.Time{}
		if within > 0 {
			s.due = time.Now().Add(within)
		}
	})
}

// late is how long the guard's beat is overdue; 0 if it is not.
func (s *stored) late() (late time.Duration) {
	s.edit(func(s *stored) {
		if !s.due.IsZero() {
			late = max(0, time.Since(s.due))
		}
	})
	return late
}

func (s *stored) guard(log *slog.Logger, reg prometheus.Registerer) *Guard {
	return New(Config{
		Nodes: storedNode{s: s}, Leases: storedLease{s: s}, NodeName: "n", FieldManager: status.DefaultFieldManager,
		LeaseDuration: 40 * time.Second, Alive: s.alive, Logger: log, Registerer: reg,
	})
}

func (s *stored) silentGuard() *Guard {
	return s.guard(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// allowing is a guard that has looked, and found the Node as it is.
func allowing(t *testing.T, node *v1.Node) *Guard {
	t.Helper()
	g := (&stored{node: node}).silentGuard()
	if err := g.Start(t.Context()); err != nil || g.Err() != nil {
		t.Fatal(err, g.Err())
	}
	return g
}

type storedNode struct {
	status.Nodes // no other call than these
	s            *stored
}

// answers returns once the API server has an answer, or the error of ctx if that ends before.
func (s *stored) answers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.latency):
		return nil
	}
}

func (n storedNode) Get(ctx context.Context, _ string) (*v1.Node, error) {
	if err := n.s.answers(ctx); err != nil {
		return nil, err
	}
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if n.s.nodeErr != nil {
		return nil, n.s.nodeErr
	}
	return n.found()
}

func (n storedNode) found() (*v1.Node, error) {
	if n.s.node == nil {
		return nil, apierrors.NewNotFound(v1.Resource("nodes"), "n")
	}
	return n.s.node, nil
}

func (n storedNode) PatchStatus(_ context.Context, _ string, patch []byte) (*v1.Node, error) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if string(patch) != "{}" { // which changes nothing
		n.s.writes++
	}
	return n.found()
}

type storedLease struct {
	heartbeat.Leases
	s *stored
}

func (l storedLease) Get(ctx context.Context, _ string) (*coordinationv1.Lease, error) {
	if err := l.s.answers(ctx); err != nil {
		return nil, err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	switch {
	case l.s.leaseErr != nil:
		return nil, l.s.leaseErr
	case l.s.lease == nil:
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "n")
	}
	return l.s.lease, nil
}

// goodFor has a Lease say for how long a renewal is good.
func goodFor(lease *coordinationv1.Lease, seconds int32) *coordinationv1.Lease {
	lease.Spec.LeaseDurationSeconds = &seconds
	return lease
}

func TestGuardAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // ages are told in seconds, and must not grow meanwhile
		down, forbidden := errors.New("connection refused"), apierrors.NewForbidden(v1.Resource("nodes"), "n", errors.New("no"))
		for name, test := range map[string]struct {
			api    *stored
			want   string // "" starts
			unsure string // and writes nothing yet
		}{
			"new node":                                   {&stored{}, "", ""},
			"kubelet is alive":                           {&stored{lease: renewedBy("kubelet", 12*time.Second)}, "own node n: kubelet renewed its lease 12s ago; a node has one status writer", "lease and node have not been read"},
			"k3s is alive":                               {&stored{lease: renewedBy("k3s", time.Second)}, "k3s renewed its lease 1s ago", "lease and node have not been read"},
			"its renewals last longer":                   {&stored{lease: goodFor(renewedBy("kubelet", 50*time.Second), 60)}, "kubelet renewed its lease 50s ago", "lease and node have not been read"},
			"its renewals are shorter":                   {&stored{lease: goodFor(renewedBy("kubelet", 30*time.Second), 20)}, "", ""},
			"kubelet is gone":                            {&stored{lease: renewedBy("kubelet", 41*time.Second), node: writtenBy("kubelet", "status", time.Minute)}, "", ""},
			"kubelet's first post":                       {&stored{node: writtenBy("kubelet", "status", time.Second)}, "kubelet wrote its status 1s ago", "lease and node have not been read"},
			"kubelet's label":                            {&stored{node: writtenBy("kubelet", "", time.Second)}, "", ""},
			"someone else's condition":                   {&stored{node: writtenBy("node-problem-detector", "status", time.Second)}, "", ""},
			"we have been restarted":                     {&stored{lease: renewedBy("nodeprobe", time.Second), node: writtenBy("nodeprobe", "status", time.Second)}, "", ""},
			"it is not told who":                         {&stored{lease: renewedBy("", time.Second)}, "", "an unknown client renewed the lease at 1999-12-31T23:59:59Z: waiting for 40s to see if it does so again"},
			"nor was it lately":                          {&stored{lease: renewedBy("", time.Minute)}, "", ""},
			"lease was never renewed":                    {&stored{lease: &coordinationv1.Lease{}}, "", ""},
			"its clock is ahead":                         {&stored{node: writtenBy("kubelet", "status", -2*time.Second)}, "kubelet wrote its status 0s ago", "lease and node have not been read"},
			"ours was set back":                          {&stored{lease: renewedBy("kubelet", -24*time.Hour)}, "", "kubelet renewed the lease at 2000-01-02T00:00:00Z: waiting for 40s"},
			"ours was set back, node":                    {&stored{node: writtenBy("kubelet", "status", -24*time.Hour)}, "", ""},
			"lease cannot be read":                       {&stored{leaseErr: down, node: writtenBy("kubelet", "status", 0)}, "", "get lease n: connection refused"},
			"lease may not be read":                      {&stored{leaseErr: forbidden}, "", "get lease n: nodes \"n\" is forbidden: no"},
			"node cannot be read":                        {&stored{nodeErr: down}, "", "get node n: connection refused"},
			"node may only be patched":                   {&stored{nodeErr: forbidden, node: writtenBy("kubelet", "status", time.Second)}, "kubelet wrote its status 1s ago", "lease and node have not been read"},
			"node may only be patched, and is not there": {&stored{nodeErr: forbidden}, "", ""},
		} {
			g := test.api.silentGuard()
			err := g.Start(t.Context())
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want %q", name, err, test.want)
			}
			unsure := g.Allow(nil)
			if (unsure == nil) != (test.unsure == "") || unsure != nil && !strings.Contains(unsure.Error(), test.unsure) {
				t.Errorf("%s: got %v, want %q", name, unsure, test.unsure)
			}
			if unsure != nil && !strings.Contains(unsure.Error(), "cannot tell yet whether a kubelet is alive") || g.StoodDown() != nil || test.api.writes > 0 {
				t.Errorf("%s: %v, %v, %d writes", name, unsure, g.StoodDown(), test.api.writes)
			}
		}
	})
}

// What is not known at the start is looked up again until it is.
func TestGuardRun(t *testing.T) {
	for name, test := range map[string]struct {
		api    func() *stored
		after  time.Duration
		change func(*stored)
		opens  time.Duration // at the latest; 0 is never
		want   string        // why it has stood down
	}{
		"the API server comes, and nobody is alive": {
			func() *stored { return &stored{leaseErr: errors.New("down")} }, time.Minute, func(s *stored) { s.leaseErr = nil }, time.Minute + 7*time.Second, "",
		},
		"the API server comes, and a kubelet is alive": {
			func() *stored { return &stored{leaseErr: errors.New("down")} }, time.Minute, func(s *stored) { s.leaseErr, s.lease = nil, renewedBy("kubelet", 2*time.Second) }, 0,
			"stood down until restart: kubelet renewed its lease ",
		},
		"it never comes":  {func() *stored { return &stored{nodeErr: errors.New("down")} }, 0, func(*stored) {}, 0, ""},
		"it wants a rest": {func() *stored { return &stored{leaseErr: apierrors.NewTooManyRequests("slow down", 5)} }, time.Second, func(s *stored) { s.leaseErr = nil }, 5 * time.Second, ""},
		"it wants a rest for as long as our own lease lasts": {
			func() *stored { return &stored{leaseErr: apierrors.NewTooManyRequests("slow down", 60)} }, time.Second, func(s *stored) { s.leaseErr = nil }, 10 * time.Second, "",
		},
		"it takes 4 s for each answer": {func() *stored { return &stored{latency: 4 * time.Second} }, 0, func(*stored) {}, 9 * time.Second, ""},
		"nobody knows who, and they are gone": {
			func() *stored { return &stored{lease: renewedBy("", time.Second)} }, 0, func(*stored) {}, 47 * time.Second, "",
		},
		"nobody knows who, and they live for a while": {
			func() *stored { return &stored{lease: renewedBy("", time.Second)} }, 20 * time.Second, func(s *stored) { s.lease = renewedBy("", time.Second) }, 67 * time.Second, "",
		},
		"a renewal in the future, and no other": {
			func() *stored { return &stored{lease: renewedBy("kubelet", -time.Hour)} }, 0, func(*stored) {}, 47 * time.Second, "",
		},
		"renewals in the future": {
			func() *stored { return &stored{lease: renewedBy("kubelet", -time.Hour)} }, 5 * time.Second, func(s *stored) { s.lease = renewedBy("kubelet", -time.Hour) }, 0,
			"stood down until restart: kubelet renewed its lease ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := test.api() // by the bubble's clock
				g := api.silentGuard()
				if err := g.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				began := time.Now()
				ended := make(chan error, 1)
				var failures atomic.Int32
				go func() { ended <- g.Run(ctx, func() { failures.Add(1) }) }()
				if g.Err() == nil {
					t.Fatal("it writes before it can tell")
				}
				time.Sleep(test.after)
				api.edit(test.change)
				for g.Err() != nil && g.StoodDown() == nil && time.Since(began) < 10*time.Minute {
					time.Sleep(100 * time.Millisecond)
					if late := api.late(); late > 0 {
						t.Fatalf("after %v: it is %v late", time.Since(began), late)
					}
				}
				synctest.Wait()
				switch took := time.Since(began); {
				case test.opens == 0 && (g.Err() == nil || test.want == "" && g.StoodDown() != nil):
					t.Errorf("after %v: %v", took, g.Err())
				case test.opens > 0 && (g.Err() != nil || took > test.opens+100*time.Millisecond):
					t.Errorf("after %v: %v; want it to write after %v", took, g.Err(), test.opens)
				}
				if err := g.StoodDown(); test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)) {
					t.Errorf("stood down: %v, want %q", err, test.want)
				}
				if took := time.Since(began); int(failures.Load()) > 8+int(took/(7*time.Second)) {
					t.Errorf("%d looks in %v", failures.Load(), took)
				}
				stop()
				<-ended
			})
		})
	}
}

func TestGuardStandsDown(t *testing.T) {
	for name, test := range map[string]struct {
		act  func(*Guard)
		want string // "" goes on
	}{
		"nothing":             {func(g *Guard) { _ = g.Allow(nil) }, ""},
		"our own status":      {func(g *Guard) { _ = g.Allow(writtenBy("nodeprobe", "status", 0)) }, ""},
		"a kubelet writes":    {func(g *Guard) { _ = g.Allow(writtenBy("kubelet", "status", 0)) }, "stood down until restart: kubelet has written the status of node n"},
		"a kubelet renews":    {func(g *Guard) { g.Noticed(heartbeat.State{ForeignWriter: true, ForeignManager: "kubelet"}) }, "stood down until restart: kubelet renews the node's lease"},
		"nobody known renews": {func(g *Guard) { g.Noticed(heartbeat.State{ForeignWriter: true}) }, ""},
		"another one of us":   {func(g *Guard) { g.Noticed(heartbeat.State{ForeignWriter: true, ForeignManager: "nodeprobe"}) }, ""},
		"they fell silent":    {func(g *Guard) { g.Noticed(heartbeat.State{ForeignManager: "kubelet"}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			reg := prometheus.NewPedanticRegistry()
			g := (&stored{}).guard(slog.New(slog.NewTextHandler(&log, nil)), reg)
			if err := g.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			test.act(g)
			// There is no way back, and it is said once.
			for range 3 {
				err := g.Allow(writtenBy("nodeprobe", "status", 0))
				if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
			}
			stood, lines := 0, strings.Count(log.String(), "\n")
			if test.want != "" {
				stood = 1
			}
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			if got := families[0].GetMetric()[0].GetGauge().GetValue(); got != float64(stood) || lines != stood {
				t.Errorf("metric %v, %d lines; want %d of each", got, lines, stood)
			}
		})
	}
}

// What a kubelet has written before the first look is history, by whatever clock: a
// machine without a battery boots in the past, and ours may be ahead of the API
// server's. What it writes anew is not.
func TestGuardClock(t *testing.T) {
	for _, ahead := range []time.Duration{-24 * time.Hour, 3 * time.Hour} {
		history, now := writtenBy("kubelet", "status", ahead), writtenBy("kubelet", "status", ahead-time.Hour)
		g := allowing(t, history)
		for i, step := range []struct {
			node *v1.Node
			want bool
		}{{nil, true}, {history, true}, {writtenBy("nodeprobe", "status", ahead), true}, {now, false}, {history, false}} {
			if err := g.Allow(step.node); (err == nil) != step.want {
				t.Errorf("clock ahead by %s: %d: %v", ahead, i, err)
			}
		}
		g = allowing(t, writtenBy("nodeprobe", "status", ahead))
		if err := g.Allow(now); err == nil {
			t.Errorf("clock ahead by %s: a kubelet's first write is not noticed", ahead)
		}
	}
}
