package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// ask sends a request to a handler and returns status and body.
func ask(h http.Handler, method, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

func TestHealth(t *testing.T) {
	var sampler, lease error
	h := newServer(prometheus.NewRegistry(),
		[]check{{"sampler", func() error { return sampler }}},
		[]check{{"sampler", func() error { return sampler }}, {"lease", func() error { return lease }}},
		slog.New(slog.DiscardHandler)).Handler
	want := func(path string, code int, body string) {
		t.Helper()
		if gotCode, got := ask(h, http.MethodGet, path); gotCode != code || got != body {
			t.Errorf("GET %s: %d %q, want %d %q", path, gotCode, got, code, body)
		}
	}
	want("/livez", 200, "ok")
	want("/healthz", 200, "ok")
	want("/readyz", 200, "ok")
	want("/livez?verbose", 200, "[+]sampler ok\nlivez check passed\n")
	want("/healthz?verbose=1", 200, "[+]sampler ok\nhealthz check passed\n")
	want("/readyz?verbose", 200, "[+]sampler ok\n[+]lease ok\nreadyz check passed\n")

	lease = errors.New("not renewed yet")
	want("/livez", 200, "ok")
	want("/readyz", 503, "[+]sampler ok\n[-]lease failed: not renewed yet\nreadyz check failed\n")
	want("/readyz?verbose", 503, "[+]sampler ok\n[-]lease failed: not renewed yet\nreadyz check failed\n")

	sampler = errors.New("last sample is 1m old")
	want("/livez", 503, "[-]sampler failed: last sample is 1m old\nlivez check failed\n")
	want("/healthz", 503, "[-]sampler failed: last sample is 1m old\nhealthz check failed\n")
	want("/readyz", 503, "[-]sampler failed: last sample is 1m old\n[-]lease failed: not renewed yet\nreadyz check failed\n")
}

func TestWrongRequests(t *testing.T) {
	h := newServer(prometheus.NewRegistry(), nil, nil, slog.New(slog.DiscardHandler)).Handler
	for _, path := range []string{"/metrics", "/livez", "/readyz", "/healthz"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			if code, _ := ask(h, method, path); code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, code)
			}
		}
		if code, _ := ask(h, http.MethodHead, path); code != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, code)
		}
	}
	for _, path := range []string{"/", "/metrics/", "/debug/pprof/", "/livez/x"} {
		if code, _ := ask(h, http.MethodGet, path); code != http.StatusNotFound {
			t.Errorf("GET %s: %d", path, code)
		}
	}
}

// serving runs a server until the test ends, and returns its address, and a
// function that stops it and returns what serve returns.
func serving(t *testing.T, server *http.Server) (address string, stop func() error) {
	t.Helper()
	listener, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- serve(ctx, server, listener) }()
	return listener.Addr().String(), func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			t.Fatal("serve does not return")
			return nil
		}
	}
}

// What goes wrong with a client is no line on standard error, which may be a
// live table.
func TestServerLogs(t *testing.T) {
	var log bytes.Buffer
	server := newServer(prometheus.NewRegistry(), nil, nil, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	server.ErrorLog.Print("http: TLS handshake error")
	if got := log.String(); !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "TLS handshake error") {
		t.Errorf("got %s", got)
	}
}

func TestBigHeaders(t *testing.T) {
	address, stop := serving(t, newServer(prometheus.NewRegistry(), nil, nil, slog.New(slog.DiscardHandler)))
	for size, want := range map[int]int{1 << 10: http.StatusOK, 64 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// In one piece: the server does not wait for the rest of what is too much, and
		// http.Client may come across that before it reads the answer.
		if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: n\r\nConnection: close\r\nX-Big: "+strings.Repeat("x", size)+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes: %s, want %d", size, resp.Status, want)
		}
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A request that is under way may finish.
func TestServeFinishesRequests(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	address, stop := serving(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-finish
		io.WriteString(w, "whole")
	})})
	body := make(chan string, 1)
	go func() {
		resp, err := http.Get("http://" + address)
		if err != nil {
			body <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		body <- string(b)
	}()
	<-arrived
	time.AfterFunc(50*time.Millisecond, func() { close(finish) }) // when serve is stopping
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := <-body; got != "whole" {
		t.Errorf("got %q", got)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("the port is still open")
	}
}

// A client that has connected and says nothing does not hold up the end, and its
// connection ends with it.
func TestServeDropsSilentClients(t *testing.T) {
	address, stop := serving(t, newServer(prometheus.NewRegistry(), nil, nil, slog.New(slog.DiscardHandler)))
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if resp, err := http.Get("http://" + address + "/livez"); err != nil { // by now the first is accepted too
		t.Fatal(err)
	} else {
		resp.Body.Close()
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, context.DeadlineExceeded) || err == nil {
		t.Errorf("the connection is open: %v", err)
	} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Errorf("the connection is open: %v", err)
	}
}

func TestServeFails(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	err = serve(t.Context(), &http.Server{}, listener)
	if err == nil || !strings.HasPrefix(err.Error(), "serve "+listener.Addr().String()+": ") {
		t.Errorf("got %v", err)
	}
}

// The names, units and help texts of everything that a daemon exports.
func TestMetricsLint(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "")
	d.monitor.observe(d.sampler.Sample())
	h := newServer(d.registry, d.liveChecks(), d.readyChecks(), d.log).Handler
	code, body := ask(h, http.MethodGet, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, want := range []string{
		`nodeprobe_signal_available_bytes{signal="memory.available"} 6.442450944e+09`,
		`nodeprobe_condition_status{condition="MemoryPressure"} 0`,
		`nodeprobe_bpf_hook_attached{hook="tp_btf/mark_victim",signal="oom"} 0`,
		`nodeprobe_build_info{`, `process_resident_memory_bytes `, `go_goroutines `,
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(body, "allocatableMemory") {
		t.Error("a signal that is absent is exported")
	}
}

func TestOpenMetrics(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "")
	d.monitor.observe(d.sampler.Sample())
	h := newServer(d.registry, nil, nil, d.log).Handler
	const (
		open10 = "application/openmetrics-text; version=1.0.0; charset=utf-8"
		open00 = "application/openmetrics-text; version=0.0.1; charset=utf-8"
		text   = "text/plain; version=0.0.4; charset=utf-8"
	)
	for _, test := range []struct{ name, accept, want string }{
		{"nobody", "", text},
		{"a browser", "text/html,application/xhtml+xml,*/*;q=0.8", text},
		{"text", "text/plain;version=0.0.4", text},
		{"OpenMetrics", "application/openmetrics-text;version=1.0.0", open10},
		{"OpenMetrics of before", "application/openmetrics-text;version=0.0.1", open00},
		{"Prometheus 2", "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", open10},
		{"Prometheus 3", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", open10},
		{"text rather than OpenMetrics", "application/openmetrics-text;version=1.0.0;q=0.1,text/plain;version=0.0.4;q=0.9", text},
		{"something else", "application/json", text},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", test.accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		// A name's escaping may follow.
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: Content-Type: %s", test.name, got)
		}
		body := w.Body.String()
		isOpen := strings.Contains(test.want, "openmetrics")
		if eof := strings.HasSuffix(body, "# EOF\n"); eof != isOpen {
			t.Errorf("%s: ends in # EOF: %v", test.name, eof)
		}
		// The family of a counter has no _total there.
		if short := strings.Contains(body, "# TYPE nodeprobe_oom_kills counter\n"); short != isOpen {
			t.Errorf("%s: counters of OpenMetrics: %v", test.name, short)
		}
	}
}
