package status

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// Who deletes the Node and makes another at once, while nobody looks, has not made
// what registration would: that is mended, whichever finds it. What that Node says of
// conditions is older than what this process knows, and is not taken over.
func TestReplacedNodeIsMended(t *testing.T) {
	for name, find := range map[string]func(s *scene){
		"a patch":  func(s *scene) { s.judge(v1.NodeMemoryPressure, true) },
		"a check":  func(s *scene) { s.Recheck() },
		"the next": func(s *scene) { s.sleep(10 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.api.Refuse("WATCH", apitest.ErrForbidden)
				s.steady(s.config(), func() {
					s.api.Remove()
					s.api.Put(func(n *v1.Node) { n.Labels = map[string]string{"a": "b"} })
					find(s)
					s.sleep(30 * time.Second)
					node := s.api.Current()
					apitest.Diff(t, "hostname", apitest.NodeName, node.Labels[v1.LabelHostname])
					apitest.Diff(t, "label of others", "b", node.Labels["a"])
					if calls := apitest.Verbs(s.api.Take()); !strings.Contains(calls, "GET PATCH PATCH") || strings.Contains(calls, "POST") {
						t.Errorf("calls %s", calls)
					}
					apitest.Diff(t, "ready", nil, s.Ready())
				})
			})
		})
	}
}

// A watch that is forbidden costs only that: it is asked for now and then, said
// once, and the Node is not read instead.
func TestForbiddenWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Refuse("WATCH", apitest.ErrForbidden)
		s.steady(s.config(), func() {
			s.sleep(2 * time.Hour)
			if n := len(s.api.Watches()); n > 13 {
				t.Errorf("%d watches in 2 hours", n)
			}
			for _, c := range s.api.Take() {
				if c.Verb != "PATCH" {
					t.Errorf("%s at %v", c.Verb, c.At)
				}
			}
			apitest.Diff(t, "logs", []string{
				`level=WARN msg="watch of the node ended" node=node-1 err="watch node node-1: nodes \"node-1\" is forbidden: no"`,
			}, s.logs.With("WARN", "ERROR"))
			// What others write is seen all the same.
			s.api.Put(func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
			s.judge(v1.NodeDiskPressure, true)
			s.api.Took(t, "the answer to a patch shows it", "PATCH")
			s.sleep(10 * time.Second)
			s.api.Took(t, "and it is mended", "PATCH")
			apitest.Diff(t, "condition", v1.ConditionFalse, s.condition("MemoryPressure").Status)
		})
	})
}

// What others write is kept, unless it is ours to say.
func TestForeignWrites(t *testing.T) {
	foreign := v1.NodeCondition{Type: "KernelDeadlock", Status: v1.ConditionFalse, Reason: "X"}
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(time.Minute)
			s.api.Put(func(n *v1.Node) {
				n.Status.Conditions = append([]v1.NodeCondition{foreign}, n.Status.Conditions...)
				n.Spec.Unschedulable = true
				n.Labels["a"] = "b"
			})
			s.sleep(time.Second)
			s.api.Took(t, "nothing that we write", "")
			s.api.Put(func(n *v1.Node) { n.Labels["c"] = "d" })
			s.api.Took(t, "nothing that we write", "")
			apitest.Diff(t, "last known Node", s.api.Current(), s.Node())

			// The node lifecycle controller gives up on a node that it does not
			// hear from.
			s.api.Put(func(n *v1.Node) {
				for i := range n.Status.Conditions[1:] {
					c := &n.Status.Conditions[i+1]
					c.Status, c.Reason, c.Message = v1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
					c.LastTransitionTime = metav1.Now()
				}
			})
			s.api.Took(t, "marked unknown", "PATCH")
			for _, c := range s.api.Current().Status.Conditions[1:] {
				if c.Status == v1.ConditionUnknown || c.Reason == "NodeStatusUnknown" || !c.LastTransitionTime.Equal(new(apitest.At(62))) {
					t.Errorf("%v", c)
				}
			}
			n := s.api.Current()
			if !n.Spec.Unschedulable || n.Labels["a"] != "b" || n.Status.Conditions[0] != foreign {
				t.Errorf("what belongs to others has changed: %v", n)
			}
		})
	})
}

// Of what the watch shows only what is newer counts: not the echo of our own
// patches, not the past of a Node that is there again.
func TestSighted(t *testing.T) {
	node := func(version string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{UID: "uid-2", ResourceVersion: version}}
	}
	for _, test := range []struct {
		name    string
		sight   sighting
		changed bool
		version string // of the last known Node; "" if it is gone
	}{
		{"newer", sighting{node: node("42")}, true, "42"},
		{"newer, with more digits", sighting{node: node("100")}, true, "100"},
		{"echo", sighting{node: node("41")}, false, "41"},
		{"older", sighting{node: node("9")}, false, "41"},
		{"not a number", sighting{node: node("x")}, true, "x"},
		{"gone", sighting{gone: "uid-2"}, true, ""},
		{"gone before there was another", sighting{gone: "uid-1"}, false, "41"},
	} {
		u, err := New(newScene(t).config())
		if err != nil {
			t.Fatal(err)
		}
		if u.sighted(test.sight) {
			t.Errorf("%s: news although no Node is known", test.name)
		}
		u.node.Store(node("41"))
		apitest.Diff(t, test.name, test.changed, u.sighted(test.sight))
		version := ""
		if n := u.Node(); n != nil {
			version = n.ResourceVersion
		}
		apitest.Diff(t, test.name, test.version, version)
	}
}

// A watch goes on where the last one ended, be that a bookmark.
func TestWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.Edit(func() { s.api.Version = 1000 }) // other nodes' changes
			s.api.Bookmark()
			s.api.Take()
			s.sleep(11 * time.Minute)
			for i, from := range s.api.Watches() {
				if version, err := strconv.Atoi(from); err != nil || version < 1000 {
					t.Errorf("watch %d is from %s, want from 1000 or what was posted since", i, from)
				}
			}
			s.judge(v1.NodeDiskPressure, true) // no patch for the period's sake in the next 2.5 minutes
			s.sleep(time.Second)
			s.api.Take()
			s.api.CutWatches(nil)
			s.api.Put(func(n *v1.Node) { n.Status.Conditions[3].Status = v1.ConditionUnknown })
			s.sleep(5 * time.Second)
			s.api.Took(t, "what happened between two watches", "PATCH")
			apitest.Diff(t, "condition", v1.ConditionTrue, s.condition("Ready").Status)
			s.api.CutWatches(nil)
			s.api.Remove()
			s.sleep(10 * time.Second)
			if calls := apitest.Verbs(s.api.Take()); !strings.HasPrefix(calls, "GET") || strings.Trim(calls, "GET ") != "" || !errors.Is(s.Ready(), errDeleted) {
				t.Errorf("deleted between two watches: calls %s, ready %v", calls, s.Ready())
			}
			apitest.Diff(t, "errors", []string(nil), s.logs.With("WARN"))
		})
	})
}

// Where the history is gone, the Node is read once, and watched from now on.
func TestWatchExpires(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t)
			s.steady(s.config(), func() {
				s.sleep(20 * time.Second)
				s.api.Take()
				s.api.CutWatches(nil)
				if deleted {
					s.api.Remove()
				}
				s.api.Edit(func() { s.api.Version, s.api.Compacted = 2000, 2000 })
				s.sleep(2 * time.Second)
				if deleted {
					if calls := apitest.Verbs(s.api.Take()); strings.Trim(calls, "GET ") != "" || !errors.Is(s.Ready(), errDeleted) {
						t.Errorf("calls %s, ready %v", calls, s.Ready())
					}
					return
				}
				s.api.Took(t, "expired", "GET")
				apitest.Diff(t, "ready", nil, s.Ready())
				s.sleep(time.Minute)
				s.api.Took(t, "a minute of peace", "")
				s.api.Put(func(n *v1.Node) { n.Status.Conditions[3].Status = v1.ConditionUnknown })
				s.api.Took(t, "watched again", "PATCH")
				s.sleep(time.Hour)
				for _, c := range s.api.Take() {
					if c.Verb != "PATCH" {
						t.Errorf("%s at %v", c.Verb, c.At)
					}
				}
			})
		})
	}
}

// A server that does not begin a watch, and a connection that dies without a
// word, are noticed by the clock.
func TestSilentWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Edit(func() { s.api.Hang = "WATCH" })
		s.steady(s.config(), func() {
			s.sleep(10 * time.Second)
			apitest.Diff(t, "logs", []string{
				`level=WARN msg="watch of the node ended" node=node-1 err="watch node node-1: the API server is silent"`,
			}, s.logs.With("WARN"))
			s.api.Edit(func() { s.api.Hang = "" })
			s.sleep(2 * time.Second)
			s.api.Edit(func() {
				for _, stream := range s.api.Streams {
					stream.Mute = true
				}
			})
			s.api.Take()
			s.sleep(maxWatch + 15*time.Second)
			if len(s.api.Watches()) == 0 {
				t.Error("a watch that died without a word is not replaced")
			}
			s.api.Put(func(n *v1.Node) { n.Status.Conditions[3].Status = v1.ConditionUnknown })
			s.sleep(5 * time.Second) // there may be a second between two watches
			apitest.Diff(t, "mended", v1.ConditionTrue, s.condition("Ready").Status)
			s.sleep(time.Hour)
			apitest.Diff(t, "logs afterwards", []string{`level=INFO msg="watch of the node works again" node=node-1`}, s.logs.With("watch"))
		})
	})
}

// Watches that fail at once are tried less and less often; one that lasted is
// followed by the next.
func TestNextWatch(t *testing.T) {
	var waits []time.Duration
	var wait time.Duration
	for range 9 {
		wait = nextWatch(wait, 0)
		waits = append(waits, wait.Round(time.Second))
	}
	if !slices.IsSorted(waits[:6]) || waits[0] != time.Second || waits[8] != time.Minute {
		t.Errorf("waits %v", waits)
	}
	if got := nextWatch(wait, time.Minute); got > 1200*time.Millisecond {
		t.Errorf("%v after a watch that lasted", got)
	}
}

// Errors within a watch count, and are distinguished by their texts.
func TestWatchErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			for range 3 {
				s.api.CutWatches(&apitest.ErrServer.ErrStatus)
				s.sleep(5 * time.Second)
			}
			s.api.Took(t, "no reason to read the Node", "")
			lines := s.logs.With("WARN")
			if len(lines) != 1 {
				t.Errorf("logs %q, want one line", lines)
			}
			if _, err := s.watchOnce(t.Context(), "x", nil); !apierrors.IsBadRequest(err) {
				t.Errorf("watch from nowhere: %v", err)
			}
		})
	})
}
