package e2e

import (
	"path"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/fault"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// Something else answers every request, at the start and in the middle: what it
// says is never taken for the API server's word.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	kind := func(kind string) map[string]string { return map[string]string{"Content-Type": kind} }
	const page, foreign = "<html><body>Log in!</body></html>", ": something other than the API server gives it"
	for _, test := range []struct {
		fault fault.Fault
		want  string
	}{
		{fault.Status(503), "the server is currently unable to handle the request"},
		{fault.Answer("HTML", 200, kind("text/html"), page), "the answer is a page of HTML, with status 200" + foreign},
		{fault.Answer("HTML, not found", 404, kind("text/html"), page), "the answer is a page of HTML, with status 404" + foreign},
		{fault.Answer("redirect", 302, map[string]string{"Location": "https://127.0.0.1:1/login"}, ""), "the answer is a redirect to https://127.0.0.1:1/login, with status 302" + foreign},
		{fault.Answer("other type", 200, kind("text/plain"), `{"kind":"Node","apiVersion":"v1"}`), "the answer is of type text/plain, with status 200" + foreign},
		{fault.Answer("another object", 200, kind("application/json"), "{}"), "the answer is not "},
		{fault.Answer("half an object", 200, kind("application/json"), `{"kind":"Node","apiVersion":"v1","metadata":{"na`), "read the answer: "},
	} {
		t.Run(test.fault.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, nil)
			proxy := n.through(cp)
			history := n.follow()

			proxy.Inject(fault.Rule{Fault: test.fault})
			a := n.start()
			waitComplaint(t, a, "node status is not posted", test.want)
			waitComplaint(t, a, "not renewing the lease: unhealthy", test.want) // nobody can tell whether a kubelet is alive
			wantReadyz(t, a, test.want)
			checkOnce(t, a)
			for _, r := range proxy.Requests() {
				if r.Method != "GET" {
					t.Errorf("written before Node and Lease were read: %s", r)
				}
			}
			proxy.Clear()
			n.waitReady(a)

			n.addForeign()
			uid, complaints := n.mustGet().UID, len(logged(t, a, "node status is not posted"))
			proxy.Inject(fault.Rule{Fault: test.fault})
			n.markUnknown()
			waitLogged(t, a, "node status is not posted", complaints)
			wantReadyz(t, a, test.want)
			proxy.Clear()
			n.waitMended()
			n.waitReady(a)
			n.waitRenewed(time.Now())
			n.wantForeign()
			if n.mustGet().UID != uid || len(logged(t, a, "node is registered")) != 1 {
				t.Error("the node was taken for lost")
			}
			for _, s := range history.All() {
				for _, c := range builtIn[:3] {
					if nodewatch.Has(c, corev1.ConditionTrue)(s.Node) {
						t.Errorf("flipped: %s", c)
					}
				}
			}
		})
	}
}

// The API server asks to be left alone for longer than a request may take, and is.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	cp := controlplane.StartForTest(t)
	const pause = 6 * time.Second
	for name, test := range map[string]struct {
		method, path string
		log          string
		same         []string // the paths to leave alone
	}{
		"create node":  {"POST", nodesPath, "node status is not posted", []string{nodesPath + "/*"}},
		"patch status": {"PATCH", nodesPath + "/*/status", "node status is not posted", []string{nodesPath + "/*", nodesPath + "/*/status"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, cp, agent.Config{"nodeLeaseDurationSeconds": 2}) // and so two seconds for a request
			proxy := n.through(cp)
			proxy.Inject(fault.Rule{Methods: []string{test.method}, Path: test.path, Count: 2, Fault: fault.TooManyRequests(pause)})
			a := n.start()
			waitComplaint(t, a, test.log, "too many requests")
			eventually(t, "both answers are met, and what follows", func() error {
				if proxy.Count(test.method, test.path) < 3 {
					return errNotYet
				}
				return nil
			})
			n.waitReady(a)
			met := 0
			for i, r := range proxy.Requests() {
				if r.Fault == "" {
					continue
				}
				met++
				for _, later := range proxy.Requests()[i+1:] {
					for _, pattern := range append(test.same, test.path) {
						if ok, _ := path.Match(pattern, later.Path); ok && later.Query == "" && later.Time.Sub(r.Time) < pause {
							t.Errorf("%s: too early after %s", later, r)
						}
					}
				}
			}
			if met != 2 {
				t.Errorf("%d requests were asked to wait, want 2", met)
			}
			checkOnce(t, a)
		})
	}
}

// For longer than the Lease lasts, it is not: that would cost the node its pods.
func TestRetryAfterOutlastsLease(t *testing.T) {
	t.Parallel()
	const lasts = 8 * time.Second
	cp := controlplane.StartForTest(t)
	n := newNode(t, cp, agent.Config{"nodeLeaseDurationSeconds": int(lasts / time.Second)})
	proxy := n.through(cp)
	a := n.startReady()
	proxy.Inject(fault.Rule{Methods: []string{"PUT"}, Path: leasesPath + "/*", Count: 1, Fault: fault.TooManyRequests(10 * lasts)})
	waitComplaint(t, a, "failed to renew the lease", "too many requests")
	failed := time.Now()
	n.waitRenewed(failed)
	lease := must.Get(n.lease())(t)
	// The failed try came a quarter of the time after the latest renewal.
	if late := lease.Spec.RenewTime.Sub(failed); late >= lasts*3/4 {
		t.Errorf("renewed %s after the answer, want %s, and less than %s", late, lasts/4, lasts*3/4)
	}
}
