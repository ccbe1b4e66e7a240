package web

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// hasher stands where the toolkit's handler does: it takes a while to find out whether a
// password is right, forgets at once, and counts how often it is asked.
type hasher struct {
	mu        sync.Mutex
	next      http.Handler
	now, most int
	asked     int
}

const hashing = 100 * time.Millisecond

func (h *hasher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, password, ok := r.BasicAuth()
	if ok {
		h.mu.Lock()
		h.asked++
		h.now++
		h.most = max(h.most, h.now)
		h.mu.Unlock()
		time.Sleep(hashing)
		h.mu.Lock()
		h.now--
		h.mu.Unlock()
	}
	if !ok || !strings.HasPrefix(password, "right") {
		w.Header().Set("WWW-Authenticate", "Basic")
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	h.next.ServeHTTP(w, r)
}

// newTestGate returns what stands before a hasher.
func newTestGate(t *testing.T, handler http.HandlerFunc) (http.Handler, *gate, *hasher) {
	t.Helper()
	f, err := openFile(webFiles(t, "basic_auth_users:\n  alice: "+testHash(t)+"\n", nil), true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	g := newGate(f, handler)
	h := &hasher{next: g.entered()}
	return g.before(h), g, h
}

// login is a request from an address.
func login(h http.Handler, from, password string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.RemoteAddr = from + ":1234"
	if password != "" {
		r.SetBasicAuth("alice", password)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A client with a wrong password waits before its next one is checked; other clients do not.
func TestGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, g, counted := newTestGate(t, func(http.ResponseWriter, *http.Request) {})
		want := func(from, password string, code, asked int, took time.Duration) {
			t.Helper()
			begin, before := time.Now(), counted.asked
			w := login(h, from, password)
			if got := time.Since(begin); w.Code != code || counted.asked-before != asked || got != took {
				t.Errorf("%s %q: %d after %d hashes in %s, want %d, %d, %s", from, password, w.Code, counted.asked-before, got, code, asked, took)
			}
			if (w.Header().Get("Retry-After") == "1") != (code == http.StatusTooManyRequests) {
				t.Errorf("%d: Retry-After: %q", code, w.Header().Get("Retry-After"))
			}
		}
		const a, b = "10.0.0.1", "10.0.0.2"
		want(a, "", 401, 0, 0)
		want(a, "wrong", 401, 1, hashing)
		want(a, "wrong", 429, 0, 0)
		want(a, "right", 429, 0, 0)
		want(a, "", 401, 0, 0)
		want(b, "right", 200, 1, hashing)
		time.Sleep(guessPause)
		want(a, "right", 200, 1, hashing)
		want(a, "right2", 200, 1, hashing) // right ones have no pause
		want(a, "wrong", 401, 1, hashing)
		want(a, "right", 200, 1, hashing) // was right before: it is the toolkit that forgets here
		time.Sleep(guessPause)
		for i := range 3 * maxRight {
			want(b, fmt.Sprint("right", i), 200, 1, hashing)
		}
		if len(g.right) > maxRight {
			t.Errorf("%d passwords are remembered", len(g.right))
		}
		if len(g.guesses) > 1 {
			t.Errorf("%d sources are remembered", len(g.guesses))
		}
	})
}

// Three hundred clients that guess, from one address or from many, do not keep out one
// who was let in before, and delay one who was not by a hash for each address. There is
// one hash at a time, and for each address no more than one a second.
func TestGuessers(t *testing.T) {
	for name, addresses := range map[string]int{"one address": 1, "forty addresses": 40} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, g, counted := newTestGate(t, func(http.ResponseWriter, *http.Request) {})
				const prometheus, newcomer = "10.1.0.1", "10.1.0.2"
				if w := login(h, prometheus, "right"); w.Code != http.StatusOK {
					t.Fatal(w.Code)
				}
				stop := make(chan struct{})
				var guessers sync.WaitGroup
				for i := range 300 {
					guessers.Go(func() {
						for n := 0; ; n++ {
							select {
							case <-stop:
								return
							case <-time.After(100 * time.Millisecond):
							}
							login(h, fmt.Sprintf("10.0.0.%d", i%addresses), fmt.Sprint("wrong", i, n))
						}
					})
				}
				time.Sleep(time.Second)
				counted.mu.Lock()
				before := counted.asked
				counted.mu.Unlock()
				const lasting = 5
				for range lasting {
					begin := time.Now()
					// From where the guesses come, too.
					if w := login(h, "10.0.0.0", "right"); w.Code != http.StatusOK || time.Since(begin) != hashing {
						t.Errorf("who was let in before: %d after %s", w.Code, time.Since(begin))
					}
					time.Sleep(time.Second - hashing)
				}
				begin := time.Now()
				w := login(h, newcomer, "right and new")
				if limit := time.Duration(addresses+2) * hashing; w.Code != http.StatusOK || time.Since(begin) > limit {
					t.Errorf("who is new: %d after %s, want 200 within %s", w.Code, time.Since(begin), limit)
				}
				close(stop)
				guessers.Wait()
				// The right ones are known, and are hashed beside the one that is not.
				if counted.most > 2 {
					t.Errorf("%d hashes at a time", counted.most)
				}
				if got := counted.asked - before - 2*lasting; addresses == 1 && got > 2*lasting {
					t.Errorf("%d guesses in %d s", got, lasting)
				}
				if len(g.guesses) > addresses+1 || len(g.right) != 2 {
					t.Errorf("remembered: %d addresses, %d passwords", len(g.guesses), len(g.right))
				}
			})
		})
	}
}

// A request that has been let in does not hold up who logs in next, be it from the same
// address; one whose client is gone waits no longer.
func TestGuessEndsWithTheHash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		profile := make(chan struct{})
		h, g, _ := newTestGate(t, func(http.ResponseWriter, *http.Request) { <-profile })
		var served sync.WaitGroup
		for i := range 3 {
			served.Go(func() { login(h, "10.0.0.1", fmt.Sprint("right", i)) })
			time.Sleep(2 * hashing)
		}
		g.mu.Lock()
		if len(g.right) != 3 || len(g.guesses) != 0 || len(g.hashing) != 0 {
			t.Errorf("let in: %d; under way: %v", len(g.right), g.guesses)
		}
		g.mu.Unlock()
		close(profile)
		served.Wait()

		g.hashing <- struct{}{} // one that takes longer than anybody waits
		begin := time.Now()
		if w := login(h, "10.0.0.1", "wrong"); w.Code != http.StatusTooManyRequests || time.Since(begin) != turnTimeout {
			t.Errorf("%d after %s", w.Code, time.Since(begin))
		}
		if len(g.guesses) != 0 {
			t.Errorf("under way: %v", g.guesses)
		}
	})
}

// The same with the toolkit and real hashes: fifty clients guess at a server, and a
// scraper that begins meanwhile, at an address of its own, is let in. However many guess at
// an address, one password a second is hashed.
func TestGuessersOfToolkit(t *testing.T) {
	s := gated(t, webFiles(t, "basic_auth_users:\n  alice: "+testHash(t)+"\n", nil))
	begin, stop := time.Now(), make(chan struct{})
	var guessers sync.WaitGroup
	var hashed atomic.Int64
	for i := range 50 { // more than maxConnections would be evicted before they get their answer
		client := clientFrom("127.0.0.66")
		guessers.Go(func() {
			defer client.CloseIdleConnections()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"metrics", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.SetBasicAuth("alice", fmt.Sprint("wrong", i, n))
				if resp, err := client.Do(req); err == nil { // or it was evicted
					resp.Body.Close()
					if resp.StatusCode == http.StatusUnauthorized {
						hashed.Add(1)
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	for range 5 {
		resp, body, err := visit(t, s.URL()+"metrics", "alice", "secret", nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%v %q %v", resp, body, err)
		}
	}
	testtree.Eventually(t, "a second guess is hashed", func() bool { return hashed.Load() >= 2 })
	close(stop)
	guessers.Wait()
	if limit := int64(time.Since(begin)/guessPause) + 1; hashed.Load() > limit {
		t.Errorf("%d guesses from one address were hashed, want %d at most", hashed.Load(), limit)
	}
}
