package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity outlives any test run.
const validity = 7 * 24 * time.Hour

// authority is a certificate authority made for one control plane. It signs the
// API server's certificate as well as those of the clients.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// keyPair is a certificate and its private key in PEM.
type keyPair struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template := newTemplate("nodeprobe-test-ca")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate: %w", err)
	}
	return &authority{cert: cert, key: key, pem: pemBlock("CERTIFICATE", der)}, nil
}

// serving issues a certificate for a server on the loopback interface.
func (a *authority) serving(name string) (keyPair, error) {
	template := newTemplate(name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	return a.sign(template)
}

// client issues a certificate that the API server takes as the given user and
// groups: the common name and the organizations.
func (a *authority) client(user string, groups ...string) (keyPair, error) {
	return a.sign(clientTemplate(user, groups...))
}

func clientTemplate(user string, groups ...string) *x509.Certificate {
	template := newTemplate(user)
	template.Subject.Organization = groups
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return template
}

func (a *authority) sign(template *x509.Certificate) (keyPair, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("make key of %q: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("make certificate of %q: %w", name, err)
	}
	keyPEM, err := keyBlock(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("encode key of %q: %w", name, err)
	}
	return keyPair{cert: pemBlock("CERTIFICATE", der), key: keyPEM}, nil
}

// newServiceAccountKey makes the key that signs service account tokens, and
// that the API server also verifies them with.
func newServiceAccountKey() ([]byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("make service account key: %w", err)
	}
	return keyBlock(key)
}

// writeTo writes NAME.crt and NAME.key into dir.
func (k keyPair) writeTo(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), k.cert, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), k.key, 0o600)
}

// ServingCertificate issues a certificate for 127.0.0.1 and localhost that the
// control plane's clients trust: for proxies, webhooks and the like.
func (cp *ControlPlane) ServingCertificate(name string) (tls.Certificate, error) {
	pair, err := cp.ca.serving(name)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(pair.cert, pair.key)
}

// ClientCertificate issues a certificate, and its key, that the API server takes as
// the given user and groups until the validity is over. Both are in PEM.
func (cp *ControlPlane) ClientCertificate(validity time.Duration, user string, groups ...string) (cert, key []byte, err error) {
	template := clientTemplate(user, groups...)
	template.NotAfter = time.Now().Add(validity)
	pair, err := cp.ca.sign(template)
	return pair.cert, pair.key, err
}

func newTemplate(commonName string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand.Reader never fails.
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func keyBlock(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pemBlock("PRIVATE KEY", der), nil
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
