package web

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v2"
	"golang.org/x/crypto/bcrypt"
)

// FileError is what is wrong with a web configuration file: a line for each problem,
// "file:line: field: why" where the line is known.
type FileError struct{ Problems []string }

func (e *FileError) Error() string { return strings.Join(e.Problems, "\n") }

// CheckFile returns a *FileError unless New takes the web configuration file.
func CheckFile(path string) error {
	_, err := readConfig(path)
	return err
}

// config is a web configuration file, and the files that it names. It does not change.
type config struct {
	web.Config
	text   []byte            // the same in one piece, for the toolkit
	inputs map[string][]byte // the files read, by path
}

// restricted reports whether clients need a user or a certificate.
func (c *config) restricted() bool { return len(c.Users) > 0 || needsCert(c.TLSConfig.ClientAuth) }

func needsCert(clientAuth string) bool {
	return slices.Contains([]string{"RequireAnyClientCert", "RequireClientCert", "RequireAndVerifyClientCert"}, clientAuth)
}

// restartFor returns which change in next the toolkit would not notice; "" for none.
func (c *config) restartFor(next *config) string {
	switch {
	case c.TLSConfig.IsEnabled() != next.TLSConfig.IsEnabled():
		return "TLS on or off"
	case c.HTTPConfig.HTTP2 != next.HTTPConfig.HTTP2:
		return "http_server_config.http2"
	case c.RateLimiterConfig != next.RateLimiterConfig:
		return "rate_limit"
	}
	return ""
}

// readConfig reads and checks a web configuration file. It also rejects what the toolkit
// accepts though it would lock everybody out, or let in clients it was meant to keep out.
func readConfig(path string) (*config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &FileError{[]string{"read web configuration: " + err.Error()}}
	}
	r := reader{path: path, data: data, config: &config{inputs: map[string][]byte{path: data}}}
	r.HTTPConfig.HTTP2 = true // the toolkit's defaults
	r.TLSConfig.MinVersion, r.TLSConfig.MaxVersion = tls.VersionTLS12, tls.VersionTLS13
	if err := yaml.UnmarshalStrict(data, &r.Config); err != nil {
		return nil, &FileError{yamlProblems(path, err)}
	}
	var f fileText
	if err := yaml.Unmarshal(data, &f); err != nil {
		return nil, &FileError{yamlProblems(path, err)}
	}
	r.checkUsers()
	r.checkTLS(&f)
	r.checkRate()
	if r.text, err = yaml.Marshal(&f); err != nil {
		return nil, fmt.Errorf("copy web configuration: %w", err)
	}
	if len(r.problems) == 0 {
		if err := validate(r.text); err != nil {
			r.problems = yamlProblems(path, err)
		}
	}
	if len(r.problems) > 0 {
		return nil, &FileError{r.problems}
	}
	return r.config, nil
}

// fileText is a web configuration file that can be marshalled: the toolkit's own type
// replaces secrets by <secret>.
type fileText struct {
	TLS   map[string]any    `yaml:"tls_server_config,omitempty"`
	Users map[string]string `yaml:"basic_auth_users,omitempty"`
	Rest  map[string]any    `yaml:",inline"`
}

// reader checks one web configuration.
type reader struct {
	*config
	path     string
	data     []byte
	problems []string
}

// fail adds a problem of a field; key is what its line begins with.
func (r *reader) fail(field, key, why string) {
	place := r.path
	begin := regexp.MustCompile(`(^|[\s{,"'])` + regexp.QuoteMeta(key) + `["']?\s*:`)
	for i, line := range strings.Split(string(r.data), "\n") {
		if begin.MatchString(line) {
			place = fmt.Sprintf("%s:%d", r.path, i+1)
			break
		}
	}
	r.problems = append(r.problems, fmt.Sprintf("%s: %s: %s", place, field, why))
}

func (r *reader) failTLS(key, why string) { r.fail("tls_server_config."+key, key, why) }

func (r *reader) checkUsers() {
	for _, user := range slices.Sorted(maps.Keys(r.Users)) {
		// The library's errors quote from the text, which may be a password.
		if _, err := bcrypt.Cost([]byte(r.Users[user])); err != nil {
			r.fail("basic_auth_users["+user+"]", user, "not a password hashed with bcrypt; make it with htpasswd -nBC 10 "+user)
		}
	}
}

func (r *reader) checkRate() {
	switch l := r.RateLimiterConfig; {
	case l.Interval < 0:
		r.fail("rate_limit.interval", "interval", "must be 0s or more")
	case l.Interval > 0 && l.Burst < 1:
		r.fail("rate_limit.burst", "rate_limit", "with an interval, it must be 1 or more: no request would be served")
	}
}

func (r *reader) checkTLS(f *fileText) {
	t := &r.TLSConfig
	if len(f.TLS) == 0 {
		return
	}
	before := len(r.problems)
	r.inline(f.TLS, "cert", t.TLSCert, t.TLSCertPath)
	r.inline(f.TLS, "key", string(t.TLSKey), t.TLSKeyPath)
	r.inline(f.TLS, "client_ca", t.ClientCAsText, t.ClientCAs)
	read := len(r.problems) == before
	for _, key := range []string{"cert", "key"} {
		if text, _ := f.TLS[key].(string); text == "" && read {
			r.fail("tls_server_config."+key+"_file", "tls_server_config", "is missing, and so is "+key)
		}
	}
	ca, _ := f.TLS["client_ca"].(string)
	const ask = "; set client_auth_type: RequireAndVerifyClientCert"
	switch {
	case (ca != "" || t.ClientCAs != "") && read && !x509.NewCertPool().AppendCertsFromPEM([]byte(ca)):
		r.failTLS(cmp.Or(given("client_ca_file", t.ClientCAs), "client_ca"), "no certificate in PEM")
	case ca == "" && t.ClientAuth == "RequireAndVerifyClientCert" && read:
		// Go would take a certificate of any public authority.
		r.failTLS("client_auth_type", "needs client_ca_file or client_ca to verify with")
	case ca != "" && (t.ClientAuth == "" || t.ClientAuth == "NoClientCert"):
		r.failTLS(cmp.Or(given("client_ca_file", t.ClientCAs), "client_ca"), "no client is asked for a certificate"+ask)
	}
	if t.ClientAllowedSans != nil {
		switch {
		case len(t.ClientAllowedSans) == 0:
			r.failTLS("client_allowed_sans", "an empty list lets no client in")
		case !needsCert(t.ClientAuth): // the toolkit lets in, or panics at, a client without one
			r.failTLS("client_allowed_sans", "clients may come without a certificate"+ask)
		}
	}
	if t.MinVersion > t.MaxVersion {
		r.failTLS("min_version", "is above max_version")
	}
	if r.HTTPConfig.HTTP2 && len(t.CipherSuites) > 0 && t.MinVersion < tls.VersionTLS13 &&
		!slices.Contains(t.CipherSuites, web.Cipher(tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)) &&
		!slices.Contains(t.CipherSuites, web.Cipher(tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)) {
		r.failTLS("cipher_suites", "HTTP/2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256; add one, or set http2: false in http_server_config")
	}
}

// given returns the key if it has a value.
func given(key, value string) string {
	if value == "" {
		return ""
	}
	return key
}

// inline replaces the name of a file, relative to the web configuration file, by its
// content.
func (r *reader) inline(section map[string]any, key, text, file string) {
	delete(section, key+"_file")
	switch {
	case file == "":
		return
	case text != "":
		r.failTLS(key, key+"_file is set as well; remove one")
		return
	case !filepath.IsAbs(file):
		file = filepath.Join(filepath.Dir(r.path), file)
	}
	data, err := os.ReadFile(file)
	r.inputs[file] = data // nil if it cannot be read
	if err != nil {
		r.failTLS(key+"_file", err.Error())
	}
	section[key] = string(data)
}

var (
	yamlLine  = regexp.MustCompile(`line (\d+): `)
	yamlField = regexp.MustCompile(`field (\S+) not found in type \S+`)
	yamlType  = regexp.MustCompile(` in type \S+`)
	// What is in a file may be a password.
	yamlValue = regexp.MustCompile("(cannot unmarshal !!\\w+) `[^`]*`")
)

// yamlProblems returns the problems in an error of the YAML library or the toolkit.
func yamlProblems(path string, err error) (problems []string) {
	texts := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	if several, ok := errors.AsType[*yaml.TypeError](err); ok {
		texts = several.Errors
	}
	for _, text := range texts {
		text = yamlField.ReplaceAllString(yamlValue.ReplaceAllString(text, "$1"), "unknown field $1")
		text = yamlType.ReplaceAllString(text, "")
		place := path
		if line := yamlLine.FindStringSubmatch(text); line != nil {
			place, text = path+":"+line[1], strings.Replace(text, line[0], "", 1)
		}
		problems = append(problems, place+": "+text)
	}
	return problems
}
