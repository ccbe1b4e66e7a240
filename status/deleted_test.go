package status

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// A Node that was registered here, or found, and is deleted after that stays deleted, and is
// looked for no faster than the back-off says.
func TestDeletedNodeStaysDeleted(t *testing.T) {
	for name, remove := range map[string]func(s *scene){
		"seen by the watch": func(s *scene) { s.api.Remove() },
		"found out by a patch": func(s *scene) {
			s.api.Refuse("WATCH", apitest.ErrForbidden)
			s.api.CutWatches(nil)
			s.sleep(time.Minute)
			s.api.Remove()
			s.sleep(20 * time.Second)
			s.api.Took(s.t, "nobody knows", "")
			s.Wake()
			s.api.Took(s.t, "a wake-up does not ask", "")
			s.judge(v1.NodeMemoryPressure, true)
			s.api.Took(s.t, "a patch", "PATCH")
		},
		"asked about": func(s *scene) {
			s.api.Refuse("WATCH", apitest.ErrForbidden)
			s.api.CutWatches(nil)
			s.Recheck()
			s.api.Took(s.t, "a Node that is there", "GET")
			s.sleep(time.Minute)
			s.api.Remove()
			s.Recheck()
			s.api.Took(s.t, "one that is not", "GET")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.steady(s.config(), func() {
					s.sleep(settled)
					s.api.Take()
					s.logs.With()
					apitest.Diff(t, "gone", nil, s.Gone())
					remove(s)
					s.api.Take()
					s.sleep(time.Hour)
					for i, c := range s.api.Take() {
						if c.Verb != "GET" {
							t.Fatalf("call %d is a %s", i, c.Verb)
						}
					}
					s.sleep(15 * time.Second)
					s.api.Took(t, "15 seconds", "GET GET")
					for what, err := range map[string]error{"ready": s.Ready(), "gone": s.Gone()} {
						if !apierrors.IsNotFound(err) {
							t.Errorf("%s: %v", what, err)
						}
						apitest.Diff(t, what, "node was deleted; restart nodeprobe to register it again", apitest.ErrorText(err))
					}
					apitest.Diff(t, "logs", []string{
						`level=ERROR msg="node status is not posted" node=node-1 err="node was deleted; restart nodeprobe to register it again"`,
					}, s.logs.With("ERROR", "registered"))
					impatient, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := s.Owner(impatient); !apierrors.IsNotFound(err) {
						t.Errorf("owner: %v", err)
					}
				})
				s.play(s.config(), func() { // a restart
					s.sleep(time.Second)
					s.api.Took(t, "a restart", "POST PATCH")
				})
			})
		})
	}
}

// Another client creates the Node: what registration mends is mended, the status is
// posted, and who waits for the Node gets it.
func TestDeletedNodeIsCreatedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.Remove()
			s.sleep(time.Minute)
			s.api.Take()
			s.logs.With()
			owner := make(chan types.UID)
			go func() {
				ref, err := s.Owner(t.Context())
				apitest.Diff(t, "owner's error", nil, err)
				owner <- ref.UID
			}()
			s.api.Put(func(n *v1.Node) { n.Labels, n.Spec.Unschedulable = map[string]string{"a": "b"}, true })
			s.sleep(7 * time.Second)
			s.api.Took(t, "found", "GET PATCH PATCH")
			apitest.Diff(t, "owner", types.UID("uid-2"), <-owner)
			apitest.Diff(t, "gone", nil, s.Gone())
			apitest.Diff(t, "ready", nil, s.Ready())
			node := s.api.Current()
			if node.Labels["a"] != "b" || node.Labels[v1.LabelHostname] != apitest.NodeName || !node.Spec.Unschedulable {
				t.Errorf("labels %v, unschedulable %v", node.Labels, node.Spec.Unschedulable)
			}
			apitest.Diff(t, "logs", []string{
				`level=INFO msg="node is registered" node=node-1 how=adopted uid=uid-2`,
				`level=INFO msg="node status is posted" node=node-1`,
			}, s.logs.With("level"))
		})
	})
}

// A Lease must not be made for a Node that is gone: who has asked for a check waits for
// its end.
func TestOwnerWaitsForRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Refuse("WATCH", apitest.ErrForbidden)
		s.steady(s.config(), func() {
			ask := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := s.Owner(ctx)
				return err
			}
			s.api.Edit(func() { s.api.Latency = 2 * time.Second })
			s.Recheck()
			apitest.Diff(t, "while it is there", nil, ask())

			s.api.Remove()
			s.Recheck()
			if err := ask(); !apierrors.IsNotFound(err) {
				t.Errorf("once it is gone: %v", err)
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.Refuse("GET", apitest.ErrServer)
			s.Recheck()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if _, err := s.Owner(ctx); err == nil || apierrors.IsNotFound(err) {
				t.Errorf("while it cannot be read: %v", err)
			}
		})
	})
}

// A check that had begun before another was asked for does not do.
func TestLatch(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	var l latch
	open := func() bool { return l.wait(ended) == nil }
	if open() {
		t.Error("the zero latch is open")
	}
	turn := l.turn()
	l.shut()
	l.open(turn)
	if open() {
		t.Error("opened by a turn that is over")
	}
	l.open(l.turn())
	l.open(l.turn())
	if !open() {
		t.Error("not opened")
	}
	l.shut()
	if open() {
		t.Error("not shut")
	}
}

// A controller deletes the Node 25 ms after it appears, and a client creates it again
// and again: our writes are bounded as those of a flapping condition are, whether the
// watch reports it or the next patch fails.
func TestDeletedAgainAndAgain(t *testing.T) {
	for name, set := range map[string]func(*Config){
		"registered here":       func(*Config) {},
		"registered by others":  func(c *Config) { c.Registrar = nil },
		"conditions of our own": augmented,
	} {
		for _, watched := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, watched %t", name, watched), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newScene(t)
					if !watched {
						s.api.Refuse("WATCH", apitest.ErrForbidden)
					}
					cfg := s.config()
					set(&cfg)
					const minutes = 2
					s.play(cfg, func() {
						s.api.Put(func(*v1.Node) {})
						s.sleep(150 * time.Millisecond)
						for end := time.Now().Add(minutes * time.Minute); time.Now().Before(end); {
							s.api.Remove()
							s.judge(v1.NodeMemoryPressure, true)
							s.sleep(7 * time.Millisecond)
							s.api.Put(func(*v1.Node) {})
							s.sleep(25 * time.Millisecond)
						}
						calls := s.api.Take()
						creations, patches := strings.Count(apitest.Verbs(calls), "POST"), strings.Count(apitest.Verbs(calls), "PATCH")
						// A turn is for two patches: what registration mends, and the status.
						if most := 2 * (3 + 6*minutes); creations > 1 || patches > most || patches == 0 {
							t.Errorf("%d creations and %d patches in %d minutes, want at most one and %d", creations, patches, minutes, most)
						}
					})
				})
			})
		}
	}
}

// augmented has a condition of our own posted, and nothing else.
func augmented(c *Config) {
	c.Registrar = nil
	c.Content = contentFunc(func() []Condition {
		return []Condition{{Type: "nodeprobe.dev/X", Status: v1.ConditionTrue, Reason: "X", Message: "x", Since: apitest.Epoch}}
	})
}

// A Node that has lived for a minute is registered again as fast as at a start; one
// that has not, only when the back-off says so.
func TestBackoffEndsOnceSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		cfg.Registrar = nil
		s.api.Put(func(*v1.Node) {})
		gone := func() time.Duration {
			s.api.Remove()
			s.sleep(0)
			began := time.Now()
			s.api.Take()
			s.sleep(8 * time.Second)
			calls := s.api.Take()
			s.api.Put(func(*v1.Node) {})
			s.sleep(20 * time.Second) // the longest back-off, and a token
			if s.Node() == nil {
				t.Fatal("the Node is not found")
			}
			return calls[0].At.Sub(began)
		}
		s.play(cfg, func() {
			s.sleep(time.Second)
			apitest.Diff(t, "young", 200*time.Millisecond, gone())
			s.sleep(-20*time.Second + settled - 1)
			if wait := gone(); wait <= time.Second {
				t.Errorf("the back-off has ended before the Node has settled: %v", wait)
			}
			s.sleep(settled)
			apitest.Diff(t, "settled", 100*time.Millisecond, gone())
		})
	})
}
