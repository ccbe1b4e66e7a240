package status

import (
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// What stands in the way of registration decides what is called, and what the
// outcome is.
func TestRegister(t *testing.T) {
	other := func(n *v1.Node) { // as another tool would make it
		n.Labels = map[string]string{"foreign": "kept"}
		n.Status.Conditions = []v1.NodeCondition{{Type: "MemoryPressure", Status: v1.ConditionTrue, Reason: "X"}}
	}
	for _, test := range []struct {
		name   string
		exists func(*v1.Node)
		change func(*Config)
		fail   map[string]error
		want   string // calls within the first 150 ms
		err    string
	}{
		{name: "created", want: "POST PATCH"},
		{name: "exists", exists: other, want: "POST GET ADOPT PATCH PATCH"},
		{name: "exists as we would make it", exists: adopted, want: "POST GET ADOPT PATCH"},
		{name: "may not create, but it exists", exists: adopted, fail: map[string]error{"POST": apitest.ErrForbidden}, want: "POST GET ADOPT PATCH"},
		{
			name: "may not create, and it does not exist", fail: map[string]error{"POST": apitest.ErrForbidden}, want: "POST GET",
			err: `create node node-1: nodes "node-1" is forbidden: no; get node node-1: nodes "node-1" not found`,
		},
		{
			name: "exists, and may neither be read nor patched", exists: other,
			fail: map[string]error{"GET": apitest.ErrForbidden, "PATCH": apitest.ErrForbidden}, want: "POST GET PATCH",
			err: `create node node-1: nodes "node-1" already exists; get node node-1: nodes "node-1" is forbidden: no`,
		},
		{
			name: "exists, and may not be read: a patch is answered with it", exists: other,
			fail: map[string]error{"GET": apitest.ErrForbidden}, want: "POST GET PATCH ADOPT PATCH PATCH",
		},
		{
			name: "exists, and may not be patched", exists: other, fail: map[string]error{"PATCH": apitest.ErrForbidden}, want: "POST GET ADOPT PATCH",
			err: `patch node node-1: nodes "node-1" is forbidden: no`,
		},
		{name: "server error", fail: map[string]error{"POST": apitest.ErrServer}, want: "POST", err: "create node node-1: " + apitest.ErrServer.Error()},
		{name: "too many requests", fail: map[string]error{"POST": apitest.ErrTooMany}, want: "POST", err: "create node node-1: " + apitest.ErrTooMany.Error()},
		{name: "conflict, which is not that it exists", exists: adopted, fail: map[string]error{"POST": apitest.ErrConflict}, want: "POST", err: "create node node-1: " + apitest.ErrConflict.Error()},
		{name: "down", fail: map[string]error{"POST": apitest.ErrDown}, want: "POST", err: "create node node-1: dial tcp: connection refused"},
		{name: "not to register, and it does not exist", change: func(c *Config) { c.Registrar = nil }, want: "GET", err: `get node node-1: nodes "node-1" not found; it must be registered by whatever runs the node, or its name is another (nodeName, NODE_NAME)`},
		{name: "not to register, and it exists", change: func(c *Config) { c.Registrar = nil }, exists: other, want: "GET ADOPT PATCH"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				if test.exists != nil {
					s.api.Put(test.exists)
				}
				s.api.Edit(func() { s.api.Fail = func(verb string) error { return test.fail[verb] } })
				cfg := s.config()
				if test.change != nil {
					test.change(&cfg)
				}
				s.play(cfg, func() {
					s.sleep(150 * time.Millisecond)
					s.api.Took(t, "calls", test.want)
					apitest.Diff(t, "ready", test.err, apitest.ErrorText(s.Ready()))
					apitest.Diff(t, "errors", min(len(test.err), 1), len(s.logs.With("ERROR")))
					if test.err == "" {
						checkRegistered(t, s.api.Current(), test.exists != nil, cfg.Registrar != nil)
						return
					}
					// What stood in the way goes away.
					s.api.Edit(func() { s.api.Fail = nil })
					if cfg.Registrar == nil {
						s.api.Put(other)
					}
					s.sleep(time.Second)
					apitest.Diff(t, "ready in the end", nil, s.Ready())
				})
			})
		})
	}
}

// adopted is a Node that registration finds nothing to mend on.
func adopted(n *v1.Node) {
	n.Labels = maps.Clone(registered)
}

func checkRegistered(t *testing.T, n *v1.Node, existed, register bool) {
	t.Helper()
	custom, instance := "bar", "m1"
	if existed {
		custom = "" // not one of those that registration owns
	}
	if !register {
		instance = ""
	}
	apitest.Diff(t, "custom label", custom, n.Labels["foo"])
	apitest.Diff(t, "default label", instance, n.Labels[v1.LabelInstanceTypeStable])
	if lastCondition(n, v1.NodeReady) == nil {
		t.Errorf("status was not posted: %v", n)
	}
}

// The waits are the kubelet's, and each comes before its attempt.
func TestRegistrationBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Refuse("POST", apitest.ErrDown)
		s.play(s.config(), func() {
			start := time.Now()
			s.sleep(35 * time.Second)
			s.Wake() // does not make it faster
			var waits []time.Duration
			last := start
			for _, c := range s.api.Take() {
				waits = append(waits, c.At.Sub(last))
				last = c.At
			}
			const ms = time.Millisecond
			apitest.Diff(t, "waits", []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 7000 * ms, 7000 * ms, 7000 * ms}, waits)
			if n := len(s.logs.With("ERROR")); n != 1 {
				t.Errorf("%d errors are logged, want 1", n)
			}
			s.api.Refuse("", nil)
			s.sleep(7 * time.Second)
			s.api.Took(t, "up again", "POST PATCH")
		})
	})
}

// Before the first sample nobody could say what the Node is.
func TestRegistrationWaitsForFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.noFacts = true
		s.play(s.config(), func() {
			s.sleep(10 * time.Second)
			s.api.Took(t, "without a sample", "")
			if err := s.Ready(); !errors.Is(err, errNoFacts) {
				t.Errorf("ready: %v, want %v", err, errNoFacts)
			}
			s.mu.Lock()
			s.noFacts = false
			s.mu.Unlock()
			s.sleep(7 * time.Second)
			s.api.Took(t, "with one", "POST PATCH")
		})
	})
}

// What an existing Node says is history that the evaluator gets to know before
// anything is posted: a restart does not end a condition.
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Put(func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{{Type: "MemoryPressure", Status: v1.ConditionTrue, Reason: "KubeletHasInsufficientMemory", LastTransitionTime: apitest.At(0)}}
		})
		cfg := s.config()
		cfg.Adopt = func(n *v1.Node) {
			s.api.Note("ADOPT", "")
			apitest.Diff(t, "what is adopted", v1.ConditionTrue, n.Status.Conditions[0].Status)
			s.judge(v1.NodeMemoryPressure, true)
		}
		s.play(cfg, func() {
			s.sleep(time.Second)
			s.api.Took(t, "start", "POST GET ADOPT PATCH PATCH")
			c := s.condition("MemoryPressure")
			if c.Status != v1.ConditionTrue || !c.LastTransitionTime.Equal(new(apitest.At(0))) {
				t.Errorf("%v", c)
			}
		})
	})
}

// Each call is bounded by itself.
func TestRegistrationIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Edit(func() { s.api.Hang = "POST" })
		s.play(s.config(), func() {
			s.sleep(100*time.Millisecond + 10*time.Second)
			apitest.Diff(t, "ready", "create node node-1: context deadline exceeded", apitest.ErrorText(s.Ready()))
			s.api.Edit(func() { s.api.Hang = "" })
			s.sleep(time.Second)
			apitest.Diff(t, "ready", nil, s.Ready())
		})
	})
}

// An Updater that only follows the Node sends nothing that could be a write, not even to read.
func TestFollowDoesNotPatchToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Put(func(*v1.Node) {})
		s.api.Refuse("GET", apitest.ErrForbidden)
		cfg := s.config()
		cfg.Registrar, cfg.Content = nil, Follow{}
		s.play(cfg, func() {
			s.sleep(time.Minute)
			for _, c := range s.api.Take() {
				if c.Verb != "GET" {
					t.Errorf("a %s", c.Verb)
				}
			}
		})
	})
}

// Where nothing may be written yet nothing is asked for either, and once it may be,
// registration does not wait for the next regular pass.
func TestRegistrationWaitsForLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		cfg.UpdateFrequency = time.Hour
		no := errors.New("cannot tell yet")
		cfg.Allow = func(n *v1.Node) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			return no
		}
		s.play(cfg, func() {
			s.sleep(5 * time.Minute)
			s.api.Took(t, "meanwhile", "")
			apitest.Diff(t, "ready", "cannot tell yet", apitest.ErrorText(s.Ready()))
			apitest.Diff(t, "logs", []string{`level=ERROR msg="node status is not posted" node=node-1 err="cannot tell yet"`}, s.logs.With("level"))
			s.mu.Lock()
			no = nil
			s.mu.Unlock()
			s.sleep(7 * time.Second)
			s.api.Took(t, "then", "POST PATCH")
		})
	})
}

// The Lease must not have to wait for its next round because it asked before the
// Node was there.
func TestOwnerWaitsForRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.play(s.config(), func() {
			owner, err := s.Owner(t.Context())
			apitest.Diff(t, "error", nil, err)
			apitest.Diff(t, "owner", "uid-1", string(owner.UID))
		})
	})
}
