package web

import (
	"bufio"
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

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// ask sends a request to a handler and returns status and body.
func ask(h http.Handler, method, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

const patience = 30 * time.Second

// running is a Server that serves until the test ends.
type running struct {
	*Server
	t    *testing.T
	log  *testtree.Log
	stop func() error // returns what Run returns
}

// serving runs a Server on free ports.
func serving(t *testing.T, cfg Config, routes Routes) *running {
	t.Helper()
	return start(t, cfg, func(ctx context.Context, s *Server) error { return s.Run(ctx, routes) })
}

// servingMain runs the server of all routes alone, with some timeouts changed.
func servingMain(t *testing.T, cfg Config, routes Routes, change func(*http.Server)) *running {
	t.Helper()
	return start(t, cfg, func(ctx context.Context, s *Server) error {
		server := s.newServer(routes.Handler())
		change(server)
		return s.runMain(ctx, server)
	})
}

func start(t *testing.T, cfg Config, run func(context.Context, *Server) error) *running {
	t.Helper()
	r := &running{t: t, log: new(testtree.Log)}
	cfg.Listen = "127.0.0.1:0"
	var err error
	if r.Server, err = New(t.Context(), cfg, slog.New(slog.NewTextHandler(r.log, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	ctx, cancel := context.WithCancel(t.Context())
	var result error
	done := make(chan struct{})
	go func() { result = run(ctx, r.Server); close(done) }()
	r.stop = func() error {
		cancel()
		select {
		case <-done:
			return result
		case <-time.After(patience):
			t.Fatal("Run does not return")
			return nil
		}
	}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

func TestWrongRequests(t *testing.T) {
	h := Routes{"GET /livez": ok}.Handler()
	for _, path := range []string{"/livez"} {
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

// What goes wrong with a client is no line on standard error, which may be a
// live table.
func TestServerLogs(t *testing.T) {
	var log testtree.Log
	s, err := New(t.Context(), Config{}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	s.newServer(nil).ErrorLog.Print("http: TLS handshake error")
	if got := log.String(); !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "TLS handshake error") {
		t.Errorf("got %s", got)
	}
}

func TestBigHeaders(t *testing.T) {
	s := serving(t, Config{}, Routes{"GET /livez": ok})
	address := s.Address()
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
	if err := s.stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A request that is under way may finish.
func TestServeFinishesRequests(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	s := serving(t, Config{}, Routes{"GET /": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-finish
		io.WriteString(w, "whole")
	})})
	address := s.Address()
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
	if err := s.stop(); !errors.Is(err, context.Canceled) {
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
	s := serving(t, Config{}, Routes{"GET /livez": ok})
	address := s.Address()
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
	if err := s.stop(); !errors.Is(err, context.Canceled) {
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
	s := serving(t, Config{HealthListen: "127.0.0.1:0"}, Routes{"GET /livez": ok})
	s.health.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testtree.Eventually(t, "the other listener is closed", func() bool {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Address())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if err := s.stop(); err == nil || !strings.HasPrefix(err.Error(), "serve "+s.HealthAddress()+": ") {
		t.Errorf("got %v", err)
	}
}

// An address that is taken names the field and the flag, and leaves no other one bound.
func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	for want, cfg := range map[string]Config{
		"webListenAddress (--web.listen-address): listen tcp " + address + ": bind: address already in use":              {Listen: address},
		"webHealthListenAddress (--web.health-listen-address): listen tcp " + address + ": bind: address already in use": {Listen: free.Addr().String(), HealthListen: address},
	} {
		if _, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if again, err := net.Listen("tcp", free.Addr().String()); err != nil {
		t.Error(err)
	} else {
		again.Close()
	}
}

// The address for probes has the health endpoints, and nothing else; what it says of
// failures depends on whether the other address asks who wants to know.
func TestHealthListen(t *testing.T) {
	users := "basic_auth_users:\n  alice: " + testHash(t) + "\n"
	mutual := withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
	for name, test := range map[string]struct{ config, reasons string }{
		"plain":               {"", reasons},
		"TLS":                 {withTLS, reasons},
		"users":               {users, "reason withheld\n"},
		"client certificates": {mutual, "reason withheld\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := webFiles(t, test.config, newTestPKI(t).files())
			s := serving(t, Config{HealthListen: "127.0.0.1:0", File: path, Pprof: true}, failing)
			for path, want := range map[string]struct {
				code int
				body string
			}{
				"/livez": {200, "ok"}, "/readyz": {503, test.reasons}, "/readyz?verbose": {503, test.reasons},
				"/": {404, ""}, "/metrics": {404, ""}, "/debug/pprof/": {404, ""}, "/healthz": {404, ""},
			} {
				resp, body, err := visit(t, "http://"+s.HealthAddress()+path, "", "", nil)
				if err != nil || resp.StatusCode != want.code || want.body != "" && body != want.body {
					t.Errorf("%s: %v %q %v, want %v", path, resp, body, err, want)
				}
			}
			if warned := strings.Contains(s.log.String(), "set webHealthListenAddress"); warned {
				t.Errorf("it is set:\n%s", s.log)
			}
		})
	}
	s := serving(t, Config{File: webFiles(t, users, nil)}, Routes{"GET /livez": ok})
	if want := "level=WARN"; !strings.Contains(s.log.String(), want) || !strings.Contains(s.log.String(), "set webHealthListenAddress") {
		t.Errorf("no address for probes, and no warning:\n%s", s.log)
	}
}

// The packages that profiles and the toolkit come from register handlers in
// http.DefaultServeMux.
func TestDefaultServeMuxIsNotServed(t *testing.T) {
	if _, pattern := http.DefaultServeMux.Handler(httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)); pattern == "" {
		t.Fatal("nothing to serve by mistake")
	}
	s := serving(t, Config{File: webFiles(t, "", nil)}, Routes{"GET /livez": ok})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/requests", "/debug/events", "/debug/vars"} {
		if resp, _, err := visit(t, "http://"+s.Address()+path, "", "", nil); err != nil || resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %v %v", path, resp, err)
		}
	}
}

func TestURL(t *testing.T) {
	files := newTestPKI(t).files()
	for config, scheme := range map[string]string{"": "http://", withTLS: "https://"} {
		s := serving(t, Config{File: webFiles(t, config, files)}, Routes{"GET /livez": ok})
		if want := scheme + s.Address() + "/"; s.URL() != want {
			t.Errorf("got %s, want %s", s.URL(), want)
		}
	}
	none, err := New(t.Context(), Config{}, slog.New(slog.DiscardHandler))
	if err != nil || none.URL() != "" || none.Address() != "" || none.HealthAddress() != "" {
		t.Errorf("got %+v, %v", none, err)
	}
}
