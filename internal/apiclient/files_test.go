package apiclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// A token file on a disk that hangs keeps nobody waiting for long, and is read again
// when it answers.
func TestTokenFileThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	answer := testtree.HangingFile(t, path)
	f := newTokenFile(path)
	for range 3 { // waited for once
		if _, at, err := f.Get(); !at.IsZero() || !errors.Is(err, deadline.ErrNoAnswer) || !strings.Contains(err.Error(), path) {
			t.Fatalf("error %v", err)
		}
	}
	answer("secret\n")
	testtree.Eventually(t, "token", func() bool {
		token, _, err := f.Get()
		return err == nil && token == "secret"
	})
	// What is wrong with the file later leaves the token as it is.
	for text, want := range map[string]string{"": "is empty", " \n": "is empty"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Doubt(time.Now())
		if token, _, err := f.Get(); token != "secret" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v, want %s", text, token, err, want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if token, _, err := f.Get(); token != "secret" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %q, %v", token, err)
	}
}

// A request without a token is not sent, and says what is wrong with the file.
func TestNoTokenYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	client, err := New(Config{
		API: &rest.Config{Host: "http://127.0.0.1:1", BearerTokenFile: path}, Origin: "Config.API", NodeName: "n",
		UserAgent: "nodeprobe/v1.2.3", OnReconnect: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Nodes.Get(t.Context(), "n"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "read token: open "+path) {
		t.Errorf("got %v", err)
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{}
	a.key, a.cert, a.pem = issue(t, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func issue(t *testing.T, by *authority, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, parentKey := c, key
	if by != nil {
		parent, parentKey = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, made, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// rotation is an API server, and the files of a client of it.
type rotation struct {
	t             *testing.T
	ca, cert, key string // files
	clients       *authority
	api           *httptest.Server

	mu      sync.Mutex // guards the rest
	serving tls.Certificate
	seen    string // the client's name; "" without a certificate
	conns   int

	authorization string
}

func newRotation(t *testing.T) *rotation {
	dir := t.TempDir()
	r := &rotation{
		t: t, ca: filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "client.crt"), key: filepath.Join(dir, "client.key"),
		clients: newAuthority(t, "clients"),
	}
	r.api = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if body, err := io.ReadAll(req.Body); err != nil || (string(body) != "") != (req.Method == http.MethodPatch) {
			t.Errorf("%s of %q, %v", req.Method, body, err)
		}
		r.mu.Lock()
		r.authorization, r.seen = req.Header.Get("Authorization"), ""
		for _, cert := range req.TLS.PeerCertificates {
			r.seen = cert.Subject.CommonName
		}
		r.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","uid":"1"}}`)
	}))
	pool := x509.NewCertPool()
	pool.AddCert(r.clients.cert)
	r.api.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.conns++
		return &r.serving, nil
	}}
	r.api.StartTLS()
	t.Cleanup(r.api.Close)
	return r
}

func (r *rotation) write(path string, data []byte) {
	r.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// serve has the server use a certificate of that authority, for new connections.
func (r *rotation) serve(by *authority) {
	key, cert, _ := issue(r.t, by, &x509.Certificate{
		Subject: pkix.Name{CommonName: "api"}, DNSNames: []string{"example.com"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serving = tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// identify writes a certificate for the client.
func (r *rotation) identify(name string) {
	key, _, cert := issue(r.t, r.clients, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	r.write(r.cert, cert)
	r.write(r.key, keyPEM(r.t, key))
}

func (r *rotation) client() *Clients {
	r.t.Helper()
	c, err := New(Config{
		API: &rest.Config{Host: r.api.URL, TLSClientConfig: rest.TLSClientConfig{
			ServerName: "example.com", CAFile: r.ca, CertFile: r.cert, KeyFile: r.key,
		}},
		Origin: "Config.API", NodeName: "n", UserAgent: "nodeprobe/v1.2.3", OnReconnect: func() {},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// get makes a request, and returns as whom, and over how many connections until now.
func (r *rotation) get(c *Clients) (name string, conns int, err error) {
	ctx, stop := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer stop()
	_, err = c.Nodes.Get(ctx, "n")
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen, r.conns, err
}

func rotatorOf(c *Clients) *rotator { return c.ForNodes.http.Transport.(*rotator) }

// due lets as much time pass as there is between two looks at the files.
func due(r *rotator) {
	r.mu.Lock()
	r.looked = r.looked.Add(-rotationInterval)
	r.mu.Unlock()
	r.files.cert.Doubt(time.Now())
	r.files.ca.Doubt(time.Now())
}

// A new certificate of the client is used from the next look on, over new connections,
// and a new CA is trusted from then on.
func TestRotation(t *testing.T) {
	r := newRotation(t)
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	r.serve(first)
	r.write(r.ca, first.pem)
	r.identify("one")
	c := r.client()
	want := func(step, wantName string, wantConns int) {
		t.Helper()
		if name, conns, err := r.get(c); name != wantName || conns != wantConns || err != nil {
			t.Errorf("%s: as %s, %d connections, %v; want %s, %d", step, name, conns, err, wantName, wantConns)
		}
	}
	want("at first", "one", 1)
	r.identify("two")
	want("before a look", "one", 1)
	due(rotatorOf(c))
	want("after a look", "two", 2)
	due(rotatorOf(c))
	want("nothing new", "two", 2)

	r.write(r.ca, append(first.pem, second.pem...))
	due(rotatorOf(c))
	want("one more CA", "two", 3)
	r.serve(second)
	c.ForNodes.tracker.CloseAll()
	want("its certificate", "two", 4)
	r.write(r.ca, []byte("-----BEGIN CERT"))
	due(rotatorOf(c))
	want("half of a file", "two", 4)
	r.serve(first)
	c.ForNodes.tracker.CloseAll()
	want("the CA from before", "two", 5)
}

// A CA is looked for when the server's certificate is not trusted, and the request is made
// again: with its body.
func TestNewCA(t *testing.T) {
	r := newRotation(t)
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	r.serve(first)
	r.write(r.ca, first.pem)
	r.identify("one")
	c := r.client()
	patch := func() error {
		_, err := c.Nodes.PatchStatus(t.Context(), "n", []byte(`{"status":{}}`))
		return err
	}
	if err := patch(); err != nil {
		t.Fatal(err)
	}
	r.serve(second)
	c.ForNodes.tracker.CloseAll()
	for _, text := range []string{string(first.pem), "-----BEGIN CERT", ""} {
		r.write(r.ca, []byte(text))
		if err := patch(); !errors.As(err, new(x509.UnknownAuthorityError)) {
			t.Errorf("nothing new in %q: %v", text, err)
		}
	}
	r.write(r.ca, second.pem)
	if err := patch(); err != nil {
		t.Error(err)
	}
	if _, err := c.Get(t.Context(), "/api"); err != nil {
		t.Errorf("another writer: %v", err)
	}
}

// Each writer has a new CA an interval after the file has changed, whatever others have
// read meanwhile.
func TestRotationInterval(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.crt")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	synctest.Test(t, func(t *testing.T) {
		f := &files{ca: newCAFile(path)}
		connect := func() *rotator {
			ca, _, _ := f.ca.Get()
			return &rotator{files: f, looked: time.Now(), current: &trusting{nil, ca}, build: func([]byte) (http.RoundTripper, error) { return http.DefaultTransport, nil }}
		}
		a := connect()
		time.Sleep(rotationInterval - time.Minute)
		b := connect()
		time.Sleep(time.Minute)
		a.look(time.Now())
		time.Sleep(2 * time.Second)
		write("second")
		time.Sleep(rotationInterval - time.Minute)
		b.look(time.Now())
		time.Sleep(time.Minute)
		a.look(time.Now())
		if string(a.current.ca) != "second" || string(b.current.ca) != "second" {
			t.Errorf("they have %s and %s", a.current.ca, b.current.ca)
		}
	})
}

// While the disk hangs, requests and handshakes go on with what was read last.
func TestRotationThatHangs(t *testing.T) {
	r := newRotation(t)
	ca := newAuthority(t, "ca")
	r.serve(ca)
	r.write(r.ca, ca.pem)
	r.identify("one")
	c := r.client()
	if _, _, err := r.get(c); err != nil {
		t.Fatal(err)
	}
	keyText, err := os.ReadFile(r.key)
	if err != nil {
		t.Fatal(err)
	}
	answerCA, answerKey := testtree.HangingFile(t, r.ca), testtree.HangingFile(t, r.key)
	for range 2 {
		due(rotatorOf(c))
		c.ForNodes.tracker.CloseAll() // the handshake asks for the certificate
		if name, _, err := r.get(c); name != "one" || err != nil {
			t.Errorf("as %s, %v", name, err)
		}
	}
	answerCA(string(ca.pem))
	answerKey(string(keyText))
	testtree.Eventually(t, "files that can be read", func() bool {
		_, _, caErr := rotatorOf(c).files.ca.Get()
		_, _, certErr := rotatorOf(c).files.cert.Get()
		return caErr == nil && certErr == nil
	})
}

// Of several credentials those are used that client-go would use: a plugin is not even
// started where there are others, and a token serves until its file can be read.
func TestPrecedence(t *testing.T) {
	r := newRotation(t)
	ca := newAuthority(t, "ca")
	r.serve(ca)
	r.write(r.ca, ca.pem)
	r.identify("one")
	token, plugin := filepath.Join(t.TempDir(), "token"), &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode, Command: "/bin/sh",
	}
	tlsConfig := rest.TLSClientConfig{ServerName: "example.com", CAFile: r.ca, CertFile: r.cert, KeyFile: r.key}
	withoutCert := rest.TLSClientConfig{ServerName: "example.com", CAFile: r.ca}
	for _, test := range []struct {
		name          string
		cfg           rest.Config
		file          string // the token's; "" for none
		as, authorize string
		plugin        bool
	}{
		{"a plugin", rest.Config{ExecProvider: plugin, TLSClientConfig: withoutCert}, "", "", "Bearer plugin", true},
		{"a certificate and a plugin", rest.Config{ExecProvider: plugin, TLSClientConfig: tlsConfig}, "", "one", "", false},
		{"a token file and a plugin", rest.Config{ExecProvider: plugin, BearerTokenFile: token, TLSClientConfig: withoutCert}, "file", "", "Bearer file", false},
		{"all of them", rest.Config{ExecProvider: plugin, BearerTokenFile: token, TLSClientConfig: tlsConfig}, "file", "one", "Bearer file", false},
		{"a token and its file", rest.Config{BearerToken: "old", BearerTokenFile: token, TLSClientConfig: withoutCert}, "file", "", "Bearer file", false},
		{"a token and no file", rest.Config{BearerToken: "old", BearerTokenFile: token, TLSClientConfig: withoutCert}, "", "", "Bearer old", false},
	} {
		os.Remove(token)
		if test.file != "" {
			r.write(token, []byte(test.file))
		}
		test.cfg.Host = r.api.URL
		for name, connect := range map[string]func() (send func() error, err error){
			"client-go": func() (func() error, error) {
				client, err := rest.HTTPClientFor(&test.cfg)
				return func() error {
					resp, err := client.Get(r.api.URL)
					if err == nil {
						resp.Body.Close()
						client.CloseIdleConnections()
					}
					return err
				}, err
			},
			"apiclient": func() (func() error, error) {
				c, err := New(Config{API: &test.cfg, Origin: "Config.API", NodeName: "n", OnReconnect: func() {}})
				return func() error {
					defer c.Close()
					_, _, err := r.get(c)
					return err
				}, err
			},
		} {
			started := filepath.Join(t.TempDir(), "started") // another one each time, as client-go keeps what a plugin has said
			plugin.Args = []string{"-c", "touch " + started + `; echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"plugin"}}'`}
			send, err := connect()
			if err == nil {
				err = send()
			}
			_, statErr := os.Stat(started)
			r.mu.Lock()
			if err != nil || r.seen != test.as || r.authorization != test.authorize || (statErr == nil) != test.plugin {
				t.Errorf("%s: %s: as %q, %q, plugin %t, %v; want %q, %q, %t", name, test.name, r.seen, r.authorization, statErr == nil, err, test.as, test.authorize, test.plugin)
			}
			r.mu.Unlock()
		}
	}
}

// What is wrong with a file is an error from the start.
func TestFilesAtStart(t *testing.T) {
	r := newRotation(t)
	ca := newAuthority(t, "ca")
	for _, test := range []struct {
		name, want string
		damage     func()
	}{
		{"no certificate", "no such file", func() { os.Remove(r.cert) }},
		{"no CA", "no such file", func() { os.Remove(r.ca) }},
		{"an empty CA", "is empty", func() { r.write(r.ca, nil) }},
		{"a wrong CA", "unable to parse bytes as PEM block", func() { r.write(r.ca, []byte("x")) }},
		{"a wrong key", "failed to find any PEM data in key input", func() { r.write(r.key, []byte("x")) }},
	} {
		r.write(r.ca, ca.pem)
		r.identify("one")
		test.damage()
		_, err := New(Config{API: &rest.Config{Host: r.api.URL, TLSClientConfig: rest.TLSClientConfig{
			CAFile: r.ca, CertFile: r.cert, KeyFile: r.key,
		}}, Origin: "Config.API", OnReconnect: func() {}})
		if err == nil || !strings.Contains(err.Error(), "use Config.API: connect to "+r.api.URL) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
}
