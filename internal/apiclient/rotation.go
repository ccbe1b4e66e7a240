package apiclient

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	clienttransport "k8s.io/client-go/transport"
)

// rotator uses other files of the credentials once they have changed: new connections get
// a new CA and a new client's certificate, and connections with an old certificate are
// closed. It looks when there are requests, and for a CA at once when the server's
// certificate cannot be verified.
type rotator struct {
	files *files
	// build returns a transport that trusts a CA; nil is the one that it has anyway.
	build func(ca []byte) (http.RoundTripper, error)
	// closeAll closes all connections.
	closeAll func()

	mu      sync.Mutex // guards the rest
	current *trusting
	looked  time.Time
	cert    *tls.Certificate // of the connections
}

// trusting is a transport that trusts a CA.
type trusting struct {
	http.RoundTripper
	ca []byte
}

func newRotator(cfg *clienttransport.Config, f *files, closeAll func()) (*rotator, error) {
	if f.cert != nil {
		cfg.TLS.GetCertHolder = &clienttransport.GetCertHolder{GetCert: func() (*tls.Certificate, error) {
			cert, at, err := f.cert.Get()
			if !at.IsZero() {
				err = nil
			}
			return cert, err
		}}
	}
	r := &rotator{files: f, closeAll: closeAll, looked: time.Now(), build: func(ca []byte) (http.RoundTripper, error) {
		c := *cfg
		if ca != nil {
			c.TLS.CAData = ca
		}
		return clienttransport.New(&c)
	}}
	if f.cert != nil {
		r.cert, _, _ = f.cert.Get() // there is one: see newFiles
	}
	first, err := r.build(nil)
	r.current = &trusting{first, cfg.TLS.CAData}
	return r, err
}

// RoundTrip implements http.RoundTripper. A request that could not be sent for want of
// another CA is sent once there is one.
func (r *rotator) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	used := r.look(began)
	resp, err := used.RoundTrip(req)
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		return resp, err
	}
	next := r.doubt(began)
	if next == used {
		return nil, err
	}
	if req.Body != nil {
		if req.GetBody == nil {
			return nil, err
		}
		body, bodyErr := req.GetBody()
		if bodyErr != nil {
			return nil, err
		}
		req = utilnet.CloneRequest(req)
		req.Body = body
	}
	return next.RoundTrip(req)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (r *rotator) WrappedRoundTripper() http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current.RoundTripper
}

// look returns the transport for a request. What is wrong with a file changes nothing.
func (r *rotator) look(now time.Time) *trusting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.looked) < rotationInterval {
		return r.current
	}
	r.looked = now
	r.lookForCA()
	if r.files.cert != nil {
		if cert, _, _ := r.files.cert.Get(); !slices.EqualFunc(cert.Certificate, r.cert.Certificate, bytes.Equal) {
			r.cert = cert
			r.closeAll()
		}
	}
	return r.current
}

// doubt returns the transport for a request that began then and has found that the server's
// certificate cannot be verified.
func (r *rotator) doubt(began time.Time) *trusting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files.ca != nil {
		r.files.ca.Doubt(began)
		r.lookForCA()
	}
	return r.current
}

func (r *rotator) lookForCA() {
	if r.files.ca == nil {
		return
	}
	ca, _, _ := r.files.ca.Get()
	if bytes.Equal(ca, r.current.ca) {
		return
	}
	if next, err := r.build(ca); err == nil { // else half of a file
		old := r.current
		r.current = &trusting{next, ca}
		utilnet.CloseIdleConnectionsFor(old.RoundTripper)
	}
}
