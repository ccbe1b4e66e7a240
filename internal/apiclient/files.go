package apiclient

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// files are those of the credentials, which are rotated. client-go reads them too, but
// inline, in the request that needs them, under a lock: one that hangs holds up every
// request from then on. Here the last good copy serves when reading takes too long, or
// fails.
type files struct {
	token *deadline.Latest[string]           // nil if it is in no file
	cert  *deadline.Latest[*tls.Certificate] // likewise
	ca    *deadline.Latest[[]byte]           // likewise

	bearer string // the token until its file can be read; may be ""
}

const (
	// tokenServes is how long a token is used before the file is read again, as by
	// client-go.
	tokenServes = 50 * time.Second
	// certServes is that of a client's certificate, which each handshake asks for, and of a
	// CA: the copy that one writer looks at must not be as old as another's last look.
	certServes = time.Second
	// rotationInterval is how often a request looks for another certificate or CA, as
	// client-go's does.
	rotationInterval = 5 * time.Minute
)

// fileWait is how long a file is waited for. A request has to wait for the first copy; a
// newer one is read within microseconds, or is not worth waiting for.
var fileWait = deadline.Wait{First: 2 * time.Second, Later: 100 * time.Millisecond}

// newFiles reads the files that cfg names, and removes their names from cfg. Where there is
// data beside the name of a file, client-go uses the data.
func newFiles(cfg *rest.Config) (*files, error) {
	f := &files{}
	if path := cfg.BearerTokenFile; path != "" {
		f.token, f.bearer = newTokenFile(path), cfg.BearerToken
		cfg.BearerToken, cfg.BearerTokenFile = "", ""
	}
	if cfg.CertFile != "" && cfg.KeyFile != "" && len(cfg.CertData) == 0 && len(cfg.KeyData) == 0 {
		f.cert = newCertFiles(cfg.CertFile, cfg.KeyFile)
		if _, _, err := f.cert.Get(); err != nil {
			return nil, err
		}
		cfg.CertFile, cfg.KeyFile = "", ""
	}
	if cfg.CAFile != "" && len(cfg.CAData) == 0 {
		f.ca = newCAFile(cfg.CAFile)
		data, _, err := f.ca.Get()
		if err != nil {
			return nil, err
		}
		cfg.CAFile, cfg.CAData = "", data
	}
	if (f.token != nil || f.cert != nil) && cfg.AuthProvider == nil { // with both, client-go refuses
		cfg.ExecProvider = nil // client-go asks a plugin only where nothing else is left
	}
	return f, nil
}

func newTokenFile(path string) *deadline.Latest[string] {
	return deadline.NewLatest("read token file "+path, tokenServes, fileWait, func() (string, error) {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		token := strings.TrimSpace(string(data))
		if token == "" {
			return "", fmt.Errorf("%s is empty", path)
		}
		return token, nil
	})
}

func newCertFiles(cert, key string) *deadline.Latest[*tls.Certificate] {
	return deadline.NewLatest("read client certificate "+cert, certServes, fileWait, func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	})
}

func newCAFile(path string) *deadline.Latest[[]byte] {
	return deadline.NewLatest("read CA file "+path, certServes, fileWait, func() ([]byte, error) {
		data, err := os.ReadFile(path)
		if err == nil && len(data) == 0 { // it would mean the machine's CAs
			err = fmt.Errorf("%s is empty", path)
		}
		return data, err
	})
}

// authorizer sends the token of a file with each request. A token that is refused is read
// again for the next request.
type authorizer struct {
	next   http.RoundTripper
	token  *deadline.Latest[string]
	bearer string // serves until there is one
}

// RoundTrip implements http.RoundTripper.
func (a authorizer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") != "" { // the caller's own
		return a.next.RoundTrip(r)
	}
	token, at, err := a.token.Get()
	switch {
	case !at.IsZero():
	case a.bearer != "":
		token = a.bearer
	default:
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("read token: %w", err)
	}
	began := time.Now()
	r = utilnet.CloneRequest(r)
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := a.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		a.token.Doubt(began)
	}
	return resp, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (a authorizer) WrappedRoundTripper() http.RoundTripper { return a.next }
