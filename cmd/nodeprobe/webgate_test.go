package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"
)

// testHash is that of "secret", at the least cost.
func testHash(t *testing.T) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

// testPKI is an authority of certificates.
type testPKI struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestPKI(t *testing.T) *testPKI {
	t.Helper()
	p := &testPKI{t: t}
	template := x509.Certificate{IsCA: true, BasicConstraintsValid: true, Subject: pkix.Name{CommonName: "ca"}}
	p.cert, p.key = p.sign(&template)
	return p
}

var serials atomic.Int64

// sign signs a certificate, or if there is no authority yet, makes it one.
func (p *testPKI) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(serials.Add(1))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := p.cert, p.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		p.t.Fatal(err)
	}
	return cert, key
}

// files are a server's certificate, its key, and the authority's certificate.
func (p *testPKI) files() map[string]string {
	p.t.Helper()
	cert, key := p.sign(&x509.Certificate{DNSNames: []string{"node"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return map[string]string{
		"tls.crt": block("CERTIFICATE", cert.Raw), "tls.key": block("PRIVATE KEY", der), "ca.crt": block("CERTIFICATE", p.cert.Raw),
	}
}

// client returns a certificate of a client with a name.
func (p *testPKI) client(name string) *tls.Certificate {
	p.t.Helper()
	cert, key := p.sign(&x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// gated serves with a web configuration, over TCP, until the test ends.
func gated(t *testing.T, path string) (g *webGate, address string, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	g, err := newWebGate(path, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	bad := []check{{"lease", func() error { return os.ErrDeadlineExceeded }}}
	server := newServer(prometheus.NewRegistry(), nil, bad, slog.New(slog.DiscardHandler))
	g.guard(server)
	address, _ = serving(t, server)
	return g, address, log
}

// visit asks for a URL over a connection of its own.
func visit(t *testing.T, url, user, password string, cert *tls.Certificate) (*http.Response, string, error) {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true} // as a kubelet's probes
	if cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp, body.String(), nil
}

func TestWebGate(t *testing.T) {
	pki, other := newTestPKI(t), newTestPKI(t)
	const mutual = withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
	users := "basic_auth_users:\n  alice: " + testHash(t) + "\n"
	for _, test := range []struct {
		name, config   string
		user, password string
		cert           *tls.Certificate
		path           string
		want           int // 0: no connection
		body           string
	}{
		{"plain", "", "", "", nil, "/metrics", 200, ""},
		{"plain, why not ready", "", "", "", nil, "/readyz", 503, "[-]lease failed: i/o timeout\nreadyz check failed\n"},
		{"TLS", withTLS, "", "", nil, "/livez", 200, "ok"},
		{"TLS without HTTP/2", withTLS + "http_server_config: {http2: false}\n", "", "", nil, "/livez", 200, "ok"},

		{"user", users, "alice", "secret", nil, "/metrics", 200, ""},
		{"user's reasons", users, "alice", "secret", nil, "/readyz", 503, "[-]lease failed: i/o timeout\nreadyz check failed\n"},
		{"wrong password", users, "alice", "Secret", nil, "/metrics", 401, "a user and a password are needed\n"},
		{"no password", users, "alice", "", nil, "/metrics", 401, "a user and a password are needed\n"},
		{"nobody", users, "bob", "secret", nil, "/metrics", 401, "a user and a password are needed\n"},
		{"no user", users, "", "", nil, "/metrics", 401, "a user and a password are needed\n"},
		{"no user, no such path", users, "", "", nil, "/livez/x", 401, "a user and a password are needed\n"},
		{"probe of users", users, "", "", nil, "/livez", 200, "ok"},
		{"probe of users, not ready", users, "", "", nil, "/readyz?verbose", 503, "reason withheld\n"},

		{"certificate", mutual, "", "", pki.client("a"), "/readyz", 503, "[-]lease failed: i/o timeout\nreadyz check failed\n"},
		{"no certificate", mutual, "", "", nil, "/metrics", 403, "a client certificate is needed\n"},
		{"another's certificate", mutual, "", "", other.client("a"), "/livez", 0, ""},
		{"probe without certificate", mutual, "", "", nil, "/livez", 200, "ok"},
		{"probe without certificate, not ready", mutual, "", "", nil, "/readyz", 503, "reason withheld\n"},
		{"any certificate", withTLS + "  client_auth_type: RequireAnyClientCert\n", "", "", other.client("a"), "/metrics", 200, ""},
		{"not any certificate", withTLS + "  client_auth_type: RequireAnyClientCert\n", "", "", nil, "/metrics", 403, "a client certificate is needed\n"},
		{"name", mutual + "  client_allowed_sans: [a]\n", "", "", pki.client("a"), "/metrics", 200, ""},
		{"another name", mutual + "  client_allowed_sans: [a]\n", "", "", pki.client("b"), "/livez", 0, ""},

		{"certificate and user", mutual + users, "alice", "secret", pki.client("a"), "/metrics", 200, ""},
		{"certificate, no user", mutual + users, "", "", pki.client("a"), "/metrics", 401, "a user and a password are needed\n"},
		{"user, no certificate", mutual + users, "alice", "secret", nil, "/metrics", 403, "a client certificate is needed\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, address, _ := gated(t, webFiles(t, test.config, pki.files()))
			resp, body, err := visit(t, g.scheme()+"://"+address+test.path, test.user, test.password, test.cert)
			switch {
			case test.want == 0 && err == nil:
				t.Errorf("%d %q, want no connection", resp.StatusCode, body)
			case test.want == 0:
			case err != nil:
				t.Error(err)
			case resp.StatusCode != test.want || test.body != "" && body != test.body:
				t.Errorf("%d %q, want %d %q", resp.StatusCode, body, test.want, test.body)
			case g.scheme() == "https" && (resp.ProtoMajor == 2) == strings.Contains(test.config, "http2: false"):
				t.Errorf("speaks %s", resp.Proto)
			}
		})
	}
}

func TestWebHeadersAndRate(t *testing.T) {
	path := webFiles(t, "http_server_config:\n  headers: {X-Frame-Options: deny, Strict-Transport-Security: \"\"}\nrate_limit: {interval: 1h, burst: 1}\n", nil)
	g, err := newWebGate(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(prometheus.NewRegistry(), nil, nil, g.log)
	g.guard(server)
	if server.TLSConfig != nil || g.scheme() != "http" {
		t.Error("speaks TLS")
	}
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		server.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		_, empty := w.Header()["Strict-Transport-Security"]
		if w.Code != want || w.Header().Get("X-Frame-Options") != "deny" || empty {
			t.Errorf("request %d: %d %v", i, w.Code, w.Header())
		}
	}
	if code, _ := ask(server.Handler, http.MethodGet, "/livez"); code != http.StatusOK {
		t.Errorf("a probe counts against the rate: %d", code)
	}
}

// inForce returns what the metric says.
func inForce(t *testing.T, g *webGate) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(g.good)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetGauge().GetValue()
}

// Files that change are in force at the next connection, or request; files that
// are wrong are not.
func TestWebReload(t *testing.T) {
	pki := newTestPKI(t)
	path := webFiles(t, withTLS, pki.files())
	g, address, log := gated(t, path)
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := "https://" + address + "/metrics"
	serial := func() *big.Int {
		t.Helper()
		resp, _, err := visit(t, url, "", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp.TLS.PeerCertificates[0].SerialNumber
	}
	first := serial()
	if again := serial(); again.Cmp(first) != 0 {
		t.Errorf("serial %s, then %s", first, again)
	}

	next := pki.files()
	write("tls.crt", next["tls.crt"]) // its key is not there yet
	if got := serial(); got.Cmp(first) != 0 {
		t.Errorf("a certificate without its key: serial %s", got)
	}
	if got := inForce(t, g); got != 0 {
		t.Errorf("metric %v", got)
	}
	serial()
	if got := strings.Count(log.String(), "private key does not match public key"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, log)
	}
	write("tls.key", next["tls.key"])
	second := serial()
	if second.Cmp(first) == 0 || inForce(t, g) != 1 {
		t.Errorf("serial %s is as before", second)
	}

	for _, bad := range []string{"basic_auth_users: {alice: x}\n", "http_server_config: {}\n"} {
		write("web.yml", bad)
		if got := serial(); got.Cmp(second) != 0 || inForce(t, g) != 0 {
			t.Errorf("%q: serial %s, metric %v", bad, got, inForce(t, g))
		}
	}
	if want := "web.yml: tls_server_config: TLS is turned on or off by a restart only"; !strings.Contains(log.String(), want) {
		t.Errorf("no %q in\n%s", want, log)
	}
	write("web.yml", withTLS)
	serial()
	if got := inForce(t, g); got != 1 {
		t.Errorf("what was good is there again: metric %v", got)
	}
	write("web.yml", withTLS+"basic_auth_users:\n  alice: "+testHash(t)+"\n")
	for password, want := range map[string]int{"secret": 200, "Secret": 401} {
		resp, _, err := visit(t, url, "alice", password, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("password %s: %d, want %d", password, resp.StatusCode, want)
		}
	}
	if resp, _, err := visit(t, url, "", "", nil); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("no user: %v %v", resp, err)
	}
}

// Files on a disk that hangs are waited for once, and what was good stays in force.
func TestWebReloadOfFileThatHangs(t *testing.T) {
	path := webFiles(t, "http_server_config:\n  headers:\n    X-Frame-Options: deny\n", nil)
	g, address, log := gated(t, path)
	frames := func() string {
		t.Helper()
		client := http.Client{Timeout: 30 * time.Second}
		resp, err := client.Get("http://" + address + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.Header.Get("X-Frame-Options")
	}
	frames()
	answer := hangingFile(t, path)
	for range 3 {
		if got := frames(); got != "deny" || inForce(t, g) != 0 {
			t.Errorf("while the file hangs: header %q, in force %v", got, inForce(t, g))
		}
	}
	if n := strings.Count(log.String(), path+": no answer within"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
	answer("http_server_config:\n  headers:\n    X-Frame-Options: sameorigin\n")
	eventually(t, "new file in force", func() bool { return frames() == "sameorigin" && inForce(t, g) == 1 })
}

// A password is hashed once, and what is remembered is bounded.
func TestPasswordsAreRemembered(t *testing.T) {
	users := map[string]string{"alice": testHash(t)}
	g := &webGate{known: map[[32]byte]bool{}}
	for range 3 {
		if !g.right(users, "alice", "secret") || g.right(users, "alice", "wrong") {
			t.Error("wrong")
		}
	}
	if len(g.known) != 2 {
		t.Errorf("%d are remembered", len(g.known))
	}
	for i := range mostKnown {
		g.right(users, "alice", strings.Repeat("x", i))
	}
	if len(g.known) > mostKnown || !g.right(users, "alice", "secret") {
		t.Errorf("%d are remembered", len(g.known))
	}
	users["alice"] = testHash(t)[:7] + strings.Repeat("x", 53)
	if g.right(users, "alice", "secret") {
		t.Error("the password of before is remembered")
	}
}
