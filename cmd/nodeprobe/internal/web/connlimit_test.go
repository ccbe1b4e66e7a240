package web

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// hungUp is a connection that notes when it is closed.
type hungUp struct {
	net.Conn
	name, from string
	closed     *[]string
}

func (c *hungUp) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.from))
}

func (c *hungUp) Close() error {
	*c.closed = append(*c.closed, c.name)
	return nil
}

// Who is one too many makes room at the cost of the source with the most connections,
// and there of the one that was active the longest time ago.
func TestConnLimit(t *testing.T) {
	const pod, kubelet, other = "10.0.0.7:1", "10.0.0.1:1", "10.0.0.9:1"
	const new, active, idle, closed = http.StateNew, http.StateActive, http.StateIdle, http.StateClosed
	type event struct {
		conn  string
		from  string // "" as before
		state http.ConnState
	}
	for _, test := range []struct {
		name   string
		events []event // of a server with room for three
		closed []string
		open   int
	}{
		{"room for all", []event{{"a", pod, new}, {"b", pod, new}, {"c", kubelet, new}}, nil, 3},
		{"silent ones", []event{{"a", pod, new}, {"b", pod, new}, {"c", pod, new}, {"d", pod, new}, {"e", pod, new}}, []string{"a", "b"}, 3},
		{"not the one that asked", []event{{"a", pod, new}, {"b", pod, new}, {"c", pod, new}, {"a", "", active}, {"d", pod, new}}, []string{"b"}, 3},
		{"nor that was answered", []event{{"a", pod, new}, {"a", "", active}, {"b", pod, new}, {"c", pod, new}, {"a", "", idle}, {"d", pod, new}}, []string{"b"}, 3},
		{"who reads slowly", []event{{"a", pod, new}, {"a", "", active}, {"b", pod, new}, {"c", pod, new}, {"d", pod, new}}, []string{"a"}, 3},
		{"of those who have many", []event{{"k", kubelet, new}, {"a", pod, new}, {"b", pod, new}, {"c", pod, new}, {"d", pod, new}}, []string{"a", "b"}, 3},
		{"room for who comes late", []event{{"a", pod, new}, {"b", pod, new}, {"c", pod, new}, {"k", kubelet, new}, {"d", pod, new}}, []string{"a", "b"}, 3},
		{"many who have one", []event{{"a", pod, new}, {"k", kubelet, new}, {"o", other, new}, {"x", "10.0.0.8:1", new}}, []string{"a"}, 3},
		{"IPv4 in IPv6", []event{{"k", kubelet, new}, {"a", pod, new}, {"b", "[::ffff:10.0.0.7]:1", new}, {"o", other, new}}, []string{"a"}, 3},
		{"a network of IPv6", []event{{"k", "[fd00::1]:1", new}, {"a", "[fd00:0:0:1::1]:1", new}, {"b", "[fd00:0:0:1::2]:1", new}, {"o", "[fd00:0:0:2::1]:1", new}}, []string{"a"}, 3},
		{"some leave", []event{{"a", pod, new}, {"b", pod, new}, {"a", "", closed}, {"c", pod, new}, {"d", pod, new}}, nil, 3},
		{"all leave", []event{{"a", pod, new}, {"b", kubelet, new}, {"a", "", closed}, {"b", "", http.StateHijacked}}, nil, 0},
		{"evicted, and not aware of it", []event{
			{"a", pod, new}, {"b", pod, new}, {"c", pod, new}, {"d", pod, new}, {"a", "", active}, {"a", "", closed}, {"e", pod, new},
		}, []string{"a", "b"}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newConnLimit(3)
			reg := prometheus.NewRegistry()
			reg.MustRegister(&Server{limit: l})
			var closed []string
			conns := map[string]*hungUp{}
			for _, e := range test.events {
				if conns[e.conn] == nil {
					conns[e.conn] = &hungUp{name: e.conn, from: e.from, closed: &closed}
				}
				l.changed(conns[e.conn], e.state)
			}
			if diff := cmp.Diff(test.closed, closed); diff != "" {
				t.Errorf("hung up (-want +got):\n%s", diff)
			}
			for name, want := range map[string]int{"nodeprobe_web_connections": test.open, "nodeprobe_web_connections_evicted_total": len(test.closed)} {
				if got := gathered(t, reg, name); got != float64(want) {
					t.Errorf("%s is %v, want %d", name, got, want)
				}
			}
			counted := 0
			for _, n := range l.sources {
				counted += n
			}
			if len(l.clients) != test.open || counted != test.open {
				t.Errorf("%d are open, by source %d, want %d", len(l.clients), counted, test.open)
			}
		})
	}
}

// Those who are let in have their turn before all of them are pushed out again.
func TestConnLimitPauses(t *testing.T) {
	const most = 3
	l := newConnLimit(most)
	var at []int
	n := 0
	l.pause = func() { at = append(at, n) }
	var closed []string
	for n = range 3*most + 1 {
		l.changed(&hungUp{from: "10.0.0.7:1", closed: &closed}, http.StateNew)
	}
	if want := []int{2*most - 1, 3*most - 1}; !slices.Equal(at, want) {
		t.Errorf("it pauses after connections %d, want %d", at, want)
	}
}

// However many clients there are, and whatever they do not do, the next one is served.
func TestServerOfManyClients(t *testing.T) {
	for name, begin := range map[string]string{
		"silent":    "",
		"trickling": "GET /livez HTTP/1.1\r\nHost: n\r\nX-",
		"idle":      "GET /livez HTTP/1.1\r\nHost: n\r\n\r\n",
		"slow":      strings.Repeat("GET /large HTTP/1.1\r\nHost: n\r\n\r\n", 10),
	} {
		t.Run(name, func(t *testing.T) {
			answer := make([]byte, 8*sendBuffer) // more than the kernel takes for a client that does not read
			large := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(answer) })
			s := servingMain(t, Config{}, Routes{"GET /livez": ok, "GET /large": large}, func(server *http.Server) {
				// On a busy machine the first clients must not time out before the last have come.
				server.ReadHeaderTimeout, server.ReadTimeout, server.WriteTimeout = time.Hour, time.Hour, time.Hour
			})
			address := s.Address()
			const clients = 3 * maxConnections
			for range clients {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				io.WriteString(conn, begin)
			}
			for _, url := range []string{address + "/livez", address + "/large"} {
				resp, err := http.Get("http://" + url)
				if err != nil {
					t.Fatal(err)
				}
				_, err = io.Copy(io.Discard, resp.Body)
				if resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %s %v", url, resp.Status, err)
				}
			}
			reg := prometheus.NewRegistry()
			reg.MustRegister(s)
			if got := gathered(t, reg, "nodeprobe_web_connections"); got > maxConnections {
				t.Errorf("%v connections are open", got)
			}
			if got := gathered(t, reg, "nodeprobe_web_connections_evicted_total"); got < clients-maxConnections {
				t.Errorf("%v were evicted", got)
			}
		})
	}
}

// Nobody waits for a turn on behalf of a client that was hung up on, though that has
// begun its next request, during which the server does not notice by itself.
func TestEvictedRequestsEnd(t *testing.T) {
	var asking atomic.Int32
	asked := make(chan struct{})
	address := serving(t, Config{}, Routes{
		"GET " + pprofPath + "wait": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asking.Add(1)
			defer asking.Add(-1)
			asked <- struct{}{}
			select {
			case <-r.Context().Done():
			case <-t.Context().Done():
			}
		}),
	}).Address()
	for range 2 * maxConnections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET "+pprofPath+"wait HTTP/1.1\r\nHost: n\r\n\r\n")
		<-asked
		io.WriteString(conn, "G")
	}
	testtree.Eventually(t, "those who were hung up on are gone", func() bool { return asking.Load() <= maxConnections })
}

// The listeners share the limit: however many connections hold one of them, a kubelet's
// probes are served on the other, and on that one too.
func TestListenersShareTheLimit(t *testing.T) {
	s := serving(t, Config{HealthListen: "127.0.0.1:0"}, Routes{"GET /livez": ok})
	for i := range 3 * maxConnections {
		conn, err := net.Dial("tcp", []string{s.Address(), s.HealthAddress()}[i%2])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	for _, address := range []string{s.Address(), s.HealthAddress()} {
		if resp, body, err := visit(t, "http://"+address+"/livez", "", "", nil); err != nil || resp.StatusCode != http.StatusOK || body != "ok" {
			t.Errorf("%v %q %v", resp, body, err)
		}
	}
	s.limit.mu.Lock()
	defer s.limit.mu.Unlock()
	if n := len(s.limit.clients); n > maxConnections {
		t.Errorf("%d connections", n)
	}
}

// With TLS, too, it is the connection below that is closed: a close_notify would wait
// for a client that does not read.
func TestHangUpTLS(t *testing.T) {
	near, far := net.Pipe() // where nobody reads, nothing can be written
	hangUp(tls.Server(near, &tls.Config{}))
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the other side got %v", err)
	}
}

// gathered returns the one value of a metric.
func gathered(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if m := family.GetMetric()[0]; family.GetName() == name {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
