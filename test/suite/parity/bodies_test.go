package parity

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// times are the fields that hold one, with the form that it must have.
var times = map[string]*regexp.Regexp{
	"lastHeartbeatTime":  regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`),
	"lastTransitionTime": regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`),
	"creationTimestamp":  regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`),
	"renewTime":          regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`),
}

// normalBody is the body of a request without what differs for reasons of its own:
// names, identities and times, of which the form is left.
func normalBody(raw json.RawMessage) (map[string]any, error) {
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return nil, fmt.Errorf("decode body %s: %w", raw, err)
	}
	blank(body)
	withoutOwn(body)
	return rename(body).(map[string]any), nil
}

// withoutOwn removes from a Node, or a patch of one, the conditions that nodeprobe posts
// after the kubelet's, and their places in the order of all. One of them that stands
// before a kubelet's stays, and is a difference then.
func withoutOwn(object map[string]any) {
	status, _ := object["status"].(map[string]any)
	for _, list := range []string{"conditions", "$setElementOrder/conditions"} {
		items, _ := status[list].([]any)
		for len(items) > 0 {
			last, _ := items[len(items)-1].(map[string]any)
			kind, _ := last["type"].(string)
			if !strings.HasPrefix(kind, ownConditions) {
				break
			}
			items = items[:len(items)-1]
			status[list] = items
		}
	}
}

func blank(value any) {
	switch v := value.(type) {
	case []any:
		for i := range v {
			blank(v[i])
		}
	case map[string]any:
		for key, field := range v {
			form := times[key]
			content, isText := field.(string)
			switch {
			case form != nil && isText && form.MatchString(content):
				v[key] = "TIME"
			case (key == "uid" || key == "resourceVersion") && isText:
				v[key] = "ID"
			case key == "managedFields": // the API server's, sent back to it
				delete(v, key)
			default:
				blank(field)
			}
		}
	}
}

// strip returns a body without the fields that are allowed to differ, and without
// the maps that have become empty by that.
func strip(body map[string]any, allowed *allowance) map[string]any {
	for path := range *allowed {
		body = pruned(body, strings.Split(path, "."))
	}
	return body
}

func pruned(m map[string]any, path []string) map[string]any {
	field, ok := m[path[0]]
	if !ok {
		return m
	}
	m = maps.Clone(m)
	inner, isMap := field.(map[string]any)
	switch {
	case len(path) == 1:
		delete(m, path[0])
	case isMap:
		if inner = pruned(inner, path[1:]); len(inner) == 0 {
			delete(m, path[0])
		} else {
			m[path[0]] = inner
		}
	}
	return m
}

// addHeartbeats puts into a patch the heartbeats that it lacks because the patch
// before was sent in the same second: the difference has nothing of them then.
func addHeartbeats(body map[string]any) {
	status, _ := body["status"].(map[string]any)
	order, _ := status["$setElementOrder/conditions"].([]any)
	told := conditions(body)
	var all []any
	for _, item := range order {
		key, _ := item.(map[string]any)
		entry := map[string]any{"type": key["type"]}
		for _, c := range told {
			if c["type"] == key["type"] {
				entry = c
			}
		}
		entry["lastHeartbeatTime"] = "TIME"
		all = append(all, entry)
	}
	if len(all) > 0 {
		status["conditions"] = all
	}
}

func asMap(object any) map[string]any {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // an API object
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		panic(err)
	}
	return m
}

// differences collects where two objects differ, by the paths of their fields.
type differences struct {
	path  cmp.Path
	found []difference
}

type difference struct{ path, theirs, ours string }

func (d *differences) PushStep(step cmp.PathStep) { d.path = append(d.path, step) }
func (d *differences) PopStep()                   { d.path = d.path[:len(d.path)-1] }

func (d *differences) Report(result cmp.Result) {
	if result.Equal() {
		return
	}
	var b strings.Builder
	for _, step := range d.path {
		switch s := step.(type) {
		case cmp.MapIndex:
			key := s.Key().String()
			if strings.ContainsAny(key, "./") {
				fmt.Fprintf(&b, "[%s]", key)
			} else {
				fmt.Fprintf(&b, ".%s", key)
			}
		case cmp.SliceIndex:
			theirs, ours := s.SplitKeys()
			fmt.Fprintf(&b, "[%d]", max(theirs, ours))
		}
	}
	theirs, ours := d.path.Last().Values()
	show := func(valid bool, value any) string {
		if !valid {
			return "nothing"
		}
		return fmt.Sprintf("%v", value)
	}
	d.found = append(d.found, difference{
		path:   strings.TrimPrefix(b.String(), "."),
		theirs: show(theirs.IsValid(), theirs), ours: show(ours.IsValid(), ours),
	})
}

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

func TestWithoutOwn(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: `{}`,
		`{"status":{"conditions":[{"type":"A"},{"type":"nodeprobe.dev/B"},{"type":"nodeprobe.dev/C"}]}}`: `{"status":{"conditions":[{"type":"A"}]}}`,
		`{"status":{"$setElementOrder/conditions":[{"type":"A"},{"type":"nodeprobe.dev/B"}],"conditions":[{"type":"nodeprobe.dev/B","status":"True"}]}}`: `{"status":
			{"$setElementOrder/conditions":[{"type":"A"}],"conditions":[]}}`,
		`{"status":{"conditions":[{"type":"nodeprobe.dev/B"},{"type":"A"}],"phase":"x"}}`: `{"status":{"conditions":[{"type":"nodeprobe.dev/B"},{"type":"A"}],"phase":"x"}}`,
		`{"status":{"conditions":[{"type":"A"},{"type":"example.com/B"}]}}`:               `{"status":{"conditions":[{"type":"A"},{"type":"example.com/B"}]}}`,
	} {
		got := decode(t, body)
		withoutOwn(got)
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
