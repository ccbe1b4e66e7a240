package web

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
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

// ok is a health endpoint without a fault.
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })

// failing are the routes of a process that lives, and is not ready.
var failing = Routes{
	"GET /livez": ok, "GET /healthz": ok,
	"GET /readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, reasons)
	}),
	"GET /metrics": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "m 1\n") }),
}

const reasons = "[-]lease failed: i/o timeout\nreadyz check failed\n"

// gated serves with a web configuration, over TCP, until the test ends.
func gated(t *testing.T, path string) *running {
	t.Helper()
	return serving(t, Config{File: path}, failing)
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

func TestAccess(t *testing.T) {
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
		{"plain", "", "", "", nil, "/metrics", 200, "m 1\n"},
		{"plain, though a user", "", "alice", "secret", nil, "/metrics", 200, "m 1\n"},
		{"plain, why not ready", "", "", "", nil, "/readyz", 503, reasons},
		{"TLS", withTLS, "", "", nil, "/livez", 200, "ok"},
		{"TLS without HTTP/2", withTLS + "http_server_config: {http2: false}\n", "", "", nil, "/livez", 200, "ok"},
		{"TLS, why not ready", withTLS, "", "", nil, "/readyz", 503, reasons},

		{"user", users, "alice", "secret", nil, "/metrics", 200, "m 1\n"},
		{"user's reasons", users, "alice", "secret", nil, "/readyz", 503, reasons},
		{"wrong password", users, "alice", "Secret", nil, "/metrics", 401, ""},
		{"no password", users, "alice", "", nil, "/metrics", 401, ""},
		{"nobody", users, "bob", "secret", nil, "/metrics", 401, ""},
		{"no user", users, "", "", nil, "/metrics", 401, ""},
		{"no user, no such path", users, "", "", nil, "/livez/x", 401, ""},
		{"probe of users", users, "", "", nil, "/livez", 401, ""},

		{"certificate", mutual, "", "", pki.client("a"), "/readyz", 503, reasons},
		{"no certificate", mutual, "", "", nil, "/metrics", 0, ""},
		{"another's certificate", mutual, "", "", other.client("a"), "/livez", 0, ""},
		{"probe without certificate", mutual, "", "", nil, "/livez", 0, ""},
		{"any certificate", withTLS + "  client_auth_type: RequireAnyClientCert\n", "", "", other.client("a"), "/metrics", 200, ""},
		{"not any certificate", withTLS + "  client_auth_type: RequireAnyClientCert\n", "", "", nil, "/metrics", 0, ""},
		{"if given, and given", withTLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n", "", "", pki.client("a"), "/metrics", 200, ""},
		{"if given, and not", withTLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n", "", "", nil, "/livez", 200, ""},
		{"name", mutual + "  client_allowed_sans: [a]\n", "", "", pki.client("a"), "/metrics", 200, ""},
		{"another name", mutual + "  client_allowed_sans: [a]\n", "", "", pki.client("b"), "/livez", 0, ""},

		{"certificate and user", mutual + users, "alice", "secret", pki.client("a"), "/metrics", 200, ""},
		{"certificate, no user", mutual + users, "", "", pki.client("a"), "/metrics", 401, ""},
		{"user, no certificate", mutual + users, "alice", "secret", nil, "/metrics", 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := gated(t, webFiles(t, test.config, pki.files()))
			resp, body, err := visit(t, s.URL()+test.path[1:], test.user, test.password, test.cert)
			switch {
			case test.want == 0 && err == nil:
				t.Errorf("%d %q, want no connection", resp.StatusCode, body)
			case test.want == 0:
			case err != nil:
				t.Error(err)
			case resp.StatusCode != test.want || test.body != "" && body != test.body:
				t.Errorf("%d %q, want %d %q", resp.StatusCode, body, test.want, test.body)
			case strings.HasPrefix(s.URL(), "https:") && (resp.ProtoMajor == 2) == strings.Contains(test.config, "http2: false"):
				t.Errorf("speaks %s", resp.Proto)
			}
		})
	}
}

func TestHeadersAndRate(t *testing.T) {
	path := webFiles(t, "http_server_config:\n  headers: {X-Frame-Options: deny}\nrate_limit: {interval: 1h, burst: 1}\n", nil)
	s := gated(t, path)
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		resp, _, err := visit(t, s.URL()+"metrics", "", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want || resp.Header.Get("X-Frame-Options") != "deny" {
			t.Errorf("request %d: %d %v", i, resp.StatusCode, resp.Header)
		}
		resp, _, err = visit(t, s.URL()+"livez", "", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Frame-Options") != "deny" { // no probe counts against the rate
			t.Errorf("probe %d: %d %v", i, resp.StatusCode, resp.Header)
		}
	}
}

// inForce returns what the metric says.
func inForce(t *testing.T, s *running) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(s)
	return gathered(t, reg, "nodeprobe_web_config_last_reload_successful")
}

// Files that change are in force at the next connection, or request; files that
// are wrong are not.
func TestReload(t *testing.T) {
	pki := newTestPKI(t)
	path := webFiles(t, withTLS, pki.files())
	s := gated(t, path)
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := s.URL() + "metrics"
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
	if got := inForce(t, s); got != 0 {
		t.Errorf("metric %v", got)
	}
	serial()
	if got := strings.Count(s.log.String(), "private key does not match public key"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, s.log)
	}
	write("tls.key", next["tls.key"])
	second := serial()
	if second.Cmp(first) == 0 || inForce(t, s) != 1 {
		t.Errorf("serial %s is as before", second)
	}

	for _, bad := range []string{
		"basic_auth_users: {alice: x}\n", "http_server_config: {}\n",
		withTLS + "http_server_config: {http2: false}\n", withTLS + "rate_limit: {interval: 1s, burst: 1}\n",
	} {
		write("web.yml", bad)
		if got := serial(); got.Cmp(second) != 0 || inForce(t, s) != 0 {
			t.Errorf("%q: serial %s, metric %v", bad, got, inForce(t, s))
		}
	}
	for _, what := range []string{"TLS on or off", "http_server_config.http2", "rate_limit"} {
		if want := "web.yml: changing " + what + " needs a restart"; !strings.Contains(s.log.String(), want) {
			t.Errorf("no %q in\n%s", want, s.log)
		}
	}
	write("web.yml", withTLS)
	serial()
	if got := inForce(t, s); got != 1 {
		t.Errorf("what was good is there again: metric %v", got)
	}
	warned := func() int { return strings.Count(s.log.String(), "set webHealthListenAddress for probes") }
	if n := warned(); n != 0 {
		t.Errorf("warned %d times of users that there are not", n)
	}
	users := withTLS + "basic_auth_users:\n  alice: " + testHash(t) + "\n"
	write("web.yml", users)
	for _, test := range []struct {
		password string
		want     int
	}{{"secret", 200}, {"Secret", 401}} { // in this order: a wrong one is followed by a pause
		resp, _, err := visit(t, url, "alice", test.password, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != test.want {
			t.Errorf("password %s: %d, want %d", test.password, resp.StatusCode, test.want)
		}
	}
	if resp, _, err := visit(t, url, "", "", nil); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("no user: %v %v", resp, err)
	}
	write("web.yml", users+"http_server_config: {headers: {X-Frame-Options: deny}}\n")
	if _, _, err := visit(t, url, "", "", nil); err != nil || warned() != 1 {
		t.Errorf("warned %d times of probes that need a user; %v\n%s", warned(), err, s.log)
	}
	if s := serving(t, Config{File: path, HealthListen: "127.0.0.1:0"}, failing); strings.Contains(s.log.String(), "for probes") {
		t.Errorf("warned of probes that have an address of their own:\n%s", s.log)
	}
	if s := gated(t, path); !strings.Contains(s.log.String(), "for probes") {
		t.Errorf("no warning at the start:\n%s", s.log)
	}
}

// Files on a disk that hangs are waited for once, and what was good stays in force.
func TestReloadOfFileThatHangs(t *testing.T) {
	path := webFiles(t, "http_server_config:\n  headers:\n    X-Frame-Options: deny\n", nil)
	s := gated(t, path)
	frames := func() string {
		t.Helper()
		client := http.Client{Timeout: 30 * time.Second}
		resp, err := client.Get(s.URL() + "metrics")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.Header.Get("X-Frame-Options")
	}
	frames()
	answer := testtree.HangingFile(t, path)
	for range 3 {
		if got := frames(); got != "deny" || inForce(t, s) != 0 {
			t.Errorf("while the file hangs: header %q, in force %v", got, inForce(t, s))
		}
	}
	if n := strings.Count(s.log.String(), path+": no answer within"); n != 1 {
		t.Errorf("said %d times:\n%s", n, s.log)
	}
	answer("http_server_config:\n  headers:\n    X-Frame-Options: sameorigin\n")
	testtree.Eventually(t, "new file in force", func() bool { return frames() == "sameorigin" && inForce(t, s) == 1 })
}

// clientFrom returns a client that connects from an address of this machine.
func clientFrom(address string) *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: dialer.DialContext}}
}
