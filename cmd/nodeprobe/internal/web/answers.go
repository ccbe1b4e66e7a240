package web

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"
)

// answers are made one at a time, each in memory, and sent after that. A client that
// takes its time to read holds up nobody then, and pins its answer and not what the
// answer was made of, which is ten times as much.
type answers chan struct{}

func newAnswers() answers { return make(answers, 1) }

// turnTimeout is how long a request waits for its turn.
const turnTimeout = 10 * time.Second

// whole has h's answers made that way.
func (a answers) whole(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		made := recording{header: w.Header()}
		if !a.inTurn(h, &made, r) {
			http.Error(w, "busy with other requests", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(made.body.Len()))
		w.WriteHeader(cmp.Or(made.code, http.StatusOK))
		_, _ = w.Write(made.body.Bytes()) // to a client that may be gone
	})
}

// inTurn reports whether the request had its turn.
func (a answers) inTurn(h http.Handler, w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), turnTimeout)
	defer cancel()
	select {
	case a <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-a }()
	h.ServeHTTP(w, r)
	return true
}

// recording is an http.ResponseWriter to memory.
type recording struct {
	header http.Header
	code   int // 0 until something is written
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *recording) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *recording) WriteHeader(code int) { w.code = cmp.Or(w.code, code) }

// Write implements http.ResponseWriter.
func (w *recording) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
