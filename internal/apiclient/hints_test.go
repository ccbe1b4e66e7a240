package apiclient

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// apiUntil serves TLS and HTTP/2 with a certificate that is valid until then, and
// returns clients that trust it.
func apiUntil(t *testing.T, until time.Time, handler http.HandlerFunc) *Clients {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "api"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewUnstartedServer(handler)
	api.EnableHTTP2 = true
	api.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	api.Config.ErrorLog = nil
	api.StartTLS()
	t.Cleanup(api.Close)
	return clientOf(t, api.URL, der)
}

// clientOf returns clients that trust a certificate.
func clientOf(t *testing.T, url string, certificate []byte) *Clients {
	t.Helper()
	cfg := Config{NodeName: "n", Origin: "kubeconfig /k", UserAgent: "nodeprobe/v1.2.3", OnReconnect: func() {}}
	cfg.API = &rest.Config{Host: url, BearerToken: "secret"}
	cfg.API.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	client, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func answer(code int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Location", "/login")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func refusal(reason metav1.StatusReason, code int, message string) http.HandlerFunc {
	return answer(code, "application/json", fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`, reason, code, message))
}

// What the API server, or something in its place, answers is put into words that
// help, and into the same ones each time. None passes for an answer about the
// Node.
func TestUnhelpfulAnswers(t *testing.T) {
	const json, html, page = "application/json", "text/html; charset=utf-8", "<html><body>Log in!</body></html>"
	const foreign = "not the API server's but, for example, a proxy's"
	year := time.Now().Add(365 * 24 * time.Hour)
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		want   []string
	}{
		{"HTML", answer(200, html, page), []string{"the answer is a page of HTML, with status 200: " + foreign}},
		{"HTML, gateway", answer(502, html, page), []string{"a page of HTML, with status 502: "}},
		{"HTML, not found", answer(404, html, page), []string{"a page of HTML, with status 404: "}},
		{"text, not found", answer(404, "text/plain", "404 page not found"), []string{"the answer is of type text/plain, with status 404: " + foreign}},
		{"text", answer(200, "text/plain", `{"kind":"Node"}`), []string{"of type text/plain, with status 200"}},
		{"redirect", answer(302, html, page), []string{"the answer is a redirect to /login, with status 302: " + foreign}},
		{"permanent redirect", answer(308, "", ""), []string{"a redirect to /login, with status 308"}},
		{"half an object", answer(200, json, `{"kind":"Node","apiVersion":"v1","meta`), []string{"read response: "}},
		{"nothing", answer(200, json, ``), []string{"read response: "}},
		{"another object", answer(200, json, `{"ok":true}`), []string{"response is not node n"}},
		{"protobuf that is none", answer(200, "application/vnd.kubernetes.protobuf", "garbage"), []string{"read response: "}},
		{"text, too many", answer(429, "text/plain", "Too many requests"), []string{"the server has received too many requests"}},
		{"stream reset", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, []string{"stream error: stream ID N; INTERNAL_ERROR"}},
		{"unauthorized", refusal(metav1.StatusReasonUnauthorized, 401, "Unauthorized"), []string{"the credentials of kubeconfig /k are refused, or have expired: Unauthorized"}},
		{"not allowed", refusal(metav1.StatusReasonForbidden, 403, `nodes "n" is forbidden: User "u" cannot patch resource "nodes/status" in API group "" at the cluster scope`), []string{
			"missing permission: patch nodes/status (", "user system:node:n in group system:nodes; or bind a role", `User "u" cannot patch`,
		}},
		{"own node, not in the group", refusal(metav1.StatusReasonForbidden, 403, `nodes "n" is forbidden: User "system:node:n" cannot patch resource "nodes/status"`), []string{"missing permission: patch nodes/status ("}},
		{"another node", refusal(metav1.StatusReasonForbidden, 403, `nodes "n" is forbidden: User "system:node:m" cannot patch resource "nodes/status": node 'm' cannot modify 'n'`), []string{
			"the credentials of kubeconfig /k are those of node m, and this is node n (see --hostname-override): ",
		}},
		{"policy", refusal(metav1.StatusReasonForbidden, 403, `nodes "n" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no`), []string{"not admitted: nodes \"n\" is forbidden: ValidatingAdmissionPolicy"}},
		{"policy without a reason", refusal(metav1.StatusReasonInvalid, 422, `nodes "n" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`), []string{"not admitted: nodes \"n\" is forbidden: ValidatingAdmissionPolicy"}},
		{"invalid", refusal(metav1.StatusReasonInvalid, 422, `Node "n" is invalid: no`), []string{"Node \"n\" is invalid"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requests := 0
			api := apiUntil(t, year, func(w http.ResponseWriter, r *http.Request) {
				requests++ // one after the other
				test.answer(w, r)
			})
			node, err := api.Nodes.PatchStatus(t.Context(), "n", []byte("{}"))
			_, again := api.Nodes.PatchStatus(t.Context(), "n", []byte("{}"))
			if node != nil || err == nil || again == nil || apierrors.IsNotFound(err) {
				t.Fatalf("got %v, %v, %v", node, err, again)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v\nwant %s", err, want)
				}
			}
			if again.Error() != err.Error() {
				t.Errorf("another text each time: %v\n%v", err, again)
			}
			if strings.Contains(err.Error(), "<") || len(err.Error()) > 1000 {
				t.Errorf("not fit for a line: %v", err)
			}
			if requests != 2 {
				t.Errorf("%d requests, want 2", requests)
			}
		})
	}
}

// That a proxy wants to be left alone counts as well.
func TestRetryAfterOfAProxy(t *testing.T) {
	api := apiUntil(t, time.Now().Add(time.Hour), answer(503, "text/html", "<html>"))
	_, err := api.Nodes.Get(t.Context(), "n")
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 7 {
		t.Errorf("%v suggests a delay of %d s (%v), want 7", err, seconds, ok)
	}
	if err := api.Events.Create(t.Context(), &v1.Event{}); err == nil {
		t.Error("a page of HTML passes for an event that is created")
	}
}

// Certificates that a client cannot trust. What is wrong with one that has expired
// is told without the present time.
func TestUntrustedServer(t *testing.T) {
	until := time.Now().Add(-time.Hour)
	expired := apiUntil(t, until, answer(200, "application/json", "{}"))
	_, err := expired.Nodes.Get(t.Context(), "n")
	if err == nil || !strings.HasSuffix(err.Error(), "certificate has expired or is not yet valid: the time is after "+until.UTC().Format(time.RFC3339)) {
		t.Errorf("expired: %v", err)
	}

	good := httptest.NewTLSServer(answer(200, "application/json", "{}"))
	defer good.Close()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	other, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	_, err = clientOf(t, good.URL, other).Nodes.Get(t.Context(), "n")
	if err == nil || !strings.Contains(err.Error(), "the server's certificate is not signed by the CA of kubeconfig /k: ") || !strings.Contains(err.Error(), "x509: certificate signed by unknown authority") {
		t.Errorf("untrusted: %v", err)
	}
}

// What differs at each retry is left out: the time, the number of a stream, the port
// that a name server is asked from.
func TestSteady(t *testing.T) {
	for text, want := range map[string]string{
		"lookup api on 127.0.0.53:53: read udp 127.0.0.1:40123->127.0.0.53:53: read: connection refused":                     "lookup api on 127.0.0.53:53: read udp 127.0.0.53:53: read: connection refused",
		"x509: certificate has expired or is not yet valid: current time 2026-01-02T03:04:05Z is after 2026-01-01T00:00:00Z": "x509: certificate has expired or is not yet valid: the time is after 2026-01-01T00:00:00Z",
		"http2: server sent GOAWAY and closed the connection; LastStreamID=33, ErrCode=NO_ERROR":                             "http2: server sent GOAWAY and closed the connection; LastStreamID=N, ErrCode=NO_ERROR",
		"dial tcp 127.0.0.1:6443: connect: connection refused":                                                               "dial tcp 127.0.0.1:6443: connect: connection refused",
	} {
		if got := steady(text); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
}
