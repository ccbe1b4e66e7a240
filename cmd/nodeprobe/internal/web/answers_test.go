package web

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// stuck is a client that does not read.
type stuck struct {
	http.ResponseWriter
	reads chan struct{}
}

func (w stuck) Write(b []byte) (int, error) {
	<-w.reads
	return w.ResponseWriter.Write(b)
}

// A client that does not read its response delays no other; a handler that runs delays
// all others: no two run at a time.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		making, finish := 0, make(chan struct{})
		h := newTurn().whole(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			making++
			w.Header().Set("X-Kind", "whole")
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, "an answer")
			<-finish
			io.WriteString(w, ", whole")
			making--
		}))
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		check := func(who string, w *httptest.ResponseRecorder) {
			t.Helper()
			if w.Code != http.StatusTeapot || w.Body.String() != "an answer, whole" || w.Header().Get("X-Kind") != "whole" || w.Header().Get("Content-Length") != "16" {
				t.Errorf("%s: %d %q %v", who, w.Code, w.Body, w.Header())
			}
		}

		slow, reads := httptest.NewRecorder(), make(chan struct{})
		go h.ServeHTTP(stuck{slow, reads}, request)
		synctest.Wait()
		second := httptest.NewRecorder()
		go h.ServeHTTP(second, request)
		synctest.Wait()
		if making != 1 {
			t.Errorf("%d answers are in the making", making)
		}
		finish <- struct{}{}
		finish <- struct{}{}
		synctest.Wait()
		check("another client", second)
		if slow.Body.Len() > 0 {
			t.Errorf("who does not read has got %q", slow.Body)
		}
		close(reads)
		synctest.Wait()
		check("who reads at last", slow)
	})
}

// A request that gets no turn in time gets a 503; one whose client is gone ends at once.
func TestTurnTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		h := newTurn().whole(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for ctx, wait := range map[context.Context]time.Duration{gone: 0, t.Context(): turnTimeout} {
			begin, w := time.Now(), httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			if took := time.Since(begin); took != wait || w.Code != http.StatusServiceUnavailable {
				t.Errorf("%d after %s, want 503 after %s", w.Code, took, wait)
			}
		}
		close(hang)
	})
}
