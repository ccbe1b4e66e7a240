package fault

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Rule says which requests meet a fault.
type Rule struct {
	// Methods are HTTP methods; none means all.
	Methods []string
	// Path is a pattern for path.Match over the whole URL path, in which * stands
	// for one element: "/api/v1/nodes/*/status". Empty means all.
	Path string
	// Count is how many requests meet the fault before the rule is used up; 0
	// means all until it is removed.
	Count int
	Fault Fault
}

func (r *Rule) matches(method, urlPath string) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, method) {
		return false
	}
	return matchPath(r.Path, urlPath)
}

func matchPath(pattern, urlPath string) bool {
	ok, _ := path.Match(pattern, urlPath) // Inject has checked the pattern.
	return pattern == "" || ok
}

// Fault is something that goes wrong with a request.
type Fault struct {
	name string
	// serve answers the request, or does not; forward has the API server answer.
	serve func(p *Proxy, w http.ResponseWriter, r *http.Request, forward http.Handler)
}

// String names the fault as Request.Fault does.
func (f Fault) String() string { return f.name }

// Status answers with the given code, in the API server's form, so that
// apierrors.IsConflict and its like recognize it. The API server does not see
// the request.
func Status(code int) Fault {
	return answer("status "+strconv.Itoa(code), code, 0)
}

// TooManyRequests answers 429 with a Retry-After, which is in whole seconds on
// the wire and so is rounded up. client-go obeys it by itself, up to ten times.
func TooManyRequests(retryAfter time.Duration) Fault {
	return answer("status 429", http.StatusTooManyRequests, int(math.Ceil(retryAfter.Seconds())))
}

// Answer answers with any status, headers and body, as something does that is not
// the API server, which does not see the request.
func Answer(name string, code int, header map[string]string, body string) Fault {
	return Fault{name, func(_ *Proxy, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		for key, value := range header {
			w.Header().Set(key, value)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body) // Fails only if the client is gone.
	}}
}

func answer(name string, code, retryAfter int) Fault {
	return Fault{name, func(_ *Proxy, w http.ResponseWriter, r *http.Request, _ http.Handler) {
		status := apierrors.NewGenericServerResponse(code, r.Method, schema.GroupResource{}, "", "injected by the fault proxy", retryAfter, false).Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		w.Header().Set("Content-Type", "application/json")
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		}
		w.WriteHeader(code)
		// Fails only if the client is gone.
		_ = json.NewEncoder(w).Encode(status)
	}}
}

// Hang never answers. It lasts until the client gives up or the proxy closes,
// even if the rule is removed before. The API server does not see the request.
func Hang() Fault {
	return Fault{"hang", func(p *Proxy, _ http.ResponseWriter, r *http.Request, _ http.Handler) {
		select {
		case <-r.Context().Done():
		case <-p.closed:
		}
		panic(http.ErrAbortHandler)
	}}
}

// Reset resets the connection instead of answering, and with it whatever else
// the client does over that connection (HTTP/2). The API server does not see
// the request.
func Reset() Fault {
	return Fault{"reset", func(_ *Proxy, _ http.ResponseWriter, r *http.Request, _ http.Handler) {
		resetConnection(r)
	}}
}

// CutAnswer closes the connection in the middle of the answer. The API server
// has done what it was asked for: the client cannot know whether its write
// counts. Not for watches, whose answer has no middle.
func CutAnswer() Fault {
	return Fault{"cut answer", func(_ *Proxy, w http.ResponseWriter, r *http.Request, forward http.Handler) {
		whole := httptest.NewRecorder()
		forward.ServeHTTP(whole, r)
		maps.Copy(w.Header(), whole.Header())
		w.Header().Set("Content-Length", strconv.Itoa(whole.Body.Len()))
		w.WriteHeader(whole.Code)
		// Neither fails unless the client is gone, which is what is wanted.
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		// Not a reset, which would take back the half that was sent.
		_ = connection(r).Close()
		panic(http.ErrAbortHandler)
	}}
}

// connKey is the context key of the connection that a request came over.
type connKey struct{}

func connection(r *http.Request) net.Conn {
	return r.Context().Value(connKey{}).(*tls.Conn).NetConn()
}

// resetConnection has the kernel answer with RST rather than an orderly close.
func resetConnection(r *http.Request) {
	conn := connection(r)
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // Fails only if it is closed already.
	}
	_ = conn.Close()
	panic(http.ErrAbortHandler)
}
