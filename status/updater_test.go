package status

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// The first sync after a start posts, although the Node was just created with
// the same status: so does the kubelet.
func TestFirstSyncPatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.play(s.config(), func() {
			if err := s.Ready(); !errors.Is(err, errNotRegistered) {
				t.Errorf("ready before anything was done: %v", err)
			}
			apitest.Diff(t, "posted before anything was done", Posted{}, s.Posted())
			impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := s.Owner(impatient); !apierrors.IsNotFound(err) {
				t.Errorf("owner of a Node that is not there: %v", err)
			}
			s.sleep(49 * time.Millisecond)
			s.api.Took(t, "before the first back-off is over", "")
			s.sleep(time.Millisecond)
			s.api.Took(t, "after it", "POST PATCH")
			apitest.Diff(t, "ready", nil, s.Ready())
			owner, err := s.Owner(t.Context())
			apitest.Diff(t, "owner", metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: apitest.NodeName, UID: "uid-1"}, owner)
			apitest.Diff(t, "owner's error", nil, err)
			apitest.Diff(t, "last known Node", s.api.Current(), s.Node())
			apitest.Diff(t, "logs", []string{
				`level=INFO msg="node is registered" node=node-1 how=created uid=uid-1`,
				`level=INFO msg="node status is posted" node=node-1`,
			}, s.logs.With("level"))
		})
	})
}

// In steady state the Node is never read, and posted once in a report period:
// after a change at a random time within 2.5 to 7.5 minutes, then every 5.
func TestSteadyState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			last := apitest.Epoch.Add(100 * time.Millisecond)
			for round := range 10 {
				s.sleep(time.Hour)
				for i, c := range s.api.Take() {
					if c.Verb != "PATCH" || strings.Contains(c.Body, "status\":\"") {
						t.Fatalf("%s %s", c.Verb, c.Body)
					}
					gap := c.At.Sub(last)
					last = c.At
					if i > 0 && gap != 5*time.Minute {
						t.Errorf("period patches %v apart", gap)
					} else if i == 0 && (gap < 150*time.Second || gap > 450*time.Second) {
						t.Errorf("first patch %v after a change", gap)
					}
				}
				s.judge(v1.NodeDiskPressure, round%2 == 0)
				last = time.Now()
				s.api.Took(t, "change", "PATCH")
			}
			apitest.Diff(t, "errors", []string(nil), s.logs.With("ERROR", "WARN"))
		})
	})
}

// A change goes out in the same instant, with the time at which it happened.
func TestChangeIsPatchedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(7300 * time.Millisecond)
			s.judge(v1.NodeMemoryPressure, true)
			calls := s.api.Take()
			if apitest.Verbs(calls) != "PATCH" || !calls[0].At.Equal(time.Now()) {
				t.Errorf("calls %v", calls)
			}
			apitest.Diff(t, "condition", v1.NodeCondition{
				Type: "MemoryPressure", Status: "True", Reason: "MemoryPressure",
				Message: "there is pressure", LastTransitionTime: apitest.At(8),
			}, s.condition("MemoryPressure"), apitest.SameTimes())
			want := Posted{Time: time.Now(), Reason: "changed", Bytes: len(calls[0].Body)}
			apitest.Diff(t, "posted", want, s.Posted())
			s.Wake()
			s.api.Took(t, "a wake-up without a change", "")
			apitest.Diff(t, "posted, after that", want, s.Posted())
		})
	})
}

// What changes within half a second of a post goes out as one, and what is back
// as it was does not go out at all.
func TestBurstIsFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.judge(v1.NodeMemoryPressure, true)
			s.api.Took(t, "the first", "PATCH")
			s.sleep(100 * time.Millisecond)
			s.judge(v1.NodeDiskPressure, true)
			s.sleep(100 * time.Millisecond)
			s.judge(v1.NodePIDPressure, true)
			s.sleep(299 * time.Millisecond)
			s.api.Took(t, "held back", "")
			s.sleep(time.Millisecond)
			calls := s.api.Take()
			if apitest.Verbs(calls) != "PATCH" || strings.Count(calls[0].Body, `"status":"True"`) != 2 {
				t.Errorf("calls %v, want one patch with both changes", calls)
			}
			s.judge(v1.NodeDiskPressure, false)
			s.sleep(100 * time.Millisecond)
			s.judge(v1.NodeDiskPressure, true)
			s.sleep(time.Minute)
			s.api.Took(t, "back as it was", "")
		})
	})
}

// However fast a condition flaps, the bucket bounds the patches, and the last
// word is posted in the end.
func TestFlappingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			for i := range 600 {
				s.judge(v1.NodePIDPressure, i%2 == 0)
				s.sleep(time.Second)
			}
			s.judge(v1.NodePIDPressure, true)
			calls := s.api.Take()
			if n := len(calls); n > 3+60 || n < 50 {
				t.Errorf("%d patches in 10 minutes, want at most 63", n)
			}
			for _, c := range calls {
				if c.Verb != "PATCH" {
					t.Errorf("%s", c.Verb)
				}
			}
			s.sleep(10 * time.Second)
			apitest.Diff(t, "in the end", v1.ConditionTrue, s.condition("PIDPressure").Status)
		})
	})
}

// The end may come at any time, whatever the API server does then.
func TestCancelAtAnyTime(t *testing.T) {
	for _, state := range []struct {
		name string
		set  func(*apitest.API)
	}{
		{"well", func(*apitest.API) {}},
		{"slow", func(a *apitest.API) { a.Latency = 700 * time.Millisecond }},
		{"down", func(a *apitest.API) { a.Refuse("POST GET PATCH WATCH", apitest.ErrDown) }},
		{"cannot be patched", func(a *apitest.API) { a.Refuse("PATCH", apitest.ErrServer) }},
		{"hangs at registration", func(a *apitest.API) { a.Hang = "POST" }},
		{"hangs", func(a *apitest.API) { a.Hang = "PATCH GET" }},
		{"does not begin watches", func(a *apitest.API) { a.Hang = "WATCH" }},
	} {
		t.Run(state.name, func(t *testing.T) {
			for _, after := range []time.Duration{0, 50, 100, 101, 150, 900, 1500, 10_100, 25_000, 700_000} {
				synctest.Test(t, func(t *testing.T) {
					s := newScene(t)
					state.set(s.api)
					s.play(s.config(), func() { time.Sleep(after * time.Millisecond) })
				})
			}
		})
	}
}

func TestNew(t *testing.T) {
	good := newScene(t).config()
	for _, test := range []struct {
		want   string
		change func(*Config)
	}{
		{"", func(*Config) {}},
		{"", func(c *Config) { c.Adopt, c.OnFailure, c.Logger = nil, nil, nil }},
		{"node name is empty", func(c *Config) { c.NodeName = "" }},
		{"nodes and content must be given", func(c *Config) { c.Nodes = nil }},
		{"nodes and content must be given", func(c *Config) { c.Content = nil }},
		{"update frequency 0s is not positive", func(c *Config) { c.UpdateFrequency = 0 }},
		{"report frequency -1ns is negative", func(c *Config) { c.ReportFrequency = -1 }},
		{"timeout 0s is not positive", func(c *Config) { c.Timeout = 0 }},
	} {
		cfg := good
		test.change(&cfg)
		_, err := New(cfg)
		apitest.Diff(t, "error", test.want, apitest.ErrorText(err))
	}
}

// What is urgent goes out though the bucket is empty, and the last post after Run
// has ended needs no turn either.
func TestUrgentChangeDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		s.steady(cfg, func() {
			for i := range 6 {
				s.judge(v1.NodePIDPressure, i%2 == 0)
				s.sleep(600 * time.Millisecond)
			}
			s.api.Take()
			s.judge(v1.NodePIDPressure, true)
			s.api.Took(t, "the bucket is empty", "")
			s.mu.Lock()
			s.unhealthy, s.urgent = errors.New("node is shutting down"), true
			s.mu.Unlock()
			s.Wake()
			s.api.Took(t, "urgent", "PATCH")
			apitest.Diff(t, "message", "node is shutting down", s.condition(v1.NodeReady).Message)
			s.mu.Lock()
			s.urgent = false
			s.mu.Unlock()
		})
		s.mu.Lock()
		s.unhealthy = errors.New("the last word")
		s.mu.Unlock()
		if err := s.Post(t.Context()); err != nil {
			t.Error(err)
		}
		s.api.Took(t, "after the end", "PATCH")
		apitest.Diff(t, "message", "the last word", s.condition(v1.NodeReady).Message)
	})
}

// Where Run ends during a patch, the API server may have taken it: what is posted last is
// compared with the Node as it is.
func TestPostAfterInterruptedPatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Put(func(*v1.Node) {})
		ours := []Condition{{Type: Prefix + "Some", Status: v1.ConditionTrue, Reason: "Some", Message: "some"}}
		cfg := s.config()
		cfg.Registrar, cfg.Content = nil, contentFunc(func() []Condition { return ours })
		u, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		s.api.Edit(func() {
			s.api.Lose = func(verb string) error {
				if verb != "PATCH" {
					return nil
				}
				stop()
				return ctx.Err()
			}
		})
		if err := u.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.api.Edit(func() { s.api.Lose = nil })
		ours = nil
		if err := u.Post(t.Context()); err != nil {
			t.Error(err)
		}
		if left := s.api.Current().Status.Conditions; len(left) > 0 {
			t.Errorf("left on the Node: %+v", left)
		}
	})
}

func TestPostBeforeRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		u, err := New(s.config())
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Post(t.Context()); err != nil {
			t.Error(err)
		}
		s.api.Took(t, "without a Node", "")
	})
}

// The first post is followed by the next after a random delay, like that of a change.
func TestFirstPostIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, delays := newScene(t), map[time.Duration]bool{}
		for range 8 {
			u, err := New(s.config())
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // registration, and a pass that finds nothing more
				u.step(t.Context())
			}
			if d := u.report.delay; d < -150*time.Second || d >= 150*time.Second {
				t.Errorf("delay of %v", d)
			}
			delays[u.report.delay] = true
		}
		if len(delays) < 2 {
			t.Errorf("everybody posts at the same time: %v", delays)
		}
	})
}

// What gets better waits for a token that what gets worse may need, and goes with it.
func TestLastTokenIsForWhatGetsWorse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(time.Minute)
			s.judge(v1.NodeMemoryPressure, true)
			s.sleep(time.Second)
			s.judge(v1.NodeDiskPressure, true)
			s.sleep(time.Second)
			s.judge(v1.NodeMemoryPressure, false)
			s.sleep(time.Second)
			s.api.Took(t, "a token is left", "PATCH PATCH")
			s.judge(v1.NodePIDPressure, true)
			s.api.Took(t, "for this", "PATCH")
			apitest.Diff(t, "what has begun", v1.ConditionTrue, s.condition("PIDPressure").Status)
			apitest.Diff(t, "what has ended", v1.ConditionFalse, s.condition("MemoryPressure").Status)
		})
	})
}
