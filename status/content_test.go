package status

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// draftFunc is a content made of a function.
type draftFunc func(old *v1.Node, due bool) Draft

func (f draftFunc) Draft(_ context.Context, old *v1.Node, _ time.Time, due bool) Draft {
	return f(old, due)
}

// What a draft holds besides the patch: Events are recorded once the patch is posted,
// Observed at once, and an error is logged once and keeps nothing from being posted.
func TestDraft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		events := &apitest.Events{}
		var draft Draft
		cfg := s.config()
		cfg.Registrar, cfg.Record, cfg.ReportFrequency = nil, events.Record, 0
		cfg.Content = draftFunc(func(*v1.Node, bool) Draft {
			s.mu.Lock()
			defer s.mu.Unlock()
			return draft
		})
		set := func(d Draft) {
			s.mu.Lock()
			draft = d
			s.mu.Unlock()
			s.Wake()
			s.sleep(0)
		}
		label := Draft{
			Changed: true,
			Patch:   func() ([]byte, error) { return []byte(`{"metadata":{"labels":{"a":"b"}}}`), nil },
			Events:  func() []Event { return []Event{{v1.EventTypeNormal, "Posted", "x"}} },
		}
		s.api.Put(func(*v1.Node) {})
		s.play(cfg, func() {
			s.sleep(time.Second)
			s.api.Took(t, "an empty draft", "GET ADOPT")
			apitest.Diff(t, "ready", nil, s.Ready())

			set(Draft{Observed: []Event{{v1.EventTypeNormal, "Cordoned", "x"}}})
			set(Draft{})
			apitest.Diff(t, "events without a post", []string{"Cordoned"}, events.Take())

			s.api.Refuse("PATCH", apitest.ErrDown)
			set(label)
			apitest.Diff(t, "events of a patch that fails", []string(nil), events.Take())
			s.api.Refuse("", nil)
			s.sleep(10 * time.Second)
			apitest.Diff(t, "events of a patch", []string{"Posted"}, events.Take())
			apitest.Diff(t, "label", "b", s.api.Current().Labels["a"])

			set(Draft{})
			s.logs.With()
			s.api.Take()
			label.Events, label.Err = nil, errors.New("no GPU")
			s.sleep(time.Minute)
			set(label)
			s.sleep(5 * time.Second)
			apitest.Diff(t, "logs", []string{`level=WARN msg="part of the node's status could not be set" node=node-1 err="no GPU"`}, s.logs.With("level"))
			s.api.Took(t, "in spite of an error", "PATCH")

			set(Draft{Changed: true, Patch: func() ([]byte, error) { return nil, errors.New("cannot be encoded") }})
			if err := s.Ready(); err == nil {
				t.Error("ready although there is no patch")
			}
			set(Draft{})
		})
	})
}

// Conditions that were not set yet, as before the first sample, are neither posted nor
// removed; an empty set removes them.
func TestConditionsNotSet(t *testing.T) {
	node := &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: "nodeprobe.dev/A", Status: v1.ConditionTrue, Reason: "Bad"}}}}
	c := NewConditions("")
	for _, due := range []bool{false, true} {
		if draft := c.Draft(t.Context(), node, apitest.At(1).Time, due); draft.Patch != nil || draft.Changed {
			t.Errorf("due %t: %+v", due, draft)
		}
	}
	c.Set(nil)
	draft := c.Draft(t.Context(), node, apitest.At(1).Time, false)
	if !draft.Changed {
		t.Fatal("a condition that is not in the set is kept")
	}
	patch, err := draft.Patch()
	apitest.Diff(t, "error", nil, err)
	apitest.Diff(t, "patch", `{"status":{"conditions":[{"$patch":"delete","type":"nodeprobe.dev/A"}]}}`, string(patch))
}

// The built-in types are a kubelet's, whichever client wrote them last.
func TestConditionsOfAKubelet(t *testing.T) {
	c := NewConditions("")
	c.Set([]Condition{ours("Ready", v1.ConditionFalse, 1), ours("NetworkUnavailable", v1.ConditionTrue, 1), ours("nodeprobe.dev/A", v1.ConditionFalse, 1)})
	draft := c.Draft(t.Context(), &v1.Node{}, apitest.At(1).Time, true)
	apitest.Diff(t, "error", "condition Ready, NetworkUnavailable is a kubelet's: choose another type", apitest.ErrorText(draft.Err))
	patch, err := draft.Patch()
	apitest.Diff(t, "error", nil, err)
	apitest.Diff(t, "patch", `{"status":{"conditions":[{"type":"nodeprobe.dev/A","status":"False","reason":"Good","message":"all is well",`+
		`"lastHeartbeatTime":"2000-01-01T00:00:01Z","lastTransitionTime":"2000-01-01T00:00:01Z"}]}}`, string(patch))
}

// Conditions are ours under our field manager: two agents on a Node leave each other's
// alone.
func TestFieldManager(t *testing.T) {
	const a, b = "example.com/A", "example.com/B"
	node := &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: a, Status: v1.ConditionTrue}, {Type: b, Status: v1.ConditionTrue}}}}
	node.ManagedFields = append(node.ManagedFields, managed("edge-agent", "status", a), managed(DefaultFieldManager, "status", b))
	for manager, want := range map[string]string{"edge-agent": a, "": b, DefaultFieldManager: b, "another": ""} {
		c := NewConditions(manager)
		c.Set(nil)
		draft := c.Draft(t.Context(), node, apitest.At(1).Time, false)
		if draft.Patch == nil {
			apitest.Diff(t, manager, want, "")
			continue
		}
		patch, err := draft.Patch()
		apitest.Diff(t, "error", nil, err)
		apitest.Diff(t, manager, `{"status":{"conditions":[{"$patch":"delete","type":"`+want+`"}]}}`, string(patch))
	}

	api := &apitest.API{}
	api.Put(func(n *v1.Node) { n.Status, n.ManagedFields = node.Status, node.ManagedFields })
	removed, err := Cleanup(t.Context(), api, apitest.NodeName, "edge-agent")
	apitest.Diff(t, "cleanup", []string{a}, removed)
	apitest.Diff(t, "error", nil, err)
}

func TestWorse(t *testing.T) {
	set := func(kind v1.NodeConditionType, is v1.ConditionStatus) []v1.NodeCondition {
		return []v1.NodeCondition{{Type: "Other", Status: "True"}, {Type: kind, Status: is}}
	}
	for _, test := range []struct {
		name      string
		old, next []v1.NodeCondition
		want      bool
	}{
		{"begins", set("DiskPressure", "False"), set("DiskPressure", "True"), true},
		{"begins, unknown before", set("DiskPressure", "Unknown"), set("DiskPressure", "True"), true},
		{"is new", nil, set("DiskPressure", "True"), true},
		{"goes on", set("DiskPressure", "True"), set("DiskPressure", "True"), false},
		{"ends", set("DiskPressure", "True"), set("DiskPressure", "False"), false},
		{"is unknown", set("DiskPressure", "False"), set("DiskPressure", "Unknown"), false},
		{"is gone", set("DiskPressure", "True"), set("DiskPressure", "True")[:1], false},
		{"not ready", set("Ready", "True"), set("Ready", "False"), true},
		{"not known to be ready", set("Ready", "True"), set("Ready", "Unknown"), true},
		{"ready", set("Ready", "False"), set("Ready", "True"), false},
		{"never was ready", set("Ready", "Unknown"), set("Ready", "False"), false},
	} {
		if got := Worse(test.old, test.next); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
