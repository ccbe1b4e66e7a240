package status

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// flush calls Flush with a deadline, and returns how long it took.
func (s *scene) flush(within time.Duration) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), within)
	defer cancel()
	start := time.Now()
	err = s.Flush(ctx)
	return time.Since(start), err
}

// Flush returns once the API server has what was set before it, however long that takes,
// and not sooner.
func TestFlush(t *testing.T) {
	set := func(s *scene) { // without a wake-up
		s.mu.Lock()
		s.unhealthy = errors.New("node is shutting down")
		s.mu.Unlock()
	}
	empty := func(s *scene) { // the token bucket
		for i := range 6 {
			s.judge(v1.NodePIDPressure, i%2 == 0)
			s.sleep(600 * time.Millisecond)
		}
	}
	for _, test := range []struct {
		name    string
		prepare func(*scene)
		least   time.Duration // that it takes
		most    time.Duration
		calls   string
	}{
		{"a change", set, 0, 0, "PATCH"},
		{"nothing to post", func(*scene) {}, 0, 0, ""},
		{"a slow server", func(s *scene) { set(s); s.api.Edit(func() { s.api.Latency = 3 * time.Second }) }, 3 * time.Second, 3 * time.Second, "PATCH"},
		{"a lost answer", func(s *scene) {
			set(s)
			s.api.Edit(func() {
				s.api.Lose = func(string) error { s.api.Lose = nil; return apitest.ErrCut }
			})
		}, 0, 0, "PATCH GET"},
		{"an empty bucket", func(s *scene) { empty(s); s.api.Take(); set(s) }, time.Second, 10 * time.Second, "PATCH"},
		{"an attempt under way", func(s *scene) {
			s.api.Edit(func() { s.api.Latency = 2 * time.Second })
			s.judge(v1.NodeDiskPressure, true)
			s.sleep(time.Second) // its patch is on the way, and says nothing of what follows
			set(s)
		}, 3 * time.Second, 4 * time.Second, "PATCH PATCH"},
		{"an API server that is away for a while", func(s *scene) {
			set(s)
			s.api.Refuse("GET PATCH", apitest.ErrDown)
			time.AfterFunc(15*time.Second, func() { s.api.Refuse("", nil) })
		}, 15 * time.Second, 20 * time.Second, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.steady(s.config(), func() {
					s.sleep(30 * time.Second)
					test.prepare(s)
					took, err := s.flush(time.Minute)
					if err != nil || took < test.least || took > test.most {
						t.Errorf("%v after %s, want nil after %s to %s", err, took, test.least, test.most)
					}
					if s.unhealthy != nil {
						apitest.Diff(t, "what the API server has", v1.ConditionFalse, s.condition(v1.NodeReady).Status)
					}
					if test.least < 15*time.Second {
						s.api.Took(t, "calls", test.calls)
					}
				})
			})
		})
	}
}

// What keeps the status from being posted keeps Flush waiting, but for a Node that is
// deleted: there is nothing to wait for.
func TestFlushFails(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(*scene)
		took    time.Duration
		want    string
	}{
		{"down", func(s *scene) { s.api.Refuse("GET PATCH", apitest.ErrDown) }, 5 * time.Second, "post status of node node-1: context deadline exceeded"},
		{"not allowed", func(s *scene) { s.noFacts = true }, 5 * time.Second, "post status of node node-1: context deadline exceeded"},
		{"deleted", func(s *scene) { s.api.Remove() }, 0, "post status of node node-1: node was deleted; restart nodeprobe to register it again"},
		{"deleted meanwhile", func(s *scene) {
			s.api.Refuse("GET PATCH", apitest.ErrDown)
			time.AfterFunc(2*time.Second, s.api.Remove)
		}, 2 * time.Second, "post status of node node-1: node was deleted; restart nodeprobe to register it again"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				cfg := s.config()
				cfg.Allow = func(*v1.Node) error {
					if s.noFacts {
						return errNoFacts
					}
					return nil
				}
				s.steady(cfg, func() {
					s.mu.Lock()
					s.unhealthy = errors.New("node is shutting down")
					test.prepare(s)
					s.mu.Unlock()
					synctest.Wait()
					took, err := s.flush(5 * time.Second)
					apitest.Diff(t, "error", test.want, apitest.ErrorText(err))
					apitest.Diff(t, "took", test.took, took)
					apitest.Diff(t, "is a deletion", test.took < 5*time.Second, apierrors.IsNotFound(err))
				})
			})
		})
	}
}

// Calls at the same time are all served, by one patch.
func TestFlushTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.Edit(func() { s.api.Latency = time.Second })
			s.mu.Lock()
			s.unhealthy = errors.New("node is shutting down")
			s.mu.Unlock()
			done := make(chan error)
			for range 3 {
				go func() { _, err := s.flush(10 * time.Second); done <- err }()
			}
			for range 3 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			s.api.Took(t, "calls", "PATCH")
		})
	})
}
