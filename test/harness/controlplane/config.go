package controlplane

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
)

// ConfigFor returns a client configuration for the given user and groups. Each
// call issues a certificate of its own.
func (cp *ControlPlane) ConfigFor(user string, groups ...string) *rest.Config {
	pair := cp.ca.sign(clientTemplate(user, groups...))
	return &rest.Config{
		Host: loopbackURL("https", cp.ports.apiServer),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   cp.ca.pem,
			CertData: pair.cert,
			KeyData:  pair.key,
		},
		// A test is no controller: it may ask as often as it likes.
		QPS: -1,
	}
}

// Kubeconfig writes a kubeconfig for the given user and groups, with a client
// certificate inside, and returns its path. It is removed with the control plane.
func (cp *ControlPlane) Kubeconfig(user string, groups ...string) (string, error) {
	return cp.WriteKubeconfig(user, cp.ConfigFor(user, groups...))
}

// NodeKubeconfig is Kubeconfig for the identity of a kubelet: the user
// system:node:NAME in the group system:nodes.
func (cp *ControlPlane) NodeKubeconfig(name string) (string, error) {
	user, groups := NodeUser(name)
	return cp.Kubeconfig(user, groups...)
}

// NodeUser returns the user and the groups of the kubelet of the named node.
func NodeUser(name string) (user string, groups []string) {
	return "system:node:" + name, []string{"system:nodes"}
}

// WriteKubeconfig writes a kubeconfig that says the same as config, and returns
// its path. Writing again under the same name replaces the file.
func (cp *ControlPlane) WriteKubeconfig(name string, config *rest.Config) (string, error) {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.CurrentContext = name
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   config.Host,
		CertificateAuthorityData: config.CAData,
		TLSServerName:            config.ServerName,
	}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Token:                 config.BearerToken,
	}
	// User names hold colons, which separate the files in $KUBECONFIG.
	path := cp.file(strings.NewReplacer(":", "-", "/", "-").Replace(name) + ".kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return "", fmt.Errorf("write kubeconfig of %q: %w", name, err)
	}
	return path, nil
}

// Program returns the file of one of Kubernetes' programs, of the API server's version,
// building it first if the cache lacks it.
func Program(t testing.TB, name string) string {
	t.Helper()
	return build.Cached(t, kubernetesTarget(name))
}

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

// sure returns a value whose error only a fault of this package can cause: keys and
// certificates are made from constants.
func sure[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func newAuthority() *authority {
	key := sure(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := newTemplate("nodeprobe-test-ca")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der := sure(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return &authority{cert: sure(x509.ParseCertificate(der)), key: key, pem: pemBlock("CERTIFICATE", der)}
}

// serving issues a certificate for a server on the loopback interface.
func (a *authority) serving(name string) keyPair {
	template := newTemplate(name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	return a.sign(template)
}

// clientTemplate is for a certificate that the API server takes as the given user and
// groups: the common name and the organizations.
func clientTemplate(user string, groups ...string) *x509.Certificate {
	template := newTemplate(user)
	template.Subject.Organization = groups
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return template
}

func (a *authority) sign(template *x509.Certificate) keyPair {
	key := sure(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := sure(x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key))
	return keyPair{cert: pemBlock("CERTIFICATE", der), key: keyBlock(key)}
}

// ServingCertificate issues a certificate for 127.0.0.1 and localhost that the
// control plane's clients trust: for proxies, webhooks and the like.
func (cp *ControlPlane) ServingCertificate(name string) tls.Certificate {
	pair := cp.ca.serving(name)
	return sure(tls.X509KeyPair(pair.cert, pair.key))
}

// ClientCertificate issues a certificate, and its key, that the API server takes as
// the given user and groups until the validity is over. Both are in PEM.
func (cp *ControlPlane) ClientCertificate(validity time.Duration, user string, groups ...string) (cert, key []byte) {
	template := clientTemplate(user, groups...)
	template.NotAfter = time.Now().Add(validity)
	pair := cp.ca.sign(template)
	return pair.cert, pair.key
}

func newTemplate(commonName string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: sure(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func keyBlock(key crypto.Signer) []byte {
	return pemBlock("PRIVATE KEY", sure(x509.MarshalPKCS8PrivateKey(key)))
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// auditPolicy records each request once, when it has been answered, and with
// the body of what was asked for, but not the answer's.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: Request
`

// AuditEvent is what the API server recorded about one request: the part of
// audit.k8s.io/v1 Event that tests look at.
type AuditEvent struct {
	Verb       string
	RequestURI string
	UserAgent  string
	User       struct{ Username string }
	// ImpersonatedUser is who the user asked to be taken for, if anybody.
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, Namespace, Name string }
	// ResponseStatus.Code is the HTTP status code.
	ResponseStatus struct{ Code int }
	// RequestObject is the object or the patch that was sent, as JSON.
	RequestObject            json.RawMessage
	RequestReceivedTimestamp time.Time
}

// ActingUser returns whose rights were asked about.
func (e *AuditEvent) ActingUser() string {
	return cmp.Or(e.ImpersonatedUser.Username, e.User.Username)
}

// Request returns what was asked for: "patch nodes/status", "get nodes".
func (e *AuditEvent) Request() string {
	return strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
}

// Reads reports whether the request only reads.
func (e *AuditEvent) Reads() bool { return e.Verb == "get" || e.Verb == "list" || e.Verb == "watch" }

// AuditEvents returns the requests that the API server has answered so far,
// oldest first, those of its own loops included. It needs Options.AuditLog.
func (cp *ControlPlane) AuditEvents() ([]AuditEvent, error) {
	if !cp.opts.AuditLog {
		return nil, errors.New("read audit log: Options.AuditLog is not set")
	}
	data, err := os.ReadFile(cp.file("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	// Anything after the last newline is a line being written.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var events []AuditEvent
	for line := range bytes.Lines(data) {
		var event AuditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read audit log: %w", err)
		}
		events = append(events, event)
	}
	return events, nil
}
