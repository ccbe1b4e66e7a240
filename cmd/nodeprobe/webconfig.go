package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
	"k8s.io/client-go/util/flowcontrol"
)

// webFile is a web configuration file in the format that Prometheus' exporters
// share; "promtool check web-config" reads it too. The exporters' own package is
// not used: it makes the program 4 MB larger.
type webFile struct {
	TLS       webTLS            `yaml:"tls_server_config"`
	HTTP      webHTTP           `yaml:"http_server_config"`
	Users     map[string]string `yaml:"basic_auth_users"`
	RateLimit webRateLimit      `yaml:"rate_limit"`
}

type webHTTP struct {
	HTTP2   bool              `yaml:"http2"`
	Headers map[string]string `yaml:"headers"`
}

type webRateLimit struct {
	Interval time.Duration `yaml:"interval"`
	Burst    int32         `yaml:"burst"`
}

// webHeaders are the headers that may be set, and to what, if not to anything.
var webHeaders = map[string][]string{
	"Content-Security-Policy":   nil,
	"Strict-Transport-Security": nil,
	"X-Content-Type-Options":    {"nosniff"},
	"X-Frame-Options":           {"deny", "sameorigin"},
	"X-XSS-Protection":          nil,
}

// webConfig is what a web configuration file and the files that it names mean.
// It does not change.
type webConfig struct {
	tls      *tls.Config // nil for plain HTTP
	needCert bool        // of every client that wants more than to know the health
	users    map[string]string
	headers  map[string]string
	limit    flowcontrol.PassiveRateLimiter // nil for none

	inputs map[string][]byte // the files read, by path
}

// webReader reads one web configuration.
type webReader struct {
	path     string
	root     *yaml.Node // nil in an empty file
	inputs   map[string][]byte
	problems []problem
}

// loadWebConfig reads a web configuration file. The error has one line for each
// problem, which names file, line and field.
func loadWebConfig(path string) (*webConfig, error) {
	r := &webReader{path: path, inputs: map[string][]byte{}}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read web configuration: %w", err)
	}
	r.inputs[path] = data
	f := webFile{HTTP: webHTTP{HTTP2: true}, TLS: webTLS{MinVersion: "TLS12", MaxVersion: "TLS13"}}
	r.decode(data, &f)
	w := &webConfig{users: f.Users, headers: f.HTTP.Headers, inputs: r.inputs}
	if len(r.problems) == 0 {
		r.users(f.Users)
		r.headers(f.HTTP.Headers)
		w.limit = r.rateLimit(f.RateLimit)
		if r.has("tls_server_config") {
			w.tls, w.needCert = r.tls(&f.TLS, f.HTTP.HTTP2)
		}
	}
	if err := (&kubeletConfig{}).join(path, r.problems); err != nil {
		return nil, err
	}
	return w, nil
}

// decode reads the file's content. One in which everything is commented out sets
// nothing, as for the other exporters.
func (r *webReader) decode(data []byte, f *webFile) {
	documents, err := parseYAML(data)
	if line, what := notText(data); err == nil && what == "" && line == 0 &&
		(len(documents) == 0 || len(documents) == 1 && isNull(documents[0].Content[0])) {
		return
	}
	root, bad := parseDocument(data)
	if bad != nil {
		r.problems = append(r.problems, *bad)
		return
	}
	var d decoder
	d.structure("", root, reflect.ValueOf(f).Elem())
	r.root, r.problems = root, d.problems
}

// has says whether the file sets anything in a section.
func (r *webReader) has(section string) bool {
	if r.root == nil {
		return false
	}
	_, value := entry(r.root, section)
	return value != nil && !isNull(value) && (value.Kind == yaml.AliasNode || len(value.Content) > 0)
}

// check adds a problem of a field in a section, if there is an error.
func (r *webReader) check(section, field string, err error) {
	if err == nil {
		return
	}
	inFile, _, _ := strings.Cut(field, "[") // without what is in the field
	r.problems = append(r.problems, problem{field: section + "." + field, line: lineOf(r.root, section, inFile), err: err})
}

func (r *webReader) users(users map[string]string) {
	for _, user := range slices.Sorted(maps.Keys(users)) {
		// The library's errors quote from the text, which may be a password.
		if _, err := bcrypt.Cost([]byte(users[user])); err != nil {
			r.problems = append(r.problems, problem{
				field: "basic_auth_users", key: user, line: lineOf(r.root, "basic_auth_users", user),
				err: errors.New("not a password hashed with bcrypt, as by htpasswd -nBC 10 USER"),
			})
		}
	}
}

func (r *webReader) headers(headers map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		allowed, ok := webHeaders[name]
		switch {
		case !ok:
			r.check("http_server_config", "headers["+name+"]", fmt.Errorf("this header cannot be set; these can: %s",
				strings.Join(slices.Sorted(maps.Keys(webHeaders)), ", ")))
		case allowed != nil && headers[name] != "":
			r.check("http_server_config", "headers["+name+"]", oneOf(headers[name], allowed...))
		}
	}
}

func (r *webReader) rateLimit(l webRateLimit) flowcontrol.PassiveRateLimiter {
	switch {
	case l.Interval < 0:
		r.check("rate_limit", "interval", atLeast(l.Interval, 0))
	case l.Interval > 0 && l.Burst < 1:
		r.check("rate_limit", "burst", errors.New("with an interval, it must be 1 or more: no request would be answered"))
	case l.Interval > 0:
		return flowcontrol.NewTokenBucketPassiveRateLimiter(float32(1/l.Interval.Seconds()), int(l.Burst))
	}
	return nil
}

// read returns the content of a file that the configuration names, relative to
// its own directory, and remembers it.
func (r *webReader) read(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(r.path), path)
	}
	data, err := os.ReadFile(path)
	r.inputs[path] = data // or that there is none
	return data, err
}

// stale says whether a file differs from what was read of it. They are few and
// small, and requests are rare: the content does not lie, as times may.
func (w *webConfig) stale() bool {
	for path, was := range w.inputs {
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, was) {
			return true
		}
	}
	return false
}
