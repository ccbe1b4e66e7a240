package web

import (
	"io"
	"net/http"
	"strings"
)

// Handler serves the routes as they are: no TLS, no users, no limit on connections. It
// runs one handler at a time, except for health endpoints and profiles.
func (r Routes) Handler() http.Handler {
	mux := http.NewServeMux()
	oneAtATime := newTurn()
	for pattern, h := range r {
		_, path, _ := strings.Cut(pattern, " ")
		if !isHealth(path) && !strings.HasPrefix(path, pprofPath) {
			h = oneAtATime.whole(h)
		}
		mux.Handle(pattern, h)
	}
	return mux
}

// isHealth reports whether a path is a health endpoint.
func isHealth(path string) bool {
	return path == "/livez" || path == "/healthz" || path == "/readyz"
}

// healthHandler serves /livez and /readyz to anybody. Where the other address asks for a
// user or a client certificate, the reasons are withheld here.
func (s *Server) healthHandler(routes Routes) http.Handler {
	mux := http.NewServeMux()
	for _, pattern := range []string{"GET /livez", "GET /readyz"} {
		h, ok := routes[pattern]
		if !ok {
			continue
		}
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if s.file != nil && s.file.current().restricted() {
				serveCode(h, w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	return mux
}

// serveCode runs a handler, and responds with its status code alone.
func serveCode(h http.Handler, w http.ResponseWriter, r *http.Request) {
	only := codeOnly{ResponseWriter: w, code: http.StatusOK}
	h.ServeHTTP(&only, r)
	w.WriteHeader(only.code)
	if only.code == http.StatusOK {
		_, _ = io.WriteString(w, "ok")
		return
	}
	_, _ = io.WriteString(w, "reason withheld\n") // the client may be gone
}

// codeOnly is a ResponseWriter that records the status code and drops the body.
type codeOnly struct {
	http.ResponseWriter
	code int
}

func (w *codeOnly) WriteHeader(code int)        { w.code = code }
func (w *codeOnly) Write(b []byte) (int, error) { return len(b), nil }
