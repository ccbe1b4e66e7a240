package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
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

// stored is an API server that has a Node and a Lease, or an error.
type stored struct {
	status.Nodes
	heartbeat.Leases
	node  *v1.Node
	lease *coordinationv1.Lease
	err   error
}

func (s stored) nodes() status.Nodes      { return storedNode{s: s} }
func (s stored) leases() heartbeat.Leases { return storedLease{s: s} }

type storedNode struct {
	status.Nodes
	s stored
}

func (n storedNode) Get(context.Context, string) (*v1.Node, error) {
	if n.s.node == nil {
		return nil, errors.Join(n.s.err, apierrors.NewNotFound(v1.Resource("nodes"), "n"))
	}
	return n.s.node, nil
}

type storedLease struct {
	heartbeat.Leases
	s stored
}

func (l storedLease) Get(context.Context, string) (*coordinationv1.Lease, error) {
	switch {
	case l.s.err != nil:
		return nil, l.s.err
	case l.s.lease == nil:
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "n")
	}
	return l.s.lease, nil
}

func TestGuardAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // ages are told in seconds, and must not grow meanwhile
		for name, test := range map[string]struct {
			api  stored
			want string // "" starts
		}{
			"new node":                  {stored{}, ""},
			"kubelet is alive":          {stored{lease: renewedBy("kubelet", 12*time.Second)}, "own node n: kubelet renewed its lease 12s ago; a node has one status writer"},
			"k3s is alive":              {stored{lease: renewedBy("k3s", time.Second)}, "k3s renewed its lease 1s ago"},
			"kubelet is gone":           {stored{lease: renewedBy("kubelet", 41*time.Second), node: writtenBy("kubelet", "status", time.Minute)}, ""},
			"kubelet's first post":      {stored{node: writtenBy("kubelet", "status", time.Second)}, "kubelet wrote its status 1s ago"},
			"kubelet's label":           {stored{node: writtenBy("kubelet", "", time.Second)}, ""},
			"someone else's condition":  {stored{node: writtenBy("node-problem-detector", "status", time.Second)}, ""},
			"we have been restarted":    {stored{lease: renewedBy("nodeprobe", time.Second), node: writtenBy("nodeprobe", "status", time.Second)}, ""},
			"it is not told who":        {stored{lease: renewedBy("", time.Second)}, ""},
			"lease was never renewed":   {stored{lease: &coordinationv1.Lease{}}, ""},
			"its clock is ahead":        {stored{node: writtenBy("kubelet", "status", -2*time.Second)}, "kubelet wrote its status 0s ago"},
			"ours was set back":         {stored{lease: renewedBy("kubelet", -24*time.Hour), node: writtenBy("kubelet", "status", -24*time.Hour)}, ""},
			"API server cannot be read": {stored{err: errors.New("connection refused")}, ""},
		} {
			g := newGuard(40*time.Second, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			err := g.start(t.Context(), test.api.nodes(), test.api.leases(), "n")
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want %q", name, err, test.want)
			}
		}
	})
}

func TestGuardStandsDown(t *testing.T) {
	for name, test := range map[string]struct {
		act  func(*guard)
		want string // "" goes on
	}{
		"nothing":                {func(g *guard) { _ = g.allow(nil) }, ""},
		"our own status":         {func(g *guard) { _ = g.allow(writtenBy("nodeprobe", "status", 0)) }, ""},
		"a kubelet of yesterday": {func(g *guard) { _ = g.allow(writtenBy("kubelet", "status", 24*time.Hour)) }, ""},
		"a kubelet writes":       {func(g *guard) { _ = g.allow(writtenBy("kubelet", "status", 0)) }, "stood down until restart: kubelet has written the status of node n"},
		"a kubelet renews":       {func(g *guard) { g.renewed(heartbeat.State{ForeignWriter: true, ForeignManager: "kubelet"}) }, "stood down until restart: kubelet renews the node's lease"},
		"nobody known renews":    {func(g *guard) { g.renewed(heartbeat.State{ForeignWriter: true}) }, ""},
		"another one of us":      {func(g *guard) { g.renewed(heartbeat.State{ForeignWriter: true, ForeignManager: "nodeprobe"}) }, ""},
		"they fell silent":       {func(g *guard) { g.renewed(heartbeat.State{ForeignManager: "kubelet"}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			reg := prometheus.NewPedanticRegistry()
			g := newGuard(40*time.Second, slog.New(slog.NewTextHandler(&log, nil)), reg)
			test.act(g)
			// There is no way back, and it is said once.
			for range 3 {
				err := g.allow(writtenBy("nodeprobe", "status", 0))
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

// A machine without a battery boots in the past. What a kubelet wrote earlier is
// history all the same; what it writes anew is not.
func TestGuardClockBehind(t *testing.T) {
	g := newGuard(40*time.Second, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	for i, step := range []struct {
		node *v1.Node
		want bool
	}{{writtenBy("kubelet", "status", -24*time.Hour), true}, {writtenBy("kubelet", "status", -25*time.Hour), false}} {
		if err := g.allow(step.node); (err == nil) != step.want {
			t.Errorf("%d: %v", i, err)
		}
	}
	// The clock may be set right between start and the first look: what counts is how
	// long we have been running.
	for age, want := range map[time.Duration]bool{
		-time.Hour: false, -time.Second: true, 0: true, 5500 * time.Millisecond: true, 7 * time.Second: false, time.Hour: false,
	} {
		if got := g.within(age, 6*time.Second); got != want {
			t.Errorf("%s: got %t", age, got)
		}
	}
}

// A kubelet's write is noticed although our clock is an hour ahead of the API
// server's, by which it is older than we are.
func TestGuardClockAhead(t *testing.T) {
	g := newGuard(40*time.Second, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	history, now := writtenBy("kubelet", "status", 3*time.Hour), writtenBy("kubelet", "status", time.Hour)
	for i, step := range []struct {
		node *v1.Node
		want bool
	}{{nil, true}, {history, true}, {history, true}, {now, false}, {history, false}} {
		if err := g.allow(step.node); (err == nil) != step.want {
			t.Errorf("%d: %v", i, err)
		}
	}
	g = newGuard(40*time.Second, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := g.allow(writtenBy("nodeprobe", "status", 3*time.Hour)); err != nil {
		t.Error(err)
	}
	if err := g.allow(now); err == nil {
		t.Error("a kubelet's first write is not noticed")
	}
}
