package node

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// What is posted last has little time, and must not spend it on a name server.
func TestNoLookupInAHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := testAddresses()
		addresses.Hostname, addresses.NodeIPs = "edge-1", nil
		addresses.Lookup = func(context.Context, string) ([]net.IP, error) {
			time.Sleep(lookupTimeout) // whatever its ctx
			return []net.IP{net.ParseIP("10.0.0.1")}, nil
		}
		c := New(Config{Addresses: addresses, Resources: testResources()})
		c.Observe(machineFacts(apitest.Epoch))
		first, _, err := c.Initial(t.Context(), time.Now())
		if err != nil || len(first.Status.Addresses) == 0 {
			t.Fatalf("%v, %v", first.Status.Addresses, err)
		}
		time.Sleep(time.Hour)
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		start := time.Now()
		last, _, err := c.Initial(ctx, start)
		if took := time.Since(start); took > 0 || err != nil {
			t.Errorf("it takes %v: %v", took, err)
		}
		apitest.Diff(t, "addresses", first.Status.Addresses, last.Status.Addresses)
	})
}

// Passes look for the node's address once a minute, and while there is none,
// every ten seconds.
func TestAddressIsChosenRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		cfg := New(Config{Addresses: Addresses{
			NodeName: apitest.NodeName, Hostname: apitest.NodeName,
			Lookup: func(context.Context, string) ([]net.IP, error) { return nil, nil },
			DefaultRoute: func(net.IP) (net.IP, error) {
				if asked++; asked == 2 {
					return nil, errors.New("no default route")
				}
				return net.IPv4(192, 0, 2, byte(asked)), nil
			},
		}}).cfg
		for _, step := range []struct {
			wait  time.Duration
			asked int
			ip    string // "" is an error
		}{
			{0, 1, "192.0.2.1"},
			{time.Minute - 1, 1, "192.0.2.1"},
			{1, 2, ""},
			{10*time.Second - 1, 2, ""},
			{1, 3, "192.0.2.3"},
		} {
			time.Sleep(step.wait)
			var node v1.Node
			err := nodeAddress(cfg.Addresses)(t.Context(), &node)
			apitest.Diff(t, "asked", step.asked, asked)
			if (err != nil) != (step.ip == "") {
				t.Errorf("error %v, want address %q", err, step.ip)
			} else if err == nil {
				apitest.Diff(t, "address", step.ip, node.Status.Addresses[0].Address)
			}
		}
	})
}

// A resolver that hangs, as one does that reads /etc/hosts on a disk that hangs, is
// asked once, and the Node keeps the address that it has.
func TestLookupThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		gate := make(chan struct{})
		own := net.IPv4(192, 0, 2, 1)
		cfg := Addresses{
			NodeName: apitest.NodeName, Hostname: apitest.NodeName,
			Lookup: bounded(func(context.Context, string) ([]net.IP, error) {
				calls.Add(1)
				<-gate // whatever the context says
				return []net.IP{own}, nil
			}),
			DefaultRoute: func(net.IP) (net.IP, error) { return net.IPv4(192, 0, 2, 2), nil },
			Interfaces: func() ([]net.Addr, error) {
				return []net.Addr{&net.IPAddr{IP: own}, &net.IPAddr{IP: net.IPv4(192, 0, 2, 2)}}, nil
			},
		}
		start := time.Now()
		for range 5 {
			node := v1.Node{Status: v1.NodeStatus{Addresses: apitest.Addresses("192.0.2.1", apitest.NodeName)}}
			if err := nodeAddress(cfg)(t.Context(), &node); err != nil {
				t.Error(err)
			}
			apitest.Diff(t, "addresses", apitest.Addresses("192.0.2.1", apitest.NodeName), node.Status.Addresses)
		}
		if took := time.Since(start); took != lookupTimeout || calls.Load() != 1 {
			t.Errorf("%d calls took %s, want 1 and %s", calls.Load(), took, lookupTimeout)
		}
		close(gate)
		synctest.Wait()
		var node v1.Node
		if err := nodeAddress(cfg)(t.Context(), &node); err != nil || calls.Load() != 2 {
			t.Errorf("when it is back: %v after %d calls", err, calls.Load())
		}
	})
}
