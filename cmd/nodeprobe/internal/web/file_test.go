package web

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v2"
)

// set sets a string, or what the toolkit has for one that is not to be printed.
func set[T ~string](s *T, to string) { *s = T(to) }

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

func TestGoodFiles(t *testing.T) {
	pki := newTestPKI(t)
	files := pki.files()
	for _, test := range []struct {
		name, config     string
		tls, restricted  bool
		users, headers   int
		limited, noHTTP2 bool
	}{
		{name: "empty"},
		{name: "comments only", config: "# tls_server_config:\n"},
		{name: "empty sections", config: "tls_server_config:\nhttp_server_config: {}\nbasic_auth_users:\n"},
		{name: "TLS", config: withTLS, tls: true},
		{name: "inline", config: "tls_server_config:\n  cert: " + indented(files["tls.crt"]) + "  key: " + indented(files["tls.key"]), tls: true},
		{name: "users without TLS", config: "basic_auth_users:\n  alice: " + testHash(t) + "\n", users: 1, restricted: true},
		{name: "client certificates", config: withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n", tls: true, restricted: true},
		{name: "any client certificate", config: withTLS + "  client_auth_type: RequireAnyClientCert\n", tls: true, restricted: true},
		{name: "an old name", config: withTLS + "  client_auth_type: RequireClientCert\n", tls: true, restricted: true},
		{name: "if given", config: withTLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n", tls: true},
		{name: "names", config: withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  client_allowed_sans: [prometheus]\n", tls: true, restricted: true},
		{name: "no HTTP/2", config: withTLS + "http_server_config: {http2: false}\n", tls: true, noHTTP2: true},
		{name: "texts that are no strings", config: "basic_auth_users:\n  0123: " + testHash(t) + "\nhttp_server_config: {http2: yes, headers: {X-XSS-Protection: 0}}\n", users: 1, headers: 1, restricted: true},
		{name: "merged", config: "tls_server_config:\n  <<: {cert_file: tls.crt}\n  key_file: tls.key\n", tls: true},
		{name: "rate limit", config: "rate_limit: {interval: 1s, burst: 2}\n", limited: true},
		{name: "rate limit off", config: "rate_limit: {interval: 0s}\n"},
		// Every field of the format's documentation.
		{
			name: "all", tls: true, restricted: true, users: 2, headers: 5, limited: true,
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
			path := webFiles(t, test.config, files)
			if err := CheckFile(path); err != nil {
				t.Fatal(err)
			}
			c, err := readConfig(path)
			if err != nil {
				t.Fatal(err)
			}
			if c.TLSConfig.IsEnabled() != test.tls || c.restricted() != test.restricted || len(c.Users) != test.users ||
				len(c.HTTPConfig.Header) != test.headers || (c.RateLimiterConfig.Interval > 0) != test.limited || c.HTTPConfig.HTTP2 == test.noHTTP2 {
				t.Errorf("got %+v", c)
			}
			if c.stale() {
				t.Error("stale, though nothing has changed")
			}
			// The copy says the same, with the files' content in the place of their names.
			copied := web.Config{HTTPConfig: web.HTTPConfig{HTTP2: true}, TLSConfig: web.TLSConfig{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13}}
			if err := yaml.UnmarshalStrict(c.text, &copied); err != nil {
				t.Fatal(err)
			}
			want := c.Config
			if !test.tls {
				want.TLSConfig = copied.TLSConfig // whose versions do not matter
			}
			if copied.TLSConfig.IsEnabled() != test.tls {
				t.Errorf("TLS is enabled: %v", !test.tls)
			}
			if test.tls {
				set(&want.TLSConfig.TLSCert, files["tls.crt"])
				set(&want.TLSConfig.TLSKey, files["tls.key"])
				if want.TLSConfig.ClientCAs != "" {
					want.TLSConfig.ClientCAsText = files["ca.crt"]
				}
				want.TLSConfig.TLSCertPath, want.TLSConfig.TLSKeyPath, want.TLSConfig.ClientCAs = "", "", ""
			}
			trim := func(c *web.TLSConfig) { // as YAML does
				set(&c.TLSCert, strings.TrimSpace(c.TLSCert))
				set(&c.TLSKey, strings.TrimSpace(string(c.TLSKey)))
			}
			trim(&want.TLSConfig)
			trim(&copied.TLSConfig)
			if !reflect.DeepEqual(copied, want) {
				t.Errorf("copied\n%+v, want\n%+v", copied, want)
			}
		})
	}
}

func TestBadFiles(t *testing.T) {
	pki := newTestPKI(t)
	files := pki.files()
	files["other.key"] = newTestPKI(t).files()["tls.key"]
	files["empty"] = ""
	const ask = "; set client_auth_type: RequireAndVerifyClientCert"
	for _, test := range []struct{ name, config, want string }{
		{"no YAML", "a: [\n", ":1: did not find expected node content"},
		{"junk", "hWkNKCp3fvIx3jKnsaBI\n", ":1: cannot unmarshal !!str into web.Config"},
		{"unknown section", "tls_config: {}\n", ":1: unknown field tls_config"},
		{"unknown field", withTLS + "  cert_filse: a\n", ":4: unknown field cert_filse"},
		{"twice", withTLS + "  key_file: a\n", ":4: field key_file already set"},
		{"type", "http_server_config:\n  http2: maybe\n", ":2: cannot unmarshal !!str into bool"},
		{"type of a secret", "basic_auth_users: [secret]\n", ":1: cannot unmarshal !!seq into map[string]config.Secret"},
		{"no certificate", "tls_server_config:\n  key_file: tls.key\n", ":1: tls_server_config.cert_file: is missing, and so is cert"},
		{"no key", "tls_server_config:\n  cert_file: tls.crt\n", ":1: tls_server_config.key_file: is missing, and so is key"},
		{"empty names", "tls_server_config:\n  cert_file: \"\"\n  key_file: \"\"\n", ":1: tls_server_config.cert_file: is missing, and so is cert\nPATH:1: tls_server_config.key_file: is missing, and so is key"},
		{"only a version", "tls_server_config:\n  min_version: TLS13\n  cert_file: \n", ":1: tls_server_config.cert_file: is missing, and so is cert\nPATH:1: tls_server_config.key_file: is missing, and so is key"},
		{"only names of clients", "tls_server_config:\n  client_allowed_sans: [a]\n  cert_file: tls.crt\n  key_file: tls.key\n", ":2: tls_server_config.client_allowed_sans: clients may come without a certificate" + ask},
		{"no such file", "tls_server_config:\n  cert_file: gone\n  key_file: tls.key\n", ":2: tls_server_config.cert_file: open DIR/gone: no such file or directory"},
		{"both", withTLS + "  cert: a\n", ":4: tls_server_config.cert: cert_file is set as well; remove one"},
		{"another's key", "tls_server_config:\n  cert_file: tls.crt\n  key_file: other.key\n", ": failed to load X509KeyPair: tls: private key does not match public key"},
		{"no CA", withTLS + "  client_auth_type: RequireAndVerifyClientCert\n", ":4: tls_server_config.client_auth_type: needs client_ca_file or client_ca to verify with"},
		{"CA for nobody", withTLS + "  client_ca_file: ca.crt\n", ":4: tls_server_config.client_ca_file: no client is asked for a certificate" + ask},
		{"empty CA", withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: empty\n", ":5: tls_server_config.client_ca_file: no certificate in PEM"},
		{"CA in no PEM", withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca: x\n", ":5: tls_server_config.client_ca: no certificate in PEM"},
		{"names, if given", withTLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n  client_allowed_sans: [a]\n", ":6: tls_server_config.client_allowed_sans: clients may come without a certificate" + ask},
		{"no names", withTLS + "  client_auth_type: RequireAnyClientCert\n  client_allowed_sans: []\n", ":5: tls_server_config.client_allowed_sans: an empty list lets no client in"},
		{"auth type", withTLS + "  client_auth_type: x\n", ": invalid ClientAuth: x"},
		{"version", withTLS + "  min_version: TLS111\n", ": unknown TLS version: TLS111"},
		{"versions", withTLS + "  min_version: TLS13\n  max_version: TLS12\n", ":4: tls_server_config.min_version: is above max_version"},
		{"curve", withTLS + "  curve_preferences: [X25519, CurveP257]\n", ": unknown curve: CurveP257"},
		{"cipher", withTLS + "  cipher_suites: [A]\n", ": unknown cipher: A"},
		{"HTTP/2 cipher", withTLS + "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\n", ":4: tls_server_config.cipher_suites: HTTP/2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256; add one, or set http2: false in http_server_config"},
		{"header", "http_server_config:\n  headers:\n    Content-Type: foo\n", `: HTTP header "Content-Type" can not be configured`},
		{"header's value", "http_server_config:\n  headers:\n    X-Frame-Options: foo\n", `: invalid value for X-Frame-Options. Expected one of: ["deny" "sameorigin"], but got: "foo"`},
		{"password", "basic_auth_users:\n  alice: " + testHash(t) + "\n  john: doe\n", ":3: basic_auth_users[john]: not a password hashed with bcrypt; make it with htpasswd -nBC 10 john"},
		{"rate", "rate_limit:\n  interval: 1s\n", ":1: rate_limit.burst: with an interval, it must be 1 or more: no request would be served"},
		{"rate below none", "rate_limit:\n  interval: -1s\n", ":2: rate_limit.interval: must be 0s or more"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := webFiles(t, test.config, files)
			_, err := readConfig(path)
			if err == nil {
				t.Fatal("no error")
			}
			want := path + strings.NewReplacer("DIR", filepath.Dir(path), "PATH", path).Replace(test.want)
			if err.Error() != want {
				t.Errorf("got\n%v, want\n%s", err, want)
			}
			if _, err := New(t.Context(), Config{Listen: "127.0.0.1:0", File: path}, slog.New(slog.DiscardHandler)); err == nil {
				t.Error("it is served with")
			} else if _, ok := errors.AsType[*FileError](err); !ok {
				t.Errorf("%T", err)
			}
		})
	}
	if _, err := readConfig("/nonexistent/web.yml"); err == nil || err.Error() != "read web configuration: open /nonexistent/web.yml: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

// All that is wrong is reported at once.
func TestBadFileLines(t *testing.T) {
	path := webFiles(t, withTLS+"  client_allowed_sans: []\nbasic_auth_users: {a: b}\nrate_limit: {interval: 1s}\n", newTestPKI(t).files())
	err := CheckFile(path)
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	want := []string{":5: basic_auth_users[a]: ", ":4: tls_server_config.client_allowed_sans: ", ":6: rate_limit.burst: "}
	if len(lines) != len(want) {
		t.Fatalf("got %v", err)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], path+want[i]) {
			t.Errorf("line %d: got %s, want %s", i, lines[i], want[i])
		}
	}
}
