package apiclient

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// dryRun is a client whose writes are checked and answered by the API server, webhooks
// included, and not stored. A watch, and whatever else is made with Verb, is a read here.
type dryRun struct{ rest.Interface }

func (d dryRun) Post() *rest.Request { return d.Interface.Post().Param("dryRun", metav1.DryRunAll) }
func (d dryRun) Put() *rest.Request  { return d.Interface.Put().Param("dryRun", metav1.DryRunAll) }
func (d dryRun) Delete() *rest.Request {
	return d.Interface.Delete().Param("dryRun", metav1.DryRunAll)
}

// Patch implements rest.Interface.
func (d dryRun) Patch(kind types.PatchType) *rest.Request {
	return d.Interface.Patch(kind).Param("dryRun", metav1.DryRunAll)
}

// mishaps makes the next requests fail, without the API server: it is not asked for
// errors, which somebody may watch.
type mishaps struct {
	mu   sync.Mutex // guards next
	next []mishap
}

// mishap is what becomes of a request instead.
type mishap func(*http.Request) (*http.Response, error)

// Fail makes the next n requests of a rehearsal fail, each in another way, as far as
// there are ways. Elsewhere it does nothing.
func (c *Connections) Fail(n int) {
	if m := c.mishaps; m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.next = append(m.next, ways[:min(n, len(ways))]...)
	}
}

// Failing reports whether a request is still to fail.
func (c *Connections) Failing() bool {
	if c.mishaps == nil {
		return false
	}
	c.mishaps.mu.Lock()
	defer c.mishaps.mu.Unlock()
	return len(c.mishaps.next) > 0
}

// ways to fail, the likeliest first.
var ways = []mishap{
	refuse,
	answering(http.StatusInternalServerError, "text/plain", "etcdserver: request timed out"),
	func(*http.Request) (*http.Response, error) { return nil, context.DeadlineExceeded },
	answering(http.StatusConflict, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict",`+
		`"message":"the object has been modified","details":{"name":"x","kind":"nodes","causes":[]},"code":409}`),
	answering(http.StatusForbidden, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden",`+
		`"message":"nodes \"x\" is forbidden: User \"x\" cannot patch resource \"nodes/status\"","code":403}`),
	answering(http.StatusServiceUnavailable, "text/html", "<html>"),
	answering(http.StatusInternalServerError, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError",`+
		`"message":"an error on the server","code":500}`),
}

// answering returns a mishap that is an answer of this kind.
func answering(code int, kind, body string) mishap {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/2.0", ProtoMajor: 2, Request: r,
			Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
		}, nil
	}
}

// refuse sends a request to a port of this machine at which nothing listens.
func refuse(r *http.Request) (*http.Response, error) {
	listener, err := new(net.ListenConfig).Listen(r.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	listener.Close()
	elsewhere := r.Clone(r.Context())
	elsewhere.Header = http.Header{} // in case something does listen: no token
	elsewhere.URL = &url.URL{Scheme: "http", Host: listener.Addr().String(), Path: "/"}
	elsewhere.Body = nil
	nowhere := new(http.Transport)
	defer nowhere.CloseIdleConnections()
	return nowhere.RoundTrip(elsewhere)
}

// wrap returns a transport with the mishaps.
func (m *mishaps) wrap(next http.RoundTripper) http.RoundTripper { return clumsy{next, m} }

// clumsy is a transport with mishaps.
type clumsy struct {
	next    http.RoundTripper
	mishaps *mishaps
}

func (c clumsy) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mishaps.mu.Lock()
	var fail mishap
	if len(c.mishaps.next) > 0 {
		fail, c.mishaps.next = c.mishaps.next[0], c.mishaps.next[1:]
	}
	c.mishaps.mu.Unlock()
	if fail == nil {
		return c.next.RoundTrip(r)
	}
	if r.Body != nil {
		r.Body.Close()
	}
	return fail(r)
}

// WrappedRoundTripper leads Reconnect to the connections.
func (c clumsy) WrappedRoundTripper() http.RoundTripper { return c.next }
