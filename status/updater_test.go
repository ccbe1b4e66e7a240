package status

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
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
			diff(t, "posted before anything was done", Posted{}, s.Posted())
			impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := s.Owner(impatient); !apierrors.IsNotFound(err) {
				t.Errorf("owner of a Node that is not there: %v", err)
			}
			s.sleep(49 * time.Millisecond)
			s.api.took(t, "before the first back-off is over", "")
			s.sleep(time.Millisecond)
			s.api.took(t, "after it", "POST PATCH")
			diff(t, "ready", nil, s.Ready())
			owner, err := s.Owner(t.Context())
			diff(t, "owner", metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: "uid-1"}, owner)
			diff(t, "owner's error", nil, err)
			diff(t, "last known Node", s.api.current(), s.Node())
			diff(t, "logs", []string{
				`level=INFO msg="node is registered" node=node-1 how=created uid=uid-1`,
				`level=INFO msg="node status is posted" node=node-1`,
			}, s.logs.with("level"))
		})
	})
}

// In steady state the Node is never read, and posted once in a report period:
// after a change at a random time within 2.5 to 7.5 minutes, then every 5.
func TestSteadyState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			last := epoch.Add(100 * time.Millisecond)
			for round := range 10 {
				s.sleep(time.Hour)
				for i, c := range s.api.take() {
					if c.verb != "PATCH" || strings.Contains(c.body, "status\":\"") {
						t.Fatalf("%s %s", c.verb, c.body)
					}
					gap := c.at.Sub(last)
					last = c.at
					if i > 0 && gap != 5*time.Minute {
						t.Errorf("period patches %v apart", gap)
					} else if i == 0 && (gap < 150*time.Second || gap > 450*time.Second) {
						t.Errorf("first patch %v after a change", gap)
					}
				}
				s.judge(pressure.DiskPressure, round%2 == 0)
				last = time.Now()
				s.api.took(t, "change", "PATCH")
			}
			diff(t, "errors", []string(nil), s.logs.with("ERROR", "WARN"))
		})
	})
}

// A change goes out in the same instant, and tells when it was.
func TestChangeIsPatchedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(7300 * time.Millisecond)
			s.judge(pressure.MemoryPressure, true)
			calls := s.api.take()
			if verbs(calls) != "PATCH" || !calls[0].at.Equal(time.Now()) {
				t.Errorf("calls %v", calls)
			}
			diff(t, "condition", v1.NodeCondition{
				Type: "MemoryPressure", Status: "True", Reason: "KubeletHasInsufficientMemory",
				Message: "kubelet has insufficient memory available", LastTransitionTime: at(8),
			}, s.condition("MemoryPressure"), sameTimes())
			want := Posted{Time: time.Now(), Reason: "changed", Bytes: len(calls[0].body)}
			diff(t, "posted", want, s.Posted())
			s.Wake()
			s.api.took(t, "a wake-up without a change", "")
			diff(t, "posted, after that", want, s.Posted())
		})
	})
}

// What changes within half a second of a post goes out as one, and what is back
// as it was does not go out at all.
func TestBurstIsFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.judge(pressure.MemoryPressure, true)
			s.api.took(t, "the first", "PATCH")
			s.sleep(100 * time.Millisecond)
			s.judge(pressure.DiskPressure, true)
			s.sleep(100 * time.Millisecond)
			s.judge(pressure.PIDPressure, true)
			s.sleep(299 * time.Millisecond)
			s.api.took(t, "held back", "")
			s.sleep(time.Millisecond)
			calls := s.api.take()
			if verbs(calls) != "PATCH" || strings.Count(calls[0].body, `"status":"True"`) != 2 {
				t.Errorf("calls %v, want one patch with both changes", calls)
			}
			s.judge(pressure.DiskPressure, false)
			s.sleep(100 * time.Millisecond)
			s.judge(pressure.DiskPressure, true)
			s.sleep(time.Minute)
			s.api.took(t, "back as it was", "")
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
				s.judge(pressure.PIDPressure, i%2 == 0)
				s.sleep(time.Second)
			}
			s.judge(pressure.PIDPressure, true)
			calls := s.api.take()
			if n := len(calls); n > 3+60 || n < 50 {
				t.Errorf("%d patches in 10 minutes, want at most 63", n)
			}
			for _, c := range calls {
				if c.verb != "PATCH" {
					t.Errorf("%s", c.verb)
				}
			}
			s.sleep(10 * time.Second)
			diff(t, "in the end", v1.ConditionTrue, s.condition("PIDPressure").Status)
		})
	})
}

// An error of a setter keeps neither the others from running nor the status from
// being posted; it is no reason to try again, and it is logged once.
func TestSetterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		var mended atomic.Bool
		ran := 0
		cfg.Setters = []Setter{
			func(context.Context, *v1.Node) error {
				if mended.Load() {
					return nil
				}
				return errors.New("gpu driver is gone")
			},
			func(_ context.Context, n *v1.Node) error {
				ran++
				n.Labels["example.com/ran"] = "yes"
				return nil
			},
		}
		s.steady(cfg, func() {
			diff(t, "setter after it", 2, ran)
			diff(t, "label", "yes", s.api.current().Labels["example.com/ran"])
			s.judge(pressure.MemoryPressure, true)
			s.api.took(t, "a change", "PATCH")
			s.sleep(2 * time.Minute)
			s.api.took(t, "later", "")
			diff(t, "logs", []string{`level=WARN msg="part of the node's status could not be set" node=node-1 err="set node status: gpu driver is gone"`}, s.logs.with("could"))
			mended.Store(true)
			s.sleep(10 * time.Second)
			diff(t, "logs", []string{`level=INFO msg="all of the node's status could be set" node=node-1`}, s.logs.with("could"))
		})
	})
}

// Labels that the scheduler needs are mended, and nothing else is.
func TestRequiredLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.put(func(n *v1.Node) {
				n.Labels = map[string]string{v1.LabelOSStable: "plan9", "a": "b"}
			})
			s.api.took(t, "labels", "PATCH")
			labels := s.api.current().Labels
			if len(labels) != 3 || labels["a"] != "b" || requireLabels(s.api.current()) {
				t.Errorf("labels %v", labels)
			}
		})
	})
}

// The end may come at any time, whatever the API server does then.
func TestCancelAtAnyTime(t *testing.T) {
	for _, state := range []struct {
		name string
		set  func(*fakeAPI)
	}{
		{"well", func(*fakeAPI) {}},
		{"slow", func(a *fakeAPI) { a.latency = 700 * time.Millisecond }},
		{"down", func(a *fakeAPI) { a.refuse("POST GET PATCH WATCH", errDown) }},
		{"cannot be patched", func(a *fakeAPI) { a.refuse("PATCH", errServer) }},
		{"hangs at registration", func(a *fakeAPI) { a.hang = "POST" }},
		{"hangs", func(a *fakeAPI) { a.hang = "PATCH GET" }},
		{"does not begin watches", func(a *fakeAPI) { a.hang = "WATCH" }},
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
		{"nodes and facts must be given", func(c *Config) { c.Nodes = nil }},
		{"nodes and facts must be given", func(c *Config) { c.Facts = nil }},
		{"update frequency 0s is not positive", func(c *Config) { c.UpdateFrequency = 0 }},
		{"report frequency -1ns is not positive", func(c *Config) { c.ReportFrequency = -1 }},
		{"timeout 0s is not positive", func(c *Config) { c.Timeout = 0 }},
	} {
		cfg := good
		test.change(&cfg)
		_, err := New(cfg)
		diff(t, "error", test.want, errorText(err))
	}
}

// What is urgent goes out though the bucket is empty, and the last post after Run
// has ended needs no turn either.
func TestUrgentChangeDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		urgent := false
		cfg.Facts = func() Facts {
			f := s.facts()
			f.Urgent = urgent
			return f
		}
		s.steady(cfg, func() {
			for i := range 6 {
				s.judge(pressure.PIDPressure, i%2 == 0)
				s.sleep(600 * time.Millisecond)
			}
			s.api.take()
			s.judge(pressure.PIDPressure, true)
			s.api.took(t, "the bucket is empty", "")
			s.mu.Lock()
			s.unhealthy, urgent = errors.New("node is shutting down"), true
			s.mu.Unlock()
			s.Wake()
			s.api.took(t, "urgent", "PATCH")
			diff(t, "message", "node is shutting down", s.condition(v1.NodeReady).Message)
			s.mu.Lock()
			urgent = false
			s.mu.Unlock()
		})
		s.mu.Lock()
		s.unhealthy = errors.New("the last word")
		s.mu.Unlock()
		if err := s.Post(t.Context()); err != nil {
			t.Error(err)
		}
		s.api.took(t, "after the end", "PATCH")
		diff(t, "message", "the last word", s.condition(v1.NodeReady).Message)
	})
}

func TestPostBeforeRegistration(t *testing.T) {
	s := newScene(t)
	u, err := New(s.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Post(t.Context()); err != nil || len(s.api.calls) > 0 {
		t.Errorf("%v, %d calls", err, len(s.api.calls))
	}
}
