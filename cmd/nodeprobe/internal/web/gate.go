package web

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// gate decides which requests come to the toolkit's handler, and when. That hashes each
// password it has not seen lately, some 50 ms of CPU, as often as anybody asks it to; a
// hundred wrong ones make it forget a right one.
//
// Credentials that were right before pass at once. Others are hashed one at a time, and a
// source (see sourceOf) has no more than one of them waiting, and none for guessPause
// after a wrong one; what exceeds that gets a 429. So guesses cost little CPU. They delay
// a new client by one hash for each source that guesses, and a known one by one hash.
type gate struct {
	file    *file
	handler http.Handler // all routes
	toolkit http.Handler // checks credentials, then calls entered

	hashing chan struct{} // full while a password is hashed

	mu      sync.Mutex
	right   map[[32]byte]struct{}
	guesses map[netip.Prefix]time.Time // when the next may come; zero while one is under way
}

const (
	guessPause = time.Second
	// maxRight bounds the passwords that are remembered; each was right at some time.
	maxRight = 100
)

func newGate(f *file, h http.Handler) *gate {
	return &gate{
		file: f, handler: h, hashing: make(chan struct{}, 1),
		right: map[[32]byte]struct{}{}, guesses: map[netip.Prefix]time.Time{},
	}
}

// attemptKey is the context's key of the *attempt that a request is.
type attemptKey struct{}

// attempt is a request with a user and a password.
type attempt struct {
	digest [32]byte
	source netip.Prefix
	guess  bool // holds g.hashing until it has ended
	ended  sync.Once
}

// before returns the handler to run before the toolkit's.
func (g *gate) before(toolkit http.Handler) http.Handler {
	g.toolkit = toolkit
	return http.HandlerFunc(g.serve)
}

// entered returns the handler that the toolkit calls after its checks.
func (g *gate) entered() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a, ok := r.Context().Value(attemptKey{}).(*attempt); ok {
			g.end(a, true, false)
		}
		g.handler.ServeHTTP(w, r)
	})
}

func (g *gate) serve(w http.ResponseWriter, r *http.Request) {
	config := g.file.current()
	for name, value := range config.HTTPConfig.Header { // what the toolkit does not serve has them too
		w.Header().Set(name, value)
	}
	if !config.restricted() && isHealth(r.URL.Path) {
		g.handler.ServeHTTP(w, r) // a probe does not count against the rate limit
		return
	}
	user, password, ok := r.BasicAuth()
	if !ok || len(config.Users) == 0 {
		g.toolkit.ServeHTTP(w, r)
		return
	}
	a := &attempt{digest: sha256.Sum256(fmt.Appendf(nil, "%q %q", user, password)), source: sourceOfText(r.RemoteAddr)}
	if !g.wasRight(a.digest) {
		if !g.mayGuess(r.Context(), a.source) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many attempts to log in", http.StatusTooManyRequests)
			return
		}
		a.guess = true
	}
	g.toolkit.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), attemptKey{}, a)))
	g.end(a, false, w.Header().Get("WWW-Authenticate") != "")
}

func (g *gate) wasRight(digest [32]byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.right[digest]
	return ok
}

// end notes the outcome of an attempt: right, wrong, or neither, if the toolkit did not
// look at the password.
func (g *gate) end(a *attempt, right, wrong bool) {
	a.ended.Do(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case wrong:
			delete(g.right, a.digest)
		case right:
			if len(g.right) >= maxRight {
				clear(g.right)
			}
			g.right[a.digest] = struct{}{}
		}
		if !a.guess {
			return
		}
		<-g.hashing
		if delete(g.guesses, a.source); wrong {
			g.guesses[a.source] = time.Now().Add(guessPause)
		}
	})
}

// mayGuess waits for g.hashing, and reports whether it got it.
func (g *gate) mayGuess(ctx context.Context, source netip.Prefix) bool {
	if !g.begin(source) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	select {
	case g.hashing <- struct{}{}:
		return true
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.guesses, source)
		return false
	}
}

// begin reports whether a source may have a password hashed, and forgets pauses that are
// over.
func (g *gate) begin(source netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for other, next := range g.guesses {
		if !next.IsZero() && !now.Before(next) {
			delete(g.guesses, other)
		}
	}
	if _, ok := g.guesses[source]; ok {
		return false
	}
	g.guesses[source] = time.Time{}
	return true
}

// sourceOfText is sourceOf for an http.Request's RemoteAddr.
func sourceOfText(address string) netip.Prefix {
	parsed, _ := netip.ParseAddrPort(address)
	return sourceOf(net.TCPAddrFromAddrPort(parsed))
}
