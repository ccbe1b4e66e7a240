// Package fault is a proxy in front of the API server that fails on request. It
// answers with errors, hangs, breaks connections or refuses them, and records
// every request, so that tests can say what went over the wire and what did not.
//
// A client reaches it through the kubeconfig that it hands out, and speaks TLS
// and HTTP/2 with it as it would with the API server.
package fault

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Proxy is a running proxy. Its methods are safe for concurrent use.
type Proxy struct {
	kubeconfig string
	addr       string
	cert       tls.Certificate
	forward    http.Handler
	closed     chan struct{}

	mu       sync.Mutex // guards what follows
	server   *http.Server
	rules    []*Rule
	requests []*Request
	changed  chan struct{} // closed and replaced whenever a request was answered
}

// Request is what the proxy recorded of one request.
type Request struct {
	Method, Path, Query string
	ContentType         string
	UserAgent           string
	Body                []byte
	// Time is when the request had arrived with its body.
	Time time.Time
	// Code is the status of the answer; 0 if there is none, or not yet.
	Code int
	// Fault names the injected fault; empty if the API server was asked.
	Fault string
	// Done reports whether the proxy has finished with the request.
	Done bool
}

func (r Request) String() string {
	s := fmt.Sprintf("%s %s %s -> %d", r.Time.Format("15:04:05.000"), r.Method, r.Path, r.Code)
	if r.Fault != "" {
		s += " (" + r.Fault + ")"
	}
	return s
}

// StartForTest starts a proxy that passes requests on to the control plane as the
// given user, no matter what the client claims to be, until the test ends. If that failed the
// requests are logged.
func StartForTest(t testing.TB, cp *controlplane.ControlPlane, user string, groups ...string) *Proxy {
	t.Helper()
	upstream := cp.ConfigFor(user, groups...)
	target := must.Get(url.Parse(upstream.Host))(t)
	p := &Proxy{
		addr:    "127.0.0.1:0",
		cert:    cp.ServingCertificate("fault-proxy"),
		closed:  make(chan struct{}),
		changed: make(chan struct{}),
	}
	p.forward = &httputil.ReverseProxy{
		Transport:     must.Get(rest.TransportFor(upstream))(t),
		FlushInterval: -1, // Watch events must not wait for more.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Authorization") // The proxy's identity counts.
		},
		// An API server that is down does not answer 502 either.
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, _ error) { resetConnection(r) },
	}
	must.OK(t, p.Accept())
	t.Cleanup(func() {
		close(p.closed)
		p.Refuse()
		if !t.Failed() {
			return
		}
		for _, r := range p.Requests() {
			t.Log(r)
		}
	})
	config := rest.CopyConfig(upstream)
	config.Host = "https://" + p.addr
	p.kubeconfig = must.Get(cp.WriteKubeconfig(user+"@"+p.addr, config))(t)
	return p
}

// Kubeconfig returns the path of a kubeconfig that leads to the proxy.
func (p *Proxy) Kubeconfig() string { return p.kubeconfig }

// Inject adds a rule. The first rule that matches a request decides, the oldest
// first.
func (p *Proxy) Inject(rule Rule) {
	if _, err := path.Match(rule.Path, ""); err != nil {
		panic(fmt.Sprintf("fault: bad pattern %q", rule.Path))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &rule)
}

// Clear removes all rules.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Refuse breaks all connections and refuses new ones, as a machine does on
// which the API server is not running.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		_ = p.server.Close() // Closing the listener of a running server cannot fail.
		p.server = nil
	}
}

// Accept ends Refuse: the proxy listens on its old port again.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return nil
	}
	listener, err := net.Listen("tcp4", p.addr)
	if err != nil {
		return fmt.Errorf("start fault proxy: %w", err)
	}
	p.addr = listener.Addr().String()
	server := &http.Server{
		Handler:   http.HandlerFunc(p.serve),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{p.cert}, MinVersion: tls.VersionTLS12},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: log.New(io.Discard, "", 0), // Broken connections are the purpose.
	}
	p.server = server
	go func() {
		// The only goroutine of the proxy; Refuse ends it.
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			log.Printf("fault proxy: %v", err)
		}
	}()
	return nil
}

// serve handles one request.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // The client went away in the middle of its request.
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	record := &Request{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery,
		ContentType: r.Header.Get("Content-Type"), UserAgent: r.UserAgent(),
		Body: body, Time: time.Now(),
	}
	fault := p.admit(record)
	answer := &answerRecorder{ResponseWriter: w}
	// Deferred, because most faults end the handler by a panic.
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		record.Code, record.Done = answer.code, true
		close(p.changed)
		p.changed = make(chan struct{})
	}()
	if fault == nil {
		p.forward.ServeHTTP(answer, r)
		return
	}
	fault.serve(p, answer, r, p.forward)
}

// admit records a request and returns the fault that it meets, if any.
func (p *Proxy) admit(record *Request) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, record)
	for i, rule := range p.rules {
		if !rule.matches(record.Method, record.Path) {
			continue
		}
		if rule.Count == 1 {
			p.rules = slices.Delete(p.rules, i, i+1)
		} else if rule.Count > 1 {
			rule.Count--
		}
		record.Fault = rule.Fault.name
		return &rule.Fault
	}
	return nil
}

// answerRecorder notes the status code that goes to the client.
type answerRecorder struct {
	http.ResponseWriter
	code int
}

func (a *answerRecorder) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController flush through it.
func (a *answerRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Requests returns what was recorded so far, oldest first.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Request, 0, len(p.requests))
	for _, r := range p.requests {
		all = append(all, *r)
	}
	return all
}

// Count returns how many requests with the method (empty: any) and with a path
// like the pattern (see Rule.Path) were recorded.
func (p *Proxy) Count(method, pattern string) int {
	n := 0
	for _, r := range p.Requests() {
		if (method == "" || r.Method == method) && matchPath(pattern, r.Path) {
			n++
		}
	}
	return n
}

// Forget drops what was recorded, for tests that look at a steady state.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = nil
}

// WaitFor returns the first recorded request that is done and that match
// accepts, waiting for it until ctx ends.
func (p *Proxy) WaitFor(ctx context.Context, match func(Request) bool) (Request, error) {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		requests := p.Requests()
		for _, r := range requests {
			if r.Done && match(r) {
				return r, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, fmt.Errorf("wait for a request: %w; %d others were seen", context.Cause(ctx), len(requests))
		}
	}
}
