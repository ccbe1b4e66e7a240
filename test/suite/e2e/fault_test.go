package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// Everything that can go wrong with a write, while each of the three things
// that nodeprobe writes: it complains once, naming what it could not write and
// why, keeps running, and catches up as soon as it can.
func TestFaults(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	for _, f := range []fault.Fault{
		fault.TooManyRequests(time.Second),
		fault.Status(409),
		fault.Status(500),
		fault.Status(403),
		fault.Hang(),
		fault.CutAnswer(),
		fault.Reset(),
	} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			// Of a short lease follow short deadlines for each call.
			n := newNode(t, cp, agent.Config{"nodeLeaseDurationSeconds": 2})
			proxy := n.through(cp)
			history := n.follow()
			s := &faulty{node: n, proxy: proxy, fault: f}

			s.inject("POST", nodesPath)
			s.agent = n.start()
			s.wait("node status is not posted")
			s.clear()
			n.waitReady(s.agent)
			s.judge("POST node", n.name)

			n.addForeign()
			s.inject("PATCH", nodesPath+"/*/status")
			n.markUnknown()
			s.wait("node status is not posted")
			s.clear()
			n.waitMended()
			n.waitReady(s.agent)
			s.judge("PATCH status", n.name)

			s.inject("PUT", leasesPath+"/*")
			s.wait("failed to renew the lease")
			s.clear()
			n.waitRenewed(time.Now())
			n.waitReady(s.agent)
			s.judge("PUT lease", corev1.NamespaceNodeLease+"/"+n.name)

			s.checkEnd(history)
		})
	}
}

// faulty is a nodeprobe that reaches the API server through a fault.
type faulty struct {
	*node
	proxy *fault.Proxy
	fault fault.Fault
	agent *agent.Agent

	method, path string
	complaint    string // of the present stage
	seen         int    // records of the log that belong to earlier stages
}

// inject has the next kind of request fail from now on.
func (s *faulty) inject(method, path string) {
	s.method, s.path = method, path
	s.proxy.Forget()
	s.proxy.Inject(fault.Rule{Methods: []string{method}, Path: path, Fault: s.fault})
}

func (s *faulty) clear() { s.proxy.Clear() }

// wait waits until nodeprobe has complained, and has then met the fault a few
// more times. After a cut answer there may be nothing to complain of, since the
// API server has what it needs: nodeprobe asks, sees that, and is content.
func (s *faulty) wait(complaint string) {
	s.t.Helper()
	s.complaint = complaint
	what := "nodeprobe complains: " + complaint
	if s.quiet() {
		eventually(s.t, "the fault is met", func() error {
			if s.proxy.Count(s.method, s.path) == 0 {
				return errNotYet
			}
			return nil
		})
		return
	}
	eventually(s.t, what, func() error {
		for _, r := range s.news() {
			if r.Bad() && r.Msg == complaint {
				return nil
			}
		}
		return errNotYet
	})
	met := s.proxy.Count(s.method, s.path)
	eventually(s.t, "the fault is met again", func() error {
		if s.proxy.Count(s.method, s.path) < met+2 {
			return errNotYet
		}
		return nil
	})
}

// quiet says whether the fault at hand may pass unnoticed.
func (s *faulty) quiet() bool {
	return s.fault.String() == fault.CutAnswer().String() && s.method == "PATCH"
}

// news returns what was logged in this stage.
func (s *faulty) news() []agent.Record {
	s.t.Helper()
	return allLogged(s.t, s.agent)[s.seen:]
}

// judge looks at the stage that is over: the complaint was made once, about the
// object. What else goes over the same connection may fail each time that breaks.
func (s *faulty) judge(stage, object string) {
	s.t.Helper()
	select {
	case <-s.agent.Exited():
		s.t.Fatalf("%s: nodeprobe has ended", stage)
	default:
	}
	type complaint struct{ msg, err string } // one fault may show in two errors
	count := map[complaint]int{}
	var lines []string
	for _, r := range s.news() {
		if !r.Bad() {
			continue
		}
		count[complaint{r.Msg, r.Err}]++
		lines = append(lines, r.Line)
		if !strings.Contains(r.Line, object) && !strings.Contains(r.Line, s.name) {
			s.t.Errorf("%s: the object %s is not named: %s", stage, object, r.Line)
		}
		if r.Err == "" {
			s.t.Errorf("%s: the error is not named: %s", stage, r.Line)
		}
	}
	for c, n := range count {
		if n > 1 && c.msg == s.complaint {
			s.t.Errorf("%s: %q was logged %d times:\n%s", stage, c, n, strings.Join(lines, "\n"))
		}
	}
	s.seen = len(allLogged(s.t, s.agent))
}

// checkEnd looks at the Node's whole life.
func (s *faulty) checkEnd(history *nodewatch.History) {
	s.t.Helper()
	s.wantForeign()
	for _, sighting := range history.All() {
		if sighting.Node == nil {
			s.t.Fatal("the node was deleted")
		}
		for _, c := range builtIn[:3] {
			// Unknown is what the test itself has written.
			if condition := nodewatch.Condition(sighting.Node, c); condition.Status == corev1.ConditionTrue {
				s.t.Errorf("flipped: %+v", condition)
			}
		}
		if ready := nodewatch.Condition(sighting.Node, corev1.NodeReady); ready.Status == corev1.ConditionFalse {
			s.t.Errorf("flipped: %+v", ready)
		}
	}
	// Its own renewal whose answer got lost must not pass for somebody else's.
	renewals, err := s.agent.Metric(s.t.Context(), "nodeprobe_heartbeat_foreign_renewals_total")
	if err != nil || renewals != 0 {
		s.t.Errorf("%g foreign renewals (%v), want none", renewals, err)
	}
}
