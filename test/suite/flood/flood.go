// Package flood holds thousands of connections open against a server, as somebody
// does who means it harm, and connects again wherever the server hangs up.
package flood

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is what the connections do.
type Kind string

const (
	// Silent ones never say a word; with TLS, not even that of a handshake.
	Silent Kind = "silent"
	// Idle ones ask once, and stay.
	Idle Kind = "idle"
	// Trickling ones send a request that does not end, a line a second.
	Trickling Kind = "trickling"
	// Slow ones ask for all that is large, again and again, and read nothing.
	Slow Kind = "slow"
)

// Kinds are all there are.
var Kinds = []Kind{Silent, Idle, Trickling, Slow}

// round is how often a connection is looked at.
const round = time.Second

// workers share the connections: with a goroutine for each, a test under the race
// detector could not hold enough.
const workers = 50

// dialTimeout bounds an attempt to connect. A server may not take up all.
const dialTimeout = 2 * time.Second

// Flood is one that goes on.
type Flood struct {
	address string
	tls     *tls.Config // nil for plain HTTP

	cancel    context.CancelFunc
	wg, first sync.WaitGroup // all of it; the first attempt of each connection

	tally struct{ opened, refused, spoke atomic.Int64 }
}

// Tally counts connections: those that came about, those that did not, and those whose
// client has said what it wanted to, after a handshake if there is one. The server may
// have hung up before.
type Tally struct{ Opened, Refused, Spoke int64 }

// source is whom the connections come from: like a pod's, another address than the
// kubelet's.
var source = net.IPv4(127, 0, 0, 66)

// Start keeps up n connections, as many of each kind, until it is stopped.
func Start(address string, config *tls.Config, n int, kinds ...Kind) *Flood {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Flood{address: address, cancel: cancel}
	if config != nil {
		f.tls = config.Clone()
		f.tls.ServerName, _, _ = net.SplitHostPort(address) // it is dialled as well
	}
	for w := range workers {
		var mine []*client
		for i := w; i < n; i += workers {
			mine = append(mine, &client{flood: f, kind: kinds[(i/workers)%len(kinds)]})
		}
		f.first.Add(1)
		f.wg.Go(func() { f.work(ctx, mine) })
	}
	return f
}

// Wait returns when each connection has come about, or could not, for the first time.
func (f *Flood) Wait() { f.first.Wait() }

// Stop ends all connections and tells how many there have been.
func (f *Flood) Stop() Tally {
	f.cancel()
	f.wg.Wait()
	return Tally{f.tally.opened.Load(), f.tally.refused.Load(), f.tally.spoke.Load()}
}

func (f *Flood) work(ctx context.Context, clients []*client) {
	tick := time.NewTicker(round)
	defer tick.Stop()
	for i := 0; ; i++ {
		for _, c := range clients {
			if ctx.Err() == nil {
				c.turn(ctx)
			}
		}
		if i == 0 {
			f.first.Done()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			for _, c := range clients {
				c.close()
			}
			return
		}
	}
}

// client is one connection, or the intention to have one.
type client struct {
	flood *Flood
	kind  Kind
	tcp   *net.TCPConn // nil if there is none
	conn  net.Conn     // tcp, or TLS over it
}

func (c *client) turn(ctx context.Context) {
	if c.tcp != nil && !established(c.tcp) {
		c.close()
	}
	if c.tcp == nil {
		if err := c.dial(ctx); err != nil {
			c.close()
			return
		}
		if c.say(c.hello()) {
			c.flood.tally.spoke.Add(1)
		}
		return
	}
	switch c.kind {
	case Silent, Idle:
	case Trickling:
		c.say("X-More: 1\r\n")
	case Slow:
		c.say(c.hello())
	}
}

func (c *client) hello() string {
	const get = "GET %s HTTP/1.1\r\nHost: n\r\n"
	switch c.kind {
	case Idle:
		return fmt.Sprintf(get, "/livez") + "\r\n"
	case Trickling:
		return fmt.Sprintf(get, "/livez")
	case Slow:
		return fmt.Sprintf(get+"\r\n"+get+"\r\n"+get+"\r\n", "/metrics", "/api/v1/history", "/")
	default:
		return ""
	}
}

func (c *client) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: source}}
	if c.kind == Slow {
		// What the kernel would read for us counts as read.
		d.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
			return err
		}
	}
	conn, err := d.DialContext(ctx, "tcp", c.flood.address)
	if err != nil {
		c.flood.tally.refused.Add(1)
		return err
	}
	c.flood.tally.opened.Add(1)
	c.tcp, _ = conn.(*net.TCPConn) // it is one
	c.conn = conn
	if c.flood.tls == nil || c.kind == Silent {
		return nil
	}
	secure := tls.Client(conn, c.flood.tls)
	c.conn = secure
	return secure.HandshakeContext(ctx)
}

// say sends without waiting for long: who does not listen need not hear.
func (c *client) say(text string) bool {
	if text == "" {
		return true
	}
	_ = c.tcp.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := c.conn.Write([]byte(text))
	return err == nil
}

// close resets the connection: its port is free at once.
func (c *client) close() {
	if c.tcp == nil {
		return
	}
	_ = c.tcp.SetLinger(0)
	c.tcp.Close()
	c.tcp, c.conn = nil, nil
}

// established reports whether neither side has hung up.
func established(conn *net.TCPConn) (ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		ok = err == nil && info.State == unix.BPF_TCP_ESTABLISHED
	})
	return ok
}
