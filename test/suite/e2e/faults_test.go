package e2e

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// statusPath is where the status is patched, leasePath where a Lease is renewed.
const (
	statusPath = stage.NodesPath + "/*/status"
	leasePath  = stage.LeasesPath + "/*"
)

// checkHistory wants the Node never to have been deleted, under pressure, or not ready.
// Unknown is what tests write.
func checkHistory(t *testing.T, history *nodewatch.History) {
	t.Helper()
	for _, s := range history.All() {
		if s.Node == nil {
			t.Fatal("the node was deleted")
		}
		for _, c := range stage.BuiltIn {
			wrong := corev1.ConditionTrue
			if c == corev1.NodeReady {
				wrong = corev1.ConditionFalse
			}
			if condition := nodewatch.Condition(s.Node, c); condition.Status == wrong {
				t.Errorf("flipped: %+v", condition)
			}
		}
	}
}

func wantOnlyReads(t *testing.T, proxy *fault.Proxy) {
	t.Helper()
	for _, r := range proxy.Requests() {
		if r.Method != "GET" {
			t.Errorf("written: %s", r)
		}
	}
}

// Everything that can go wrong with a write, while each of the three things
// that nodeprobe writes: it complains once, naming what it could not write and
// why, keeps running, and catches up as soon as it can.
func TestFaults(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for _, f := range []fault.Fault{
		fault.TooManyRequests(time.Second), fault.Status(409), fault.Status(500), fault.Status(403),
		fault.Hang(), fault.CutAnswer(), fault.Reset(),
	} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			// Of a short lease follow short deadlines for each call.
			n := newNode(t, cp, agent.Config{"nodeLeaseDurationSeconds": 2})
			proxy, history := n.Through(), n.Follow()
			var a *agent.Agent
			seen := 0 // records of the log that belong to earlier stages
			for _, test := range []struct {
				method, path, complaint, object string
				begin, mended                   func()
			}{
				{"POST", stage.NodesPath, notPosted, n.Name, func() { a = n.Start() }, func() {}},
				{"PATCH", statusPath, notPosted, n.Name, func() { n.addForeign(); n.markUnknown() }, n.waitMended},
				{"PUT", leasePath, notRenewed, corev1.NamespaceNodeLease + "/" + n.Name, func() {}, func() { n.WaitRenewed(time.Now()) }},
			} {
				proxy.Forget()
				proxy.Inject(fault.Rule{Methods: []string{test.method}, Path: test.path, Fault: f})
				test.begin()
				// After a cut answer there may be nothing to complain of, since the API server
				// has what it needs: nodeprobe asks, sees that, and is content.
				met := func() int { return proxy.Count(test.method, test.path) }
				if f.String() == fault.CutAnswer().String() && test.method == "PATCH" {
					stage.Until(t, "the fault is met", func() bool { return met() > 0 })
				} else {
					stage.Until(t, "nodeprobe complains: "+test.complaint, func() bool {
						return slices.ContainsFunc(stage.Logged(t, a, "")[seen:], func(r agent.Record) bool { return r.Bad() && r.Msg == test.complaint })
					})
					before := met()
					stage.Until(t, "the fault is met again", func() bool { return met() >= before+2 })
				}
				proxy.Clear()
				test.mended()
				n.WaitReady(a)
				stage.CheckAlive(t, a)
				// What else goes over the same connection may fail each time that breaks.
				count := map[string]int{}
				for _, r := range stage.Logged(t, a, "")[seen:] {
					if !r.Bad() {
						continue
					}
					if count[r.Msg+": "+r.Err]++; count[r.Msg+": "+r.Err] > 1 && r.Msg == test.complaint {
						t.Errorf("%s: logged again: %s", test.method, r.Line)
					}
					if r.Err == "" || !strings.Contains(r.Line, test.object) && !strings.Contains(r.Line, n.Name) {
						t.Errorf("%s: neither the object %s nor an error is named: %s", test.method, test.object, r.Line)
					}
				}
				seen = len(stage.Logged(t, a, ""))
			}
			n.wantForeign()
			checkHistory(t, history)
			// Its own renewal whose answer got lost must not pass for somebody else's.
			must.Note(t, stage.Metric(a, "nodeprobe_heartbeat_foreign_renewals_total", 0))
		})
	}
}

// Something else answers every request, at the start and in the middle: its answer
// is never taken for the API server's.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	kind := func(kind string) map[string]string { return map[string]string{"Content-Type": kind} }
	const page, foreign = "<html><body>Log in!</body></html>", ": not the API server's but, for example, a proxy's; check the server's address"
	for _, test := range []struct {
		fault fault.Fault
		want  string
	}{
		{fault.Status(503), "the server is currently unable to handle the request"},
		{fault.Answer("HTML", 200, kind("text/html"), page), "the answer is a page of HTML, with status 200" + foreign},
		{fault.Answer("HTML, not found", 404, kind("text/html"), page), "the answer is a page of HTML, with status 404" + foreign},
		{fault.Answer("redirect", 302, map[string]string{"Location": "https://127.0.0.1:1/login"}, ""), "the answer is a redirect to https://127.0.0.1:1/login, with status 302" + foreign},
		{fault.Answer("other type", 200, kind("text/plain"), `{"kind":"Node","apiVersion":"v1"}`), "the answer is of type text/plain, with status 200" + foreign},
		{fault.Answer("another object", 200, kind("application/json"), "{}"), "response is not "},
		{fault.Answer("half an object", 200, kind("application/json"), `{"kind":"Node","apiVersion":"v1","metadata":{"na`), "read response: "},
	} {
		t.Run(test.fault.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, nil)
			proxy, history := n.Through(), n.Follow()
			proxy.Inject(fault.Rule{Fault: test.fault})
			a := n.Start()
			stage.WaitComplaint(t, a, notPosted, test.want)
			stage.WaitComplaint(t, a, unhealthy, test.want) // nobody can tell whether a kubelet is alive
			stage.WaitUnready(t, a, test.want)
			stage.CheckOnce(t, a)
			wantOnlyReads(t, proxy) // before Node and Lease were read
			proxy.Clear()
			n.WaitReady(a)

			n.addForeign()
			uid, complaints := n.MustGet().UID, len(stage.Logged(t, a, notPosted))
			proxy.Inject(fault.Rule{Fault: test.fault})
			n.markUnknown()
			stage.WaitLogged(t, a, notPosted, complaints)
			stage.WaitUnready(t, a, test.want)
			proxy.Clear()
			n.waitMended()
			n.WaitReady(a)
			n.WaitRenewed(time.Now())
			n.wantForeign()
			if n.MustGet().UID != uid || len(stage.Logged(t, a, "node is registered")) != 1 {
				t.Error("the node was taken for lost")
			}
			checkHistory(t, history)
		})
	}
}

// relay passes bytes to the API server and back. Connections made before freeze fall
// silent with it, without being closed, as with a firewall that forgot them.
type relay struct {
	mu     sync.Mutex
	frozen chan struct{} // of the connections made from now on
}

func (r *relay) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.frozen)
	r.frozen = make(chan struct{})
}

func startRelay(t *testing.T, target string) (*relay, net.Addr) {
	t.Helper()
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	r := &relay{frozen: make(chan struct{})}
	var running sync.WaitGroup
	var open []net.Conn // guarded by r.mu
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp4", target)
			if err != nil {
				near.Close()
				continue
			}
			r.mu.Lock()
			frozen := r.frozen
			open = append(open, near, far)
			r.mu.Unlock()
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				running.Go(func() { pass(way[0], way[1], frozen) })
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		for _, c := range open {
			c.Close()
		}
		r.mu.Unlock()
		running.Wait()
	})
	return r, l.Addr()
}

// pass copies bytes until an end is closed, which closes the other, and drops them once
// it is frozen.
func pass(to, from net.Conn, frozen <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-frozen:
			_, _ = io.Copy(io.Discard, from) // until the test closes it
			return
		default:
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			to.Close()
			from.Close()
			return
		}
	}
}

// A connection that falls silent is given up with its watch: waiting for the
// transport to notice would take longer than the lease lasts.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, agent.Config{"nodeStatusReportFrequency": "1s"})
	r, address := startRelay(t, strings.TrimPrefix(cp.Config().Host, "https://"))
	user, groups := controlplane.NodeUser(n.Name)
	config := cp.ConfigFor(user, groups...)
	config.Host = fmt.Sprint("https://", address)
	n.Spec.Kubeconfig = must.Get(cp.WriteKubeconfig(n.Name, config))(t)
	a := n.StartReady()
	began := time.Now()
	r.freeze()
	stage.WaitComplaint(t, a, notRenewed, "no answer in time")
	n.WaitReady(a)
	n.WaitRenewed(began.Add(time.Second))
	// HTTP/2's own way to notice takes 45 s at least.
	if took := time.Since(began); took > 44*time.Second {
		t.Errorf("the next renewal came after %s", took)
	}
	stage.CheckOnce(t, a)
}
