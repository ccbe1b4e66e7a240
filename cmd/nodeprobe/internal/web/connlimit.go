package web

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxConnections is for both listeners. A kubelet, a pair of Prometheuses and a few open
// status pages are a dozen.
const maxConnections = 128

// connLimit bounds the number of open connections, and always accepts one more: a kubelet
// that could not connect would restart us. To make room, it closes the least recently
// active connection of the source that has the most. So a client that opens thousands
// evicts its own only, and even if it shares the kubelet's address, the newest connection
// is the last to go.
//
// A connection is active when it is accepted, when a whole request has arrived, and when
// the response is sent: sending a request byte by byte, or reading the response so, does
// not keep it open.
//
// After as many evictions as there may be connections, it pauses: Go's scheduler polls the
// network when nothing else is runnable, and without a pause new connections would be
// evicted before their requests are read.
type connLimit struct {
	most    int
	open    prometheus.GaugeFunc
	evicted prometheus.Counter
	pause   func() // after most evictions in a row

	mu      sync.Mutex // guards the rest
	clock   uint64     // counts events, and so orders them
	burst   int        // evictions since the last pause
	clients map[net.Conn]client
	ends    map[net.Conn]context.CancelFunc // cancel the requests of each
	sources map[netip.Prefix]int            // connections of each
}

type client struct {
	source netip.Prefix
	seen   uint64 // when it was last active, by the clock
}

func newConnLimit(most int) *connLimit {
	l := &connLimit{
		most: most, clients: map[net.Conn]client{}, ends: map[net.Conn]context.CancelFunc{}, sources: map[netip.Prefix]int{},
		pause: func() { time.Sleep(time.Millisecond) },
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_web_connections_evicted_total",
			Help: "Connections of clients that were closed to make room for others.",
		}),
	}
	l.open = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nodeprobe_web_connections",
		Help: "Connections of clients that are open.",
	}, func() float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(len(l.clients))
	})
	return l
}

// Collect is that of a prometheus.Collector.
func (l *connLimit) Collect(ch chan<- prometheus.Metric) {
	l.open.Collect(ch)
	l.evicted.Collect(ch)
}

// context implements http.Server.ConnContext, which is called before StateNew. A server
// does not notice that a connection is closed while it has unread bytes: a request would
// wait for its turn in vain.
func (l *connLimit) context(ctx context.Context, conn net.Conn) context.Context {
	ctx, end := context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends[conn] = end
	return ctx
}

// changed implements http.Server.ConnState. A server calls it with StateNew before it
// accepts the next connection.
func (l *connLimit) changed(conn net.Conn, state http.ConnState) {
	if victim, pause := l.note(conn, state); victim != nil {
		hangUp(victim)
		l.evicted.Inc()
		if pause {
			l.pause()
		}
	}
}

// note returns a connection to close if there is one too many, and whether to pause then.
func (l *connLimit) note(conn net.Conn, state http.ConnState) (victim net.Conn, pause bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	switch c, known := l.clients[conn]; {
	case state == http.StateNew:
		c = client{sourceOf(conn.RemoteAddr()), l.clock}
		l.clients[conn] = c
		l.sources[c.source]++
	case !known: // evicted, and its goroutine has not noticed yet
	case state == http.StateActive || state == http.StateIdle:
		c.seen = l.clock
		l.clients[conn] = c
	default:
		l.remove(conn)
	}
	if len(l.clients) <= l.most {
		return nil, false
	}
	victim = l.oldest()
	l.remove(victim)
	l.burst = (l.burst + 1) % l.most
	return victim, l.burst == 0
}

func (l *connLimit) remove(conn net.Conn) {
	source := l.clients[conn].source
	delete(l.clients, conn)
	if end := l.ends[conn]; end != nil {
		end()
		delete(l.ends, conn)
	}
	if l.sources[source]--; l.sources[source] == 0 {
		delete(l.sources, source)
	}
}

// oldest returns the least recently active connection of the source that has the most.
func (l *connLimit) oldest() (oldest net.Conn) {
	var found client
	for conn, c := range l.clients {
		more := l.sources[c.source] - l.sources[found.source]
		if oldest == nil || more > 0 || more == 0 && c.seen < found.seen {
			oldest, found = conn, c
		}
	}
	return oldest
}

// sourceOf returns the client's address, or its /64 with IPv6, where one machine may have
// as many addresses as it likes.
func sourceOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, bits := tcp.AddrPort().Addr().Unmap(), 32
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip.WithZone(""), bits).Masked()
}

// hangUp resets a connection. A TLS close_notify would block on a client that does not
// read, and the kernel would keep unsent data for a while.
func hangUp(conn net.Conn) {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
