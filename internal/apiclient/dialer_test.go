package apiclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// network is what a dialer sees of the world.
type network struct {
	addrs     []string // of every name
	err       error    // of the resolver
	resolving time.Duration
	answers   map[string]time.Duration // how long an address takes to accept; else it refuses

	mu     sync.Mutex // guards the rest
	dialed []string
	closed int
}

var errRefused = errors.New("connection refused")

func (n *network) dialer() *dialer {
	d := newDialer()
	d.lookup = func(context.Context, string) (addrs []net.IPAddr, err error) {
		for _, text := range n.addrs {
			a := netip.MustParseAddr(text)
			addrs = append(addrs, net.IPAddr{IP: a.AsSlice(), Zone: a.Zone()})
		}
		err = n.err
		time.Sleep(n.resolving)
		return addrs, err
	}
	d.dial = func(ctx context.Context, _, address string) (net.Conn, error) {
		n.mu.Lock()
		n.dialed = append(n.dialed, address)
		n.mu.Unlock()
		takes, ok := n.answers[address]
		if !ok {
			return nil, errRefused
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(takes):
			return &fakeConn{network: n, address: address}, nil
		}
	}
	return d
}

type fakeConn struct {
	net.Conn
	network *network
	address string
}

func (c *fakeConn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.network.closed++
	return nil
}

var errNoSuchHost = &net.DNSError{Err: "no such host", Name: "api.example", IsNotFound: true}

// A name is asked for at each connection, and its last good addresses serve while the
// resolver hangs or fails.
func TestDialerResolves(t *testing.T) {
	const hour = time.Hour
	type step struct {
		after     time.Duration
		addrs     []string
		err       error
		resolving time.Duration
		want      string // the address, or part of the error
		waits     time.Duration
	}
	old, fresh := []string{"192.0.2.1"}, []string{"::ffff:192.0.2.2"}
	for name, steps := range map[string][]step{
		"a working resolver": {
			{addrs: old, want: "192.0.2.1:6443"},
			{after: hour, addrs: fresh, want: "192.0.2.2:6443"},
		},
		"one that hangs": {
			{addrs: old, want: "192.0.2.1:6443"},
			{after: hour, addrs: fresh, resolving: 2 * hour, want: "192.0.2.1:6443", waits: time.Second},
			{after: hour, addrs: fresh, want: "192.0.2.1:6443"}, // and nothing waits for it again
			{after: 2 * hour, addrs: fresh, want: "192.0.2.2:6443"},
		},
		"one that is slow each time": {
			{addrs: old, resolving: 3 * time.Second, want: "192.0.2.1:6443", waits: 3 * time.Second},
			{after: hour, addrs: fresh, resolving: 3 * time.Second, want: "192.0.2.1:6443", waits: time.Second},
			{after: hour, addrs: fresh, resolving: 3 * time.Second, want: "192.0.2.2:6443", waits: time.Second},
		},
		"one that fails": {
			{addrs: old, want: "192.0.2.1:6443"},
			{after: 100 * hour, err: errRefused, want: "192.0.2.1:6443"},
		},
		"no such host any more": {
			{addrs: old, want: "192.0.2.1:6443"},
			{after: 100 * hour, err: errNoSuchHost, want: "192.0.2.1:6443"}, // while a connection lasts, nobody asks
			{after: deniedServe, err: errNoSuchHost, want: "192.0.2.1:6443"},
			{after: 1, err: errNoSuchHost, want: "dial tcp: lookup api.example: no such host"},
			{after: deniedServe, err: errNoSuchHost, want: "dial tcp: lookup api.example: no such host"},
			{after: hour, addrs: fresh, want: "192.0.2.2:6443"},
			{after: hour, err: errNoSuchHost, want: "192.0.2.2:6443"},
		},
		"no such host for a while, now and then": {
			{addrs: old, want: "192.0.2.1:6443"},
			{after: hour, err: errNoSuchHost, want: "192.0.2.1:6443"}, // by which a connection is made
			{after: hour, err: errNoSuchHost, want: "192.0.2.1:6443"},
			{after: deniedServe, err: errRefused, want: "192.0.2.1:6443"},
			{after: 1, err: errNoSuchHost, want: "192.0.2.1:6443"},
		},
		"one that is slow to say that there is no such host": {
			{addrs: old, want: "192.0.2.1:6443"},
			{after: hour, err: errNoSuchHost, resolving: 3 * time.Second, want: "192.0.2.1:6443", waits: time.Second}, // nothing is said yet
			{after: 3 * time.Second, err: errNoSuchHost, resolving: 3 * time.Second, want: "192.0.2.1:6443", waits: time.Second},
			{after: deniedServe - time.Second, err: errNoSuchHost, resolving: 3 * time.Second, want: "192.0.2.1:6443", waits: time.Second},
			{after: 3 * time.Second, err: errNoSuchHost, resolving: 3 * time.Second, want: "dial tcp: lookup api.example: no such host", waits: time.Second},
			{after: time.Second, want: "dial tcp: resolve api.example: no answer within 1s, asked at"}, // its last word counts
			{after: 3 * time.Second, err: errRefused, want: "dial tcp: connection refused"},
			{after: deniedServe, addrs: fresh, want: "192.0.2.2:6443"},
		},
		"no answer from the start": {
			{addrs: old, resolving: hour, want: "dial tcp: resolve api.example: no answer within 30s, asked at", waits: 30 * time.Second},
			{after: hour, addrs: old, want: "192.0.2.1:6443"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{answers: map[string]time.Duration{"192.0.2.1:6443": 0, "192.0.2.2:6443": 0}}
				d := n.dialer()
				for i, step := range steps {
					time.Sleep(step.after)
					synctest.Wait()
					n.addrs, n.err, n.resolving = step.addrs, step.err, step.resolving
					began := time.Now()
					conn, err := d.DialContext(t.Context(), "tcp", "api.example:6443")
					got := fmt.Sprint(err)
					if err == nil {
						got = conn.(*fakeConn).address
					}
					if !strings.Contains(got, step.want) || time.Since(began) != step.waits {
						t.Errorf("step %d: %s after %s, want %s after %s", i, got, time.Since(began), step.want, step.waits)
					}
				}
				time.Sleep(10 * hour) // what hangs ends
			})
		})
	}
}

// Addresses are tried one after the other, and one that does not answer does not keep the
// next from being tried. No connection is left over.
func TestDialerTriesEachAddress(t *testing.T) {
	a, b := "[2001:db8::1]:6443", "192.0.2.1:6443"
	for name, test := range map[string]struct {
		answers map[string]time.Duration
		want    string
		waits   time.Duration
		dialed  []string
		closed  int
	}{
		"the first":         {map[string]time.Duration{a: 0, b: 0}, a, 0, []string{a}, 0},
		"one refuses":       {map[string]time.Duration{b: time.Second}, b, time.Second, []string{a, b}, 0},
		"one hangs":         {map[string]time.Duration{a: time.Hour, b: time.Second}, b, nextAddress + time.Second, []string{a, b}, 0},
		"one is slow":       {map[string]time.Duration{a: time.Second, b: time.Hour}, a, time.Second, []string{a, b}, 0},
		"all refuse":        {nil, "connection refused", 0, []string{a, b}, 0},
		"all hang":          {map[string]time.Duration{a: time.Hour, b: time.Hour}, context.DeadlineExceeded.Error(), dialTimeout, []string{a, b}, 0},
		"both, at one time": {map[string]time.Duration{a: nextAddress + 1, b: 1}, "6443", nextAddress + 1, []string{a, b}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{addrs: []string{"2001:db8::1", "192.0.2.1"}, answers: test.answers}
				began := time.Now()
				conn, err := n.dialer().DialContext(t.Context(), "tcp", "api.example:6443")
				got := fmt.Sprint(err)
				if err == nil {
					got = conn.(*fakeConn).address
				}
				took := time.Since(began)
				synctest.Wait() // the others are cancelled
				if !strings.Contains(got, test.want) || took != test.waits || !slices.Equal(n.dialed, test.dialed) {
					t.Errorf("%s after %s, tried %v; want %s after %s, %v", got, took, n.dialed, test.want, test.waits, test.dialed)
				}
				if n.closed > test.closed {
					t.Errorf("%d connections closed, want at most %d", n.closed, test.closed)
				}
			})
		})
	}
}

// An address that needs a zone keeps it: a name in /etc/hosts may have one.
func TestDialerKeepsZone(t *testing.T) {
	const address = "fe80::1%eth0"
	addrs, err := newDialer().resolve(address) // which asks nobody, as it is one
	if err != nil || len(addrs) != 1 || addrs[0].String() != address {
		t.Errorf("%v, %v", addrs, err)
	}
	n := &network{addrs: []string{address}, answers: map[string]time.Duration{"[" + address + "]:6443": 0}}
	if _, err := n.dialer().DialContext(t.Context(), "tcp", "api.example:6443"); err != nil {
		t.Errorf("tried %v: %v", n.dialed, err)
	}
}

// What is an address already is not resolved.
func TestDialerOfAddress(t *testing.T) {
	n := &network{answers: map[string]time.Duration{"192.0.2.1:6443": 0, "[fe80::1%eth0]:6443": 0}}
	d := n.dialer()
	d.lookup = func(_ context.Context, host string) ([]net.IPAddr, error) {
		t.Errorf("%s is resolved", host)
		return nil, errRefused
	}
	for address := range n.answers {
		if _, err := d.DialContext(t.Context(), "tcp", address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := d.DialContext(t.Context(), "tcp", "no port"); err == nil || !strings.Contains(err.Error(), "missing port") {
		t.Errorf("got %v", err)
	}
}
