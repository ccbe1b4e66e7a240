package apiclient

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// dialer connects to hosts by name, also while names cannot be resolved: the resolver
// reads /etc/hosts and /etc/resolv.conf, which may be on a disk that hangs, and asks a
// server. The last good addresses serve then.
type dialer struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error) // to an address
	lookup func(ctx context.Context, host string) ([]net.IPAddr, error)

	mu    sync.Mutex // guards hosts, and when each was denied
	hosts map[string]*host
}

// host is what the resolver has said of a name.
type host struct {
	addrs *deadline.Latest[[]net.IPAddr]
	// first and last are when it began to say that there is no such host, and when it said
	// so last; zero when it says otherwise.
	first, last time.Time
}

const (
	// dialTimeout and keepAlive are client-go's.
	dialTimeout, keepAlive = 30 * time.Second, 30 * time.Second
	// addressesServe is how long addresses are used without asking for newer ones.
	addressesServe = time.Second
	// deniedServe is how long the last good addresses serve where the resolver works and
	// says that there is no such host, from when it begins to say so: it is not asked while
	// a connection lasts. It says so as well if the name is in /etc/hosts, and that cannot
	// be read.
	deniedServe = 10 * time.Minute
	// nextAddress is how long one address is tried before the next is tried as well, as by
	// package net.
	nextAddress = 300 * time.Millisecond
)

// resolveWait is how long the resolver is waited for.
var resolveWait = deadline.Wait{First: dialTimeout, Later: time.Second}

func newDialer() *dialer {
	return &dialer{
		dial:   (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext,
		lookup: net.DefaultResolver.LookupIPAddr, // LookupNetIP drops zones
		hosts:  map[string]*host{},
	}
}

// DialContext connects to an address whose host is a name or an address.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return d.dial(ctx, network, address)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := d.resolve(name)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return d.dialFirst(ctx, network, addrs, port)
}

// resolve returns the addresses of a host, or the last good ones.
func (d *dialer) resolve(name string) ([]net.IPAddr, error) {
	d.mu.Lock()
	h := d.hosts[name]
	if h == nil {
		h = &host{addrs: deadline.NewLatest("resolve "+name, addressesServe, resolveWait, func() ([]net.IPAddr, error) {
			// Not with the caller's context: what that had ended would hang in the
			// background, once for each try.
			return d.lookup(context.Background(), name)
		})}
		d.hosts[name] = h // few: the API server, a proxy
	}
	d.mu.Unlock()
	addrs, at, err := h.addrs.Get()
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.IsZero() || h.deniedFor(time.Now(), err) > deniedServe {
		return nil, err
	}
	return addrs, nil
}

// deniedFor returns for how long the resolver has said, whenever it said anything, that there
// is no such host. What it said long before the try before this one is another matter.
func (h *host) deniedFor(now time.Time, err error) time.Duration {
	if err == nil || now.Sub(h.last) > deniedServe {
		h.first, h.last = time.Time{}, time.Time{}
	}
	if denied(err) {
		if h.last = now; h.first.IsZero() {
			h.first = now
		}
	}
	return h.last.Sub(h.first)
}

// denied reports whether a resolver that works has said that there is no such host.
func denied(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}

// dialFirst connects to the address that answers first. They are tried one after the
// other, but one that does not answer does not keep the next from being tried.
func (d *dialer) dialFirst(ctx context.Context, network string, addrs []net.IPAddr, port string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, len(addrs))
	timer := time.NewTimer(nextAddress)
	defer timer.Stop()
	tried, failed := 0, 0
	try := func() {
		address := net.JoinHostPort(addrs[tried].String(), port)
		tried++
		timer.Reset(nextAddress)
		go func() {
			conn, err := d.dial(ctx, network, address)
			results <- result{conn, err}
		}()
	}
	var first error
	for try(); ; {
		select {
		case r := <-results:
			if r.err == nil {
				go func(others int) { // which are cancelled, but may have connected
					for range others {
						if r := <-results; r.err == nil {
							r.conn.Close()
						}
					}
				}(tried - failed - 1)
				return r.conn, nil
			}
			if failed++; first == nil {
				first = r.err
			}
			if failed == len(addrs) {
				return nil, first
			}
		case <-timer.C:
		}
		if tried < len(addrs) {
			try()
		}
	}
}
