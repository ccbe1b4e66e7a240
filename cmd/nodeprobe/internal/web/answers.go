package web

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"
)

// turn lets handlers run one at a time, each into memory; the response is sent after
// that. So a client that reads slowly delays nobody, and pins its response but not what
// that was made from, which is ten times as much.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// turnTimeout is how long a request waits for its turn.
const turnTimeout = 10 * time.Second

// whole returns a handler that runs h that way.
func (t turn) whole(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		made := recording{header: w.Header()}
		if !t.run(h, &made, r) {
			http.Error(w, "busy with other requests", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(made.body.Len()))
		w.WriteHeader(cmp.Or(made.code, http.StatusOK))
		_, _ = w.Write(made.body.Bytes()) // the client may be gone
	})
}

// run reports whether the request had its turn.
func (t turn) run(h http.Handler, w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), turnTimeout)
	defer cancel()
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-t }()
	h.ServeHTTP(w, r)
	return true
}

// recording is an http.ResponseWriter that writes to memory.
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
