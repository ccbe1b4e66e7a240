package parity

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// What would not be noticed here would not be noticed there.
func TestCompare(t *testing.T) {
	allowed := &allowance{"status.images": "why", "metadata.labels[example.com/a]": "why"}
	theirs := `{"status":{"images":[1],"phase":"a"},"metadata":{"labels":{"example.com/a":"1"}}}`
	for _, test := range []struct {
		name, ours string
		bad        int
		seen       []string
	}{
		{"equal", theirs, 0, nil},
		{"allowed", `{"status":{"images":[1,2],"phase":"a"},"metadata":{"labels":{"example.com/a":"2"}}}`, 0, []string{"metadata.labels[example.com/a]", "status.images"}},
		{"allowed to be absent", `{"status":{"phase":"a"},"metadata":{"labels":{"example.com/a":"1"}}}`, 0, []string{"status.images"}},
		{"another value", `{"status":{"images":[1],"phase":"b"},"metadata":{"labels":{"example.com/a":"1"}}}`, 1, nil},
		{"absent", `{"status":{"images":[1]},"metadata":{"labels":{"example.com/a":"1"}}}`, 1, nil},
		{"more", `{"status":{"images":[1],"phase":"a","imagesToo":1},"metadata":{"labels":{"example.com/a":"1","b":"c"}}}`, 2, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			bad, seen := compare(decode(t, theirs), decode(t, test.ours), allowed)
			var lines []string
			for line := range seen {
				lines = append(lines, line)
			}
			slices.Sort(lines)
			if len(bad) != test.bad || !slices.Equal(lines, test.seen) {
				t.Errorf("got %v, %v; want %d bad ones, and %v", bad, lines, test.bad, test.seen)
			}
		})
	}
}

func TestNormalBody(t *testing.T) {
	got, err := normalBody(json.RawMessage(`{"metadata":{"name":"parity-nodeprobe","uid":"1-2","resourceVersion":"7","managedFields":[1]},
		"spec":{"renewTime":"2026-01-02T03:04:05.000006Z"},
		"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":"2026-01-02T03:04:05Z","lastTransitionTime":"2026-01-02T03:04:05.1Z"}]}}`))
	must.OK(t, err)
	want := decode(t, `{"metadata":{"name":"NODE","uid":"ID","resourceVersion":"ID"},"spec":{"renewTime":"TIME"},
		"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":"TIME","lastTransitionTime":"2026-01-02T03:04:05.1Z"}]}}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestStrip(t *testing.T) {
	allowed := &allowance{"a.b": "", "a.c": "", "x": ""}
	for body, want := range map[string]string{
		`{"a":{"b":1,"c":2}}`:       `{}`,
		`{"a":{"b":1,"d":2},"x":1}`: `{"a":{"d":2}}`,
		`{"a":[1],"y":{}}`:          `{"a":[1],"y":{}}`,
	} {
		if diff := cmp.Diff(decode(t, want), strip(decode(t, body), allowed)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", body, diff)
		}
	}
}

func TestAddHeartbeats(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: `{}`,
		`{"status":{"$setElementOrder/conditions":[{"type":"A"},{"type":"B"}],"conditions":[{"type":"B","status":"True"}]}}`: `{"status":{"$setElementOrder/conditions":[{"type":"A"},{"type":"B"}],
			"conditions":[{"type":"A","lastHeartbeatTime":"TIME"},{"type":"B","status":"True","lastHeartbeatTime":"TIME"}]}}`,
	} {
		got := decode(t, body)
		addHeartbeats(got)
		if diff := cmp.Diff(decode(t, want), got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", body, diff)
		}
	}
}

func TestKindsOfPatch(t *testing.T) {
	ready := changes(corev1.NodeReady, corev1.ConditionTrue)
	for _, test := range []struct {
		body             string
		heartbeat, ready bool
	}{
		{`{}`, false, false},
		{`{"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"type":"Ready","lastHeartbeatTime":"TIME"}]}}`, true, false},
		{`{"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"type":"Ready","lastHeartbeatTime":"TIME","status":"True"}]}}`, false, true},
		{`{"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"type":"Ready","lastHeartbeatTime":"TIME","status":"False"}]}}`, false, false},
		{`{"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"type":"Ready","lastHeartbeatTime":"TIME"}],"images":null}}`, false, false},
		{`{"metadata":{},"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"type":"Ready","lastHeartbeatTime":"TIME"}]}}`, false, false},
		{`{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":"TIME"}]}}`, false, false},
	} {
		body := decode(t, test.body)
		if isHeartbeat(body) != test.heartbeat || ready(body) != test.ready {
			t.Errorf("%s: heartbeat %t, ready %t", test.body, isHeartbeat(body), ready(body))
		}
	}
}

func decode(t *testing.T, text string) (m map[string]any) {
	t.Helper()
	must.OK(t, json.Unmarshal([]byte(text), &m))
	return m
}
