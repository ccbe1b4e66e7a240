package main

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// webGate stands between the network and what is served: it is the web
// configuration file, as it is at each connection and request.
//
// A file that becomes wrong changes nothing but a metric and the log: what was
// good before stays in force. Otherwise a half-written file would fail the
// kubelet's probes.
type webGate struct {
	path   string
	log    *slog.Logger
	good   prometheus.Gauge
	next   http.Handler
	secure bool // whether it speaks TLS

	mu      sync.Mutex
	config  *webConfig
	reading deadline.Worker[webReading]
	failure string            // of the last reload; "" if it succeeded
	known   map[[32]byte]bool // passwords tried, and whether they are right
	hashing sync.Mutex        // held while a password is hashed: one at a time
}

// mostKnown bounds the passwords that are remembered.
const mostKnown = 100

// newWebGate reads the file, which must be good to start with.
func newWebGate(path string, log *slog.Logger) (*webGate, error) {
	config, err := loadWebConfig(path)
	if err != nil {
		return nil, err
	}
	g := &webGate{
		path: path, log: log, secure: config.tls != nil, config: config, known: map[[32]byte]bool{},
		good: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodeprobe_web_config_last_reload_successful",
			Help: "Whether the web configuration in force is that of the files; 0: they are wrong, and the last good one stays.",
		}),
	}
	g.good.Set(1)
	return g, nil
}

// scheme is how URLs of what is served begin. A nil gate is none.
func (g *webGate) scheme() string {
	if g == nil || !g.secure {
		return "http"
	}
	return "https"
}

// guard puts the gate before a server. A nil gate is none.
func (g *webGate) guard(server *http.Server) {
	if g == nil {
		return
	}
	g.next, server.Handler = server.Handler, g
	if g.secure {
		server.TLSConfig = &tls.Config{ // GetConfigForClient has the versions
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return g.current().tls, nil },
		}
	}
}

// webReading is what the files come to.
type webReading struct {
	config *webConfig
	err    error
}

// current returns the configuration as the files now have it, or if they are
// wrong or on a disk that hangs, as they last had it.
func (g *webGate) current() *webConfig {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.config
	now, err := g.reading.Do(fileTimeout, "read web configuration "+g.path, func() webReading {
		if !was.stale() {
			return webReading{config: was}
		}
		config, err := loadWebConfig(g.path)
		return webReading{config, err}
	})
	err = cmp.Or(err, now.err)
	if err == nil && (now.config.tls != nil) != g.secure {
		err = fmt.Errorf("%s: tls_server_config: TLS is turned on or off by a restart only", g.path)
	}
	if g.reloaded(err); err == nil && now.config != was {
		g.config = now.config
		g.log.Info("web configuration has changed", "file", g.path)
	}
	return g.config
}

// reloaded says once what is wrong, or that nothing is any more.
func (g *webGate) reloaded(err error) {
	switch {
	case err == nil && g.failure != "":
		g.failure = ""
		g.good.Set(1)
		g.log.Info("web configuration is good again", "file", g.path)
	case err != nil && g.failure != err.Error():
		g.failure = err.Error()
		g.good.Set(0)
		g.log.Error("web configuration is wrong; the last good one stays in force", "err", err)
	}
}

// isHealth says whether a path is one that a kubelet probes. It has no
// certificate, and a password would have to be in the pod's manifest: it may know
// how we are, though not why.
func isHealth(path string) bool {
	return slices.Contains([]string{"/livez", "/healthz", "/readyz"}, path)
}

// ServeHTTP implements http.Handler.
func (g *webGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	config := g.current()
	for name, value := range config.headers {
		if value != "" {
			w.Header().Set(name, value)
		}
	}
	health := isHealth(r.URL.Path)
	if !health && config.limit != nil && !config.limit.TryAccept() {
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	code := g.admit(config, r)
	switch {
	case code == http.StatusOK:
		g.next.ServeHTTP(w, r)
	case health:
		serveCode(g.next, w, r)
	case code == http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="nodeprobe"`)
		http.Error(w, "a user and a password are needed", code)
	default:
		http.Error(w, "a client certificate is needed", code)
	}
}

// admit returns http.StatusOK, or why a client gets nothing.
func (g *webGate) admit(config *webConfig, r *http.Request) int {
	// One that is there was verified in the handshake, if it has to be.
	if config.needCert && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0) {
		return http.StatusForbidden
	}
	if len(config.users) == 0 {
		return http.StatusOK
	}
	if user, password, ok := r.BasicAuth(); ok && g.right(config.users, user, password) {
		return http.StatusOK
	}
	return http.StatusUnauthorized
}

// nobody is the hash of something random, for users that do not exist: they take as
// long as others.
const nobody = "$2a$10$TXW0xabzIAw4Cs9IaOdwve/LsbTJ8hQ12d5QUhICKH6CteYWx4n1W"

// right says whether a user has the password. That takes some 50 ms of CPU, so
// it is remembered, and there is one at a time.
func (g *webGate) right(users map[string]string, user, password string) bool {
	hash, exists := users[user]
	if !exists {
		hash = nobody
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", user, hash, password))
	if ok, known := g.remembered(key); known {
		return ok
	}
	g.hashing.Lock()
	defer g.hashing.Unlock()
	if ok, known := g.remembered(key); known { // by who was before us
		return ok
	}
	ok := bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil && exists
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= mostKnown {
		clear(g.known)
	}
	g.known[key] = ok
	return ok
}

func (g *webGate) remembered(key [32]byte) (ok, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ok, known = g.known[key]
	return ok, known
}

// serveCode answers with the status code of a handler's answer, and no more.
func serveCode(h http.Handler, w http.ResponseWriter, r *http.Request) {
	only := codeOnly{ResponseWriter: w, code: http.StatusOK}
	h.ServeHTTP(&only, r)
	w.WriteHeader(only.code)
	if only.code == http.StatusOK {
		_, _ = io.WriteString(w, "ok")
		return
	}
	_, _ = io.WriteString(w, "reason withheld\n") // from one who is gone
}

// codeOnly is a ResponseWriter that keeps the code for later.
type codeOnly struct {
	http.ResponseWriter
	code int
}

func (w *codeOnly) WriteHeader(code int)        { w.code = code }
func (w *codeOnly) Write(b []byte) (int, error) { return len(b), nil }
