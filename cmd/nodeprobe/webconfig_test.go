package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// webFiles writes files into a directory, and returns the web configuration's.
func webFiles(t *testing.T, config string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	all := maps.Clone(files)
	if all == nil {
		all = map[string]string{}
	}
	all["web.yml"] = config
	for name, content := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "web.yml")
}

// indented is a PEM as a block in a YAML file.
func indented(pem string) string {
	return "|\n    " + strings.ReplaceAll(strings.TrimSpace(pem), "\n", "\n    ") + "\n"
}

const (
	withTLS = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
)

func TestGoodWebConfigs(t *testing.T) {
	pki := newTestPKI(t)
	files := pki.files()
	for _, test := range []struct {
		name, config     string
		tls, needCert    bool
		users, headers   int
		limited, noHTTP2 bool
	}{
		{name: "empty"},
		{name: "comments only", config: "# tls_server_config:\n"},
		{name: "empty sections", config: "tls_server_config:\nhttp_server_config: {}\nbasic_auth_users:\n"},
		{name: "TLS", config: withTLS, tls: true},
		{name: "inline", config: "tls_server_config:\n  cert: " + indented(files["tls.crt"]) + "  key: " + indented(files["tls.key"]), tls: true},
		{name: "users without TLS", config: "basic_auth_users:\n  alice: " + testHash(t) + "\n", users: 1},
		{name: "client certificates", config: withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n", tls: true, needCert: true},
		{name: "any client certificate", config: withTLS + "  client_auth_type: RequireAnyClientCert\n", tls: true, needCert: true},
		{name: "an old name", config: withTLS + "  client_auth_type: RequireClientCert\n", tls: true, needCert: true},
		{name: "if given", config: withTLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n", tls: true},
		{name: "names", config: withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  client_allowed_sans: [prometheus]\n", tls: true, needCert: true},
		{name: "no HTTP/2", config: withTLS + "http_server_config: {http2: false}\n", tls: true, noHTTP2: true},
		{name: "rate limit", config: "rate_limit: {interval: 1s, burst: 2}\n", limited: true},
		{name: "rate limit off", config: "rate_limit: {interval: 0s}\n"},
		// Every field of the format's documentation.
		{
			name: "all", tls: true, needCert: true, users: 2, headers: 5, limited: true,
			config: withTLS + `  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus, 192.0.2.1]
  min_version: TLS12
  max_version: TLS13
  cipher_suites:
  - TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
  - TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
  prefer_server_cipher_suites: true
  curve_preferences: [X25519, CurveP256]
http_server_config:
  http2: true
  headers:
    Content-Security-Policy: default-src 'self'
    X-Frame-Options: deny
    X-Content-Type-Options: nosniff
    X-XSS-Protection: "0"
    Strict-Transport-Security: max-age=600
basic_auth_users:
  alice: ` + testHash(t) + `
  bob: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG
rate_limit:
  interval: 100ms
  burst: 10
`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, err := loadWebConfig(webFiles(t, test.config, files))
			if err != nil {
				t.Fatal(err)
			}
			if (w.tls != nil) != test.tls || w.needCert != test.needCert || len(w.users) != test.users ||
				len(w.headers) != test.headers || (w.limit != nil) != test.limited {
				t.Errorf("got %+v", w)
			}
			if w.tls != nil && (w.tls.NextProtos[0] == "h2") == test.noHTTP2 {
				t.Errorf("protocols %q", w.tls.NextProtos)
			}
			if w.stale() {
				t.Error("stale, though nothing has changed")
			}
		})
	}
}

func TestBadWebConfigs(t *testing.T) {
	pki := newTestPKI(t)
	files := pki.files()
	files["other.key"] = newTestPKI(t).files()["tls.key"]
	files["empty"] = ""
	for _, test := range []struct{ name, config, want string }{
		{"no YAML", "a: [\n", ":1: did not find expected node content"},
		{"junk", "hWkNKCp3fvIx3jKnsaBI\n", `:1: "hWkNKCp3fvIx3jKnsaBI" is not a mapping of fields to values`},
		{"unknown section", "tls_config: {}\n", ":1: tls_config: unknown field"},
		{"unknown field", withTLS + "  cert_filse: a\n", ":4: tls_server_config.cert_filse: unknown field"},
		{"twice", withTLS + "  key_file: a\n", ":4: tls_server_config.key_file: is set in line 3 already"},
		{"type", "http_server_config:\n  http2: maybe\n", `:2: http_server_config.http2: "maybe" is not true or false`},
		{"no certificate", "tls_server_config:\n  key_file: tls.key\n", ":1: tls_server_config.cert_file: is missing; there is no cert either"},
		{"no key", "tls_server_config:\n  cert_file: tls.crt\n", ":1: tls_server_config.key_file: is missing; there is no key either"},
		{"empty names", "tls_server_config:\n  cert_file: \"\"\n  key_file: \"\"\n", ":2: tls_server_config.cert_file: is missing; there is no cert either"},
		{"no such file", "tls_server_config:\n  cert_file: gone\n  key_file: tls.key\n", ":2: tls_server_config.cert_file: open DIR/gone: no such file or directory"},
		{"both", withTLS + "  cert: a\n", ":4: tls_server_config.cert: cert_file is set as well"},
		{"another's key", "tls_server_config:\n  cert_file: tls.crt\n  key_file: other.key\n", ":2: tls_server_config.cert_file: no certificate with its key: private key does not match public key"},
		{"no CA", withTLS + "  client_auth_type: RequireAndVerifyClientCert\n", ":4: tls_server_config.client_auth_type: without client_ca_file or client_ca, there is nothing to verify with"},
		{"CA for nobody", withTLS + "  client_ca_file: ca.crt\n", ":4: tls_server_config.client_ca_file: no client is asked for a certificate; set client_auth_type: RequireAndVerifyClientCert"},
		{"empty CA", withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: empty\n", ":5: tls_server_config.client_ca_file: no certificate in PEM"},
		{"names of nobody", withTLS + "  client_allowed_sans: [a]\n", ":4: tls_server_config.client_allowed_sans: no client is asked for a certificate; set client_auth_type: RequireAndVerifyClientCert"},
		{"no names", withTLS + "  client_auth_type: RequireAnyClientCert\n  client_allowed_sans: []\n", ":5: tls_server_config.client_allowed_sans: an empty list would let nobody in"},
		{"auth type", withTLS + "  client_auth_type: x\n", `:4: tls_server_config.client_auth_type: "x" is not "NoClientCert" or "RequestClientCert" or "RequireAndVerifyClientCert" or "RequireAnyClientCert" or "RequireClientCert" or "VerifyClientCertIfGiven"`},
		{"version", withTLS + "  min_version: TLS111\n", `:4: tls_server_config.min_version: "TLS111" is not "TLS10" or "TLS11" or "TLS12" or "TLS13"`},
		{"versions", withTLS + "  min_version: TLS13\n  max_version: TLS12\n", ":4: tls_server_config.min_version: TLS13 is above max_version, TLS12"},
		{"curve", withTLS + "  curve_preferences: [X25519, CurveP257]\n", `:4: tls_server_config.curve_preferences[1]: "CurveP257" is not "CurveP256" or "CurveP384" or "CurveP521" or "X25519"`},
		{"HTTP/2 cipher", withTLS + "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\n", ":4: tls_server_config.cipher_suites: HTTP/2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256; or set http2: false in http_server_config"},
		{"header", "http_server_config:\n  headers:\n    Content-Type: foo\n", ":2: http_server_config.headers[Content-Type]: this header cannot be set; these can: Content-Security-Policy, Strict-Transport-Security, X-Content-Type-Options, X-Frame-Options, X-XSS-Protection"},
		{"header's value", "http_server_config:\n  headers:\n    X-Frame-Options: foo\n", `:2: http_server_config.headers[X-Frame-Options]: "foo" is not "deny" or "sameorigin"`},
		{"password", "basic_auth_users:\n  alice: " + testHash(t) + "\n  john: doe\n", ":3: basic_auth_users[john]: not a password hashed with bcrypt, as by htpasswd -nBC 10 USER"},
		{"rate", "rate_limit:\n  interval: 1s\n", ":1: rate_limit.burst: with an interval, it must be 1 or more: no request would be answered"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := webFiles(t, test.config, files)
			_, err := loadWebConfig(path)
			if err == nil {
				t.Fatal("no error")
			}
			want := path + strings.ReplaceAll(test.want, "DIR", filepath.Dir(path))
			if err.Error() != want {
				t.Errorf("got\n%v, want\n%s", err, want)
			}
		})
	}
	if _, err := loadWebConfig("/nonexistent/web.yml"); err == nil || err.Error() != "read web configuration: open /nonexistent/web.yml: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

// A cipher of no version, and all that is wrong at once.
func TestBadWebConfigLines(t *testing.T) {
	path := webFiles(t, withTLS+"  cipher_suites: [A]\n  min_version: B\nbasic_auth_users: {a: b}\n", newTestPKI(t).files())
	_, err := loadWebConfig(path)
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 4 { // HTTP/2's too
		t.Fatalf("got %v", err)
	}
	for i, want := range []string{":4: tls_server_config.cipher_suites[0]: \"A\" is not", ":4: tls_server_config.cipher_suites: HTTP/2", ":5: tls_server_config.min_version: \"B\"", ":6: basic_auth_users[a]: "} {
		if !strings.HasPrefix(lines[i], path+want) {
			t.Errorf("line %d: got %s, want %s", i, lines[i], want)
		}
	}
}

// The command ends with the exit code of a wrong configuration, and one line.
func TestRunWithBadWebConfig(t *testing.T) {
	path := webFiles(t, "basic_auth_users: {alice: secret}\n", nil)
	s := start(t.Context(), "--config", writeConfig(t, "webConfigFile: "+path+"\n"), "--web.listen-address=127.0.0.1:0")
	if code := s.wait(t); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	if want := "nodeprobe: " + path + ":1: basic_auth_users[alice]: not a password"; !strings.Contains(s.stderr.String(), want) || strings.Contains(s.stderr.String(), "secret") {
		t.Errorf("got %s, want %s", &s.stderr, want)
	}
}
