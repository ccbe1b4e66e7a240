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

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// A Node that was registered here, or found, and is deleted after that stays deleted, and is
// looked for no faster than the back-off says.
func TestDeletedNodeStaysDeleted(t *testing.T) {
	for name, remove := range map[string]func(s *scene){
		"seen by the watch": func(s *scene) { s.api.remove() },
		"found out by a patch": func(s *scene) {
			s.api.refuse("WATCH", errForbidden)
			s.api.cutWatches(nil)
			s.sleep(time.Minute)
			s.api.remove()
			s.sleep(20 * time.Second)
			s.api.took(s.t, "nobody knows", "")
			s.Wake()
			s.api.took(s.t, "a wake-up does not ask", "")
			s.judge(pressure.MemoryPressure, true)
			s.api.took(s.t, "a patch", "PATCH")
		},
		"asked about": func(s *scene) {
			s.api.refuse("WATCH", errForbidden)
			s.api.cutWatches(nil)
			s.Recheck()
			s.api.took(s.t, "a Node that is there", "GET")
			s.sleep(time.Minute)
			s.api.remove()
			s.Recheck()
			s.api.took(s.t, "one that is not", "GET")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.steady(s.config(), func() {
					s.sleep(settled)
					s.api.take()
					s.logs.with()
					diff(t, "gone", nil, s.Gone())
					remove(s)
					s.api.take()
					s.sleep(time.Hour)
					for i, c := range s.api.take() {
						if c.verb != "GET" {
							t.Fatalf("call %d is a %s", i, c.verb)
						}
					}
					s.sleep(15 * time.Second)
					s.api.took(t, "15 seconds", "GET GET")
					for what, err := range map[string]error{"ready": s.Ready(), "gone": s.Gone()} {
						if !apierrors.IsNotFound(err) {
							t.Errorf("%s: %v", what, err)
						}
						diff(t, what, "node was deleted; restart nodeprobe to register it again", errorText(err))
					}
					diff(t, "logs", []string{
						`level=ERROR msg="node status is not posted" node=node-1 err="node was deleted; restart nodeprobe to register it again"`,
					}, s.logs.with("ERROR", "registered"))
					impatient, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := s.Owner(impatient); !apierrors.IsNotFound(err) {
						t.Errorf("owner: %v", err)
					}
				})
				s.play(s.config(), func() { // a restart
					s.sleep(time.Second)
					s.api.took(t, "a restart", "POST PATCH")
				})
			})
		})
	}
}

// Somebody else creates the Node: what registration mends is mended, the status is
// posted, and who waits for the Node gets it.
func TestDeletedNodeIsCreatedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.remove()
			s.sleep(time.Minute)
			s.api.take()
			s.logs.with()
			owner := make(chan types.UID)
			go func() {
				ref, err := s.Owner(t.Context())
				diff(t, "owner's error", nil, err)
				owner <- ref.UID
			}()
			s.api.put(func(n *v1.Node) { n.Labels, n.Spec.Unschedulable = map[string]string{"a": "b"}, true })
			s.sleep(7 * time.Second)
			s.api.took(t, "found", "GET PATCH PATCH")
			diff(t, "owner", types.UID("uid-2"), <-owner)
			diff(t, "gone", nil, s.Gone())
			diff(t, "ready", nil, s.Ready())
			node := s.api.current()
			if node.Labels["a"] != "b" || node.Labels[v1.LabelHostname] != nodeName || !node.Spec.Unschedulable {
				t.Errorf("labels %v, unschedulable %v", node.Labels, node.Spec.Unschedulable)
			}
			diff(t, "logs", []string{
				`level=INFO msg="node is registered" node=node-1 how=adopted uid=uid-2`,
				`level=INFO msg="node status is posted" node=node-1`,
			}, s.logs.with("level"))
		})
	})
}

// A Lease must not be made for a Node that is gone: who has asked for a check waits for
// its end.
func TestOwnerWaitsForRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.refuse("WATCH", errForbidden)
		s.steady(s.config(), func() {
			ask := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := s.Owner(ctx)
				return err
			}
			s.api.edit(func() { s.api.latency = 2 * time.Second })
			s.Recheck()
			diff(t, "while it is there", nil, ask())

			s.api.remove()
			s.Recheck()
			if err := ask(); !apierrors.IsNotFound(err) {
				t.Errorf("once it is gone: %v", err)
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.refuse("GET", errServer)
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

// A controller deletes the Node 25 ms after it appears, and somebody creates it again
// and again: our writes are bounded as those of a flapping condition are, whether the
// watch tells or the next patch finds out.
func TestDeletedAgainAndAgain(t *testing.T) {
	for name, set := range map[string]func(*Config){
		"registered here":       func(*Config) {},
		"registered by others":  func(c *Config) { c.Register = false },
		"conditions of our own": augmented,
	} {
		for _, watched := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, watched %t", name, watched), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newScene(t)
					if !watched {
						s.api.refuse("WATCH", errForbidden)
					}
					cfg := s.config()
					set(&cfg)
					const minutes = 2
					s.play(cfg, func() {
						s.api.put(func(*v1.Node) {})
						s.sleep(150 * time.Millisecond)
						for end := time.Now().Add(minutes * time.Minute); time.Now().Before(end); {
							s.api.remove()
							s.judge(pressure.MemoryPressure, true)
							s.sleep(7 * time.Millisecond)
							s.api.put(func(*v1.Node) {})
							s.sleep(25 * time.Millisecond)
						}
						calls := s.api.take()
						creations, patches := strings.Count(verbs(calls), "POST"), strings.Count(verbs(calls), "PATCH")
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
	c.Register = false
	c.Augment = func() []pressure.Finding {
		return []pressure.Finding{{Type: "nodeprobe.dev/X", Status: pressure.True, Reason: "X", Message: "x", Since: epoch}}
	}
}

// A Node that has lived for a minute is registered again as fast as at a start; one
// that has not, only when the back-off says so.
func TestBackoffEndsOnceSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		cfg.Register = false
		s.api.put(func(*v1.Node) {})
		gone := func() time.Duration {
			s.api.remove()
			s.sleep(0)
			began := time.Now()
			s.api.take()
			s.sleep(8 * time.Second)
			calls := s.api.take()
			s.api.put(func(*v1.Node) {})
			s.sleep(20 * time.Second) // the longest back-off, and a token
			if s.Node() == nil {
				t.Fatal("the Node is not found")
			}
			return calls[0].at.Sub(began)
		}
		s.play(cfg, func() {
			s.sleep(time.Second)
			diff(t, "young", 200*time.Millisecond, gone())
			s.sleep(-20*time.Second + settled - 1)
			if wait := gone(); wait <= time.Second {
				t.Errorf("the back-off has ended before the Node has settled: %v", wait)
			}
			s.sleep(settled)
			diff(t, "settled", 100*time.Millisecond, gone())
		})
	})
}
