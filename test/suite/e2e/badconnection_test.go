package e2e

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// relay passes bytes to the API server and back, until it is frozen.
type relay struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	thaw   chan struct{} // closed when the test ends; what is frozen waits for it
	frozen chan struct{} // closed when the connections made so far fall silent
}

func startRelay(t *testing.T, target string) *relay {
	t.Helper()
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	r := &relay{listener: l, target: target, thaw: make(chan struct{}), frozen: make(chan struct{})}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.pass(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		close(r.thaw)
		running.Wait()
	})
	return r
}

// pass serves one connection until an end closes it, or the test ends.
func (r *relay) pass(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp4", r.target)
	if err != nil {
		return
	}
	defer far.Close()
	r.mu.Lock()
	frozen := r.frozen
	r.mu.Unlock()
	var copying sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		copying.Go(func() {
			// Fails when an end is closed, which is the end of the other, too.
			_, _ = io.Copy(way[0], &freezing{way[1], frozen, r.thaw})
			near.Close()
			far.Close()
		})
	}
	copying.Wait()
}

// freeze silences the connections that there are, without closing them, as a
// firewall does that forgot them. New ones work.
func (r *relay) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.frozen)
	r.frozen = make(chan struct{})
}

// freezing is a connection from which nothing more comes once it is frozen.
type freezing struct {
	net.Conn
	frozen, thaw <-chan struct{}
}

func (f *freezing) Read(b []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := f.Conn.Read(b)
		done <- result{n, err}
	}()
	select {
	case got := <-done:
		select {
		case <-f.frozen:
		default:
			return got.n, got.err
		}
	case <-f.frozen:
	}
	<-f.thaw
	return 0, io.EOF
}

// A connection that falls silent is given up with its watch: waiting for the
// transport to notice would take longer than the lease lasts.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s"})
	r := startRelay(t, strings.TrimPrefix(cp.Config().Host, "https://"))
	user, groups := controlplane.NodeUser(n.name)
	config := must.Get(cp.ConfigFor(user, groups...))(t)
	config.Host = "https://" + r.listener.Addr().String()
	n.spec.Kubeconfig = must.Get(cp.WriteKubeconfig(n.name, config))(t)
	a := n.startReady()
	began := time.Now()
	r.freeze()
	waitComplaint(t, a, "failed to renew the lease", "no answer in time")
	n.waitReady(a)
	n.waitRenewed(began.Add(time.Second))
	// HTTP/2's own way to notice takes 45 s at least.
	if took := time.Since(began); took > 44*time.Second {
		t.Errorf("the next renewal came after %s", took)
	}
	checkOnce(t, a)
}
