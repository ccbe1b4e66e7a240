package apiclient

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"slices"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	clienttransport "k8s.io/client-go/transport"
)

// rotator uses other files of the credentials once they have changed: new connections get
// a new CA and a new client's certificate, and connections with an old certificate are
// closed. It looks when there are requests.
type rotator struct {
	files *files
	// build returns a transport that trusts a CA; nil is the one that it has anyway.
	build func(ca []byte) (http.RoundTripper, error)
	// closeAll closes all connections.
	closeAll func()

	mu      sync.Mutex // guards the rest
	current http.RoundTripper
	looked  time.Time
	cert    *tls.Certificate // of the connections
	ca      []byte
}

func newRotator(cfg *clienttransport.Config, f *files, closeAll func()) (*rotator, error) {
	if f.cert != nil && cfg.TLS.GetCertHolder == nil {
		cfg.TLS.GetCertHolder = &clienttransport.GetCertHolder{GetCert: func() (*tls.Certificate, error) {
			cert, at, err := f.cert.Get()
			if !at.IsZero() {
				err = nil
			}
			return cert, err
		}}
	}
	r := &rotator{files: f, closeAll: closeAll, looked: time.Now(), ca: cfg.TLS.CAData, build: func(ca []byte) (http.RoundTripper, error) {
		c := *cfg
		if ca != nil {
			c.TLS.CAData = ca
		}
		return clienttransport.New(&c)
	}}
	if f.cert != nil {
		r.cert, _, _ = f.cert.Get() // there is one: see newFiles
	}
	var err error
	r.current, err = r.build(nil)
	return r, err
}

// RoundTrip implements http.RoundTripper.
func (r *rotator) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.look(time.Now()).RoundTrip(req)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (r *rotator) WrappedRoundTripper() http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// look returns the transport for a request. What is wrong with a file changes nothing.
func (r *rotator) look(now time.Time) http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.looked) < rotationInterval {
		return r.current
	}
	r.looked = now
	if r.files.ca != nil {
		if ca, _, _ := r.files.ca.Get(); !bytes.Equal(ca, r.ca) {
			if next, err := r.build(ca); err == nil { // else half of a file
				old := r.current
				r.current, r.ca = next, ca
				utilnet.CloseIdleConnectionsFor(old)
			}
		}
	}
	if r.files.cert != nil {
		if cert, _, _ := r.files.cert.Get(); !slices.EqualFunc(cert.Certificate, r.cert.Certificate, bytes.Equal) {
			r.cert = cert
			r.closeAll()
		}
	}
	return r.current
}
