package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// fields is an object, or a part of one.
type fields map[string]any

// with returns the fields with others in the place of some, at any depth.
func (f fields) with(others fields) fields {
	all := maps.Clone(f)
	for k, v := range others {
		if was, isObject := all[k].(fields); isObject {
			switch more := v.(type) {
			case fields:
				v = was.with(more)
			case map[string]any: // as it is decoded
				v = was.with(more)
			}
		}
		all[k] = v
	}
	return all
}

func encode(t *testing.T, v any) string {
	t.Helper()
	return string(must.Get(json.Marshal(v))(t))
}

func repeated(n int) string { return strings.Repeat("x", n) }

// tooMuch is more than an object can hold.
const tooMuch = 1_300_000

// change is what a row changes of an object that is allowed, and the text with which that
// is refused; "" if it is allowed too.
type change struct {
	Name   string
	Change fields
	Want   string
}

// changes reads a file of testdata, a template.
func changes(t *testing.T, name string, values any) (rows []change) {
	t.Helper()
	repeat := func(n int, text string) string { return strings.Repeat(text, n) }
	file := name + ".yaml"
	parsed := must.Get(template.New(file).Funcs(template.FuncMap{"repeat": repeat}).ParseFiles(filepath.Join("testdata", file)))(t)
	var text bytes.Buffer
	must.OK(t, parsed.Execute(&text, values))
	must.OK(t, yaml.UnmarshalStrict(text.Bytes(), &rows))
	return rows
}

// badReasons and badMessages are the values that no policy accepts, by what is wrong.
var (
	badReasons = map[string]string{
		"1.3 MB": repeated(tooMuch), "129 characters": repeated(129), "two lines": "X\n  Ready  False", "a line feed at the end": "X\n",
		"several words": "Disk is short", "empty": "",
	}
	badMessages = map[string]string{
		"1.3 MB": repeated(tooMuch), "two lines": "well\n  Ready  False", "a line feed at the end": "well\n", "carriage return": "well\rReady  False",
		"escape": "\x1b[2J", "line separator": "well\u2028Ready  False", "right to left": "\u202eeslaF  ydaeR",
	}
)

// condition is one as nodeprobe writes it, and as the policy takes it.
func condition(changed fields) fields {
	return fields{
		"type": "nodeprobe.dev/DiskPressure", "status": "False", "reason": "DiskIsSufficient", "message": "does not hold: DiskPressure",
		"lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z",
	}.with(changed)
}

func conditions(n int, changed fields) (all []fields) {
	for i := range n {
		all = append(all, condition(changed).with(fields{"type": fmt.Sprintf("nodeprobe.dev/%063d", i)}))
	}
	return all
}

// nodePatch returns the patch of one kind that gives a Node these conditions beside
// those that it has.
func nodePatch(t *testing.T, kind string, before *corev1.Node, conditions ...fields) string {
	t.Helper()
	switch kind {
	case jsonPatch:
		var patch []fields
		for _, c := range conditions {
			patch = append(patch, fields{"op": "add", "path": "/status/conditions/-", "value": c})
		}
		return encode(t, patch)
	case jsonMerge: // it replaces a list
		var all []any
		for _, c := range before.Status.Conditions {
			all = append(all, c)
		}
		for _, c := range conditions {
			all = append(all, c)
		}
		return encode(t, fields{"status": fields{"conditions": all}})
	default:
		return encode(t, fields{"apiVersion": "v1", "kind": "Node", "metadata": fields{"name": before.Name}, "status": fields{"conditions": conditions}})
	}
}

func (s *cluster) checkNodeBounds(t *testing.T, onA kubernetes.Interface) {
	t.Helper()
	// Others may have written a lot: what the policy costs depends on it.
	before := s.node("a")
	for i := range 200 {
		before.Status.Conditions = append(before.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("example.com/Other%d", i)), Status: corev1.ConditionFalse, Reason: "NoProblem",
		})
	}
	before = must.Get(s.cp.Client().CoreV1().Nodes().UpdateStatus(t.Context(), before, metav1.UpdateOptions{}))(t)
	const (
		number = "nodeprobe may write at most 64 conditions, one of each type"
		form   = "a condition of nodeprobe needs a qualified name as its type"
	)
	one := func(changed fields) []fields { return []fields{condition(changed)} }
	type row struct {
		name       string
		conditions []fields
		want       string // "" if it is allowed
	}
	rows := []row{
		{"what nodeprobe writes", one(nil), ""},
		{"as much as may be", conditions(64, fields{"reason": repeated(128), "message": strings.Repeat("ä", 1024)}), ""},
		{"3,000 conditions", conditions(3000, nil), number},
		{"65 conditions", conditions(65, nil), number},
		{"a bad one beside a good one", append(one(nil), condition(fields{"type": "nodeprobe.dev/X", "reason": ""})), form},
	}
	for _, c := range changes(t, "conditions", nil) {
		rows = append(rows, row{c.Name, one(c.Change), c.Want})
	}
	for what, reason := range badReasons {
		rows = append(rows, row{"reason: " + what, one(fields{"reason": reason}), form})
	}
	for what, message := range badMessages {
		rows = append(rows, row{"message: " + what, one(fields{"message": message}), form})
	}
	const dry = "nodes/a/status?dryRun=All"
	for _, tt := range rows {
		for kind, uri := range map[string]string{merge: dry, jsonMerge: dry, jsonPatch: dry, applied: dry + "&fieldManager=nodeprobe"} {
			must.Note(t, request{tt.name + ", " + kind, onA, kind, uri, nodePatch(t, kind, before, tt.conditions...), tt.want}.do())
		}
	}
	// Each name under which something is applied has an entry in managedFields.
	const manager = "nodeprobe may not apply under the name of another field manager"
	full := conditions(64, fields{"reason": repeated(128), "message": repeated(2048)})
	apply := nodePatch(t, applied, before, full...)
	check(t, []request{
		{"a type twice", onA, jsonPatch, dry, nodePatch(t, jsonPatch, before, condition(nil), condition(nil)), number},
		{"as full as may be", onA, merge, "nodes/a/status", nodePatch(t, merge, before, full...), ""},
		{"applied as nodeprobe", onA, applied, "nodes/a/status?fieldManager=nodeprobe", apply, ""},
		{"applied as kubectl", onA, applied, "nodes/a/status?fieldManager=kubectl", apply, manager},
		{"applied as x", onA, applied, "nodes/a/status?fieldManager=x", apply, manager},
	})
	s.run("taint", "node", "a", "example.com/full=true:NoSchedule") // others can still write it
	check(t, []request{{"one more", onA, merge, "nodes/a/status", nodePatch(t, merge, before, condition(fields{"type": "nodeprobe.dev/X"})), number}})
}

// event is one as nodeprobe on a node writes it, and as the policy takes it.
func (s *cluster) event(node, name string) fields {
	return fields{
		"apiVersion": "v1", "kind": "Event", "metadata": fields{"name": name, "namespace": "default"},
		"involvedObject": fields{"apiVersion": "v1", "kind": "Node", "name": node, "uid": s.node(node).UID},
		"type":           "Warning", "reason": "DiskIsShort", "message": "Node a condition nodeprobe.dev/DiskPressure is now True", "count": 1,
		"firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:05Z",
		"source": fields{"component": "nodeprobe", "host": node}, "reportingComponent": "nodeprobe", "reportingInstance": node,
	}
}

func (s *cluster) checkEventBounds(t *testing.T, onA, onB kubernetes.Interface) {
	t.Helper()
	const events, dry, posted, ofB = "namespaces/default/events", "?dryRun=All", "/a.18a2b3c4d5e6f708", "/b.18a2b3c4d5e6f708"
	const (
		own     = "nodeprobe on node a may only write events of its own about that node"
		form    = "an event of nodeprobe needs Normal or Warning as its type"
		called  = "an event of nodeprobe must be named after its node and a time in hexadecimal"
		managed = "nodeprobe may not claim fields that the event does not have"
		noField = "nodeprobe may not set these fields of an event: "
	)
	about := func(changed fields) fields { return fields{"involvedObject": changed} }
	meta := func(changed fields) fields { return fields{"metadata": changed} }
	owns := func(of ...fields) fields {
		var entries []fields
		for i, f := range of {
			entries = append(entries, fields{
				"manager": fmt.Sprint("x", i), "operation": "Update", "apiVersion": "v1", "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1", "fieldsV1": f,
			})
		}
		return meta(fields{"managedFields": entries})
	}
	applied5 := encode(t, s.event("a", posted[1:]).with(fields{"count": 5}))
	check(t, []request{
		{"posts", onA, "POST", events, encode(t, s.event("a", posted[1:])), ""},
		{"counts up by " + merge, onA, merge, events + posted, `{"count":2,"message":"again"}`, ""},
		{"counts up by " + jsonMerge, onA, jsonMerge, events + posted, `{"count":3,"message":"again"}`, ""},
		{"counts up by " + jsonPatch, onA, jsonPatch, events + posted, `[{"op":"replace","path":"/count","value":4}]`, ""},
		{"counts up by " + applied, onA, applied, events + posted + "?fieldManager=nodeprobe&force=true", applied5, ""},
		{"another node posts", onB, "POST", events, encode(t, s.event("b", ofB[1:])), ""},
		{"takes over the other node's event", onA, jsonMerge, events + ofB, `{"count":9}`, own},
		{"posts an event of the other node", onA, "POST", events + dry, encode(t, s.event("b", "b.1")), own},
		{"nine field managers", onA, jsonMerge, events + posted + dry, encode(t, owns(slices.Repeat([]fields{{"f:message": fields{}}}, 9)...)), managed},
	})
	for _, name := range []string{"b.1", "a.b.1", "a", "ab.1", "a.xyz", "a.", "a.12345678901234567"} {
		must.Note(t, request{"called " + name, onA, "POST", events + dry, encode(t, s.event("a", name)), called}.do())
	}
	rows := append(changes(t, "events", struct{ UIDOfB types.UID }{s.node("b").UID}), []change{
		{"what nodeprobe writes", nil, ""},
		{"it owns a field that there is not", owns(fields{"f:" + repeated(tooMuch): fields{}}), managed},
		{"it owns such a field of a field", owns(fields{"f:source": fields{"f:" + repeated(tooMuch): fields{}}}), managed},
		{"it owns a field of a text", owns(fields{"f:message": fields{"f:x": fields{}}}), managed},
		{"it owns fields below that", owns(fields{"f:source": fields{"f:host": fields{"f:" + repeated(tooMuch): fields{}}}}), managed},
	}...)
	for what, reason := range badReasons {
		rows = append(rows, change{"reason: " + what, fields{"reason": reason}, form})
	}
	for what, message := range badMessages {
		rows = append(rows, change{"message: " + what, fields{"message": message}, form})
	}
	for _, tt := range rows {
		check(t, []request{
			{tt.Name + ", created", onA, "POST", events + dry, encode(t, s.event("a", "a.2").with(tt.Change)), tt.Want},
			{tt.Name + ", patched", onA, jsonMerge, events + posted + dry, encode(t, fields{}.with(tt.Change)), tt.Want},
		})
	}

	// Even if a role allows more than events of the core group, the policy still holds.
	s.allow("events.k8s.io", "events")
	s.allow("", "events")
	newer := func(node string) string {
		return encode(t, fields{
			"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": fields{"name": "a.3", "namespace": "default"},
			"regarding": fields{"apiVersion": "v1", "kind": "Node", "name": node}, "type": "Warning", "reason": "X", "note": "x", "action": "x",
			"eventTime": "2026-01-02T03:04:05.000000Z", "reportingController": "nodeprobe", "reportingInstance": "a",
		})
	}
	const newEvents = "/apis/events.k8s.io/v1/" + events
	elsewhere := encode(t, s.event("a", "a.4").with(meta(fields{"namespace": "kube-system"})).with(about(fields{"namespace": "kube-system"})))
	for _, r := range []request{
		{"a new event about another node", onA, "POST", newEvents + dry, newer("b"), own},
		{"a new event, which has no source", onA, "POST", newEvents + dry, newer("a"), own},
		{
			"a series", onA, jsonMerge, newEvents + posted + dry,
			`{"series":{"count":2,"lastObservedTime":"2026-01-02T03:04:05.000000Z"}}`, noField + "series",
		},
		{"elsewhere", onA, "POST", "namespaces/kube-system/events", elsewhere, noField + "namespace"},
	} {
		stage.Eventually(t, "the role is in force, and the policy", r.do)
	}
}
