package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// fields is an object, or a part of one.
type fields map[string]any

// with returns the fields with others in the place of some, at any depth.
func (f fields) with(others fields) fields {
	all := maps.Clone(f)
	for k, v := range others {
		was, isObject := all[k].(fields)
		if more, areFields := v.(fields); isObject && areFields {
			v = was.with(more)
		}
		all[k] = v
	}
	return all
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	return must.Get(json.Marshal(v))(t)
}

func repeated(n int) string { return strings.Repeat("x", n) }

// tooMuch is what an object cannot hold beside anything else.
const tooMuch = 1_300_000

// Whoever holds a pod's token can fill up neither its Node, so that nobody else could
// write it, nor the Events, and cannot forge a line of "kubectl describe".
func TestBounds(t *testing.T) {
	s := newStage(t, "identity", "base")
	onA := s.client(s.config(s.pod("a")))
	s.waitPolicies(onA, "nodeprobe-node", "nodeprobe-event")
	t.Run("node", func(t *testing.T) { s.boundsNode(t, onA) })
	t.Run("events", func(t *testing.T) { s.boundsEvents(t, onA) })
}

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
func nodePatch(t *testing.T, kind types.PatchType, before *corev1.Node, conditions ...fields) []byte {
	t.Helper()
	switch kind {
	case types.JSONPatchType:
		var patch []fields
		for _, c := range conditions {
			patch = append(patch, fields{"op": "add", "path": "/status/conditions/-", "value": c})
		}
		return encode(t, patch)
	case types.MergePatchType: // it replaces a list
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

var patchTypes = []types.PatchType{types.StrategicMergePatchType, types.MergePatchType, types.JSONPatchType, types.ApplyPatchType}

func (s *stage) boundsNode(t *testing.T, onA kubernetes.Interface) {
	ctx := t.Context()
	// Others may have written a lot: what the policy may cost depends on it.
	before := s.node("a")
	for i := range 200 {
		before.Status.Conditions = append(before.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("example.com/Other%d", i)), Status: corev1.ConditionFalse, Reason: "NoProblem",
		})
	}
	before = must.Get(s.cp.Client().CoreV1().Nodes().UpdateStatus(ctx, before, metav1.UpdateOptions{}))(t)
	patch := func(kind types.PatchType, body []byte, manager string, dryRun ...string) error {
		opts := metav1.PatchOptions{DryRun: dryRun}
		if kind == types.ApplyPatchType {
			opts.FieldManager = manager
		}
		_, err := onA.CoreV1().Nodes().Patch(ctx, "a", kind, body, opts, "status")
		return err
	}
	const (
		number  = "nodeprobe may write at most 64 conditions, one of each type"
		form    = "a condition of nodeprobe needs a qualified name as its type"
		foreign = "nodeprobe may not add, change or remove conditions of others"
	)
	one := func(changed fields) []fields { return []fields{condition(changed)} }
	for _, tt := range []struct {
		name       string
		conditions []fields
		want       string // "" if it is allowed
	}{
		{"what nodeprobe writes", one(nil), ""},
		{"no message", one(fields{"message": ""}), ""},
		{"characters of every alphabet", one(fields{"message": "ä€😀 日本語 … \ufffd"}), ""},
		{"as much as may be", conditions(64, fields{"reason": repeated(128), "message": strings.Repeat("ä", 1024)}), ""},

		{"3,000 conditions", conditions(3000, nil), number},
		{"65 conditions", conditions(65, nil), number},
		{"a message of 1.3 MB", one(fields{"message": repeated(tooMuch)}), form},
		{"a message of 2049 bytes", one(fields{"message": strings.Repeat("ä", 1024) + "x"}), form},
		{"a reason of 1.3 MB", one(fields{"reason": repeated(tooMuch)}), form},
		{"a reason of 129 characters", one(fields{"reason": repeated(129)}), form},
		{"a type of 1.3 MB", one(fields{"type": "nodeprobe.dev/" + repeated(tooMuch)}), form},
		{"a type with a name of 64 characters", one(fields{"type": "nodeprobe.dev/" + repeated(64)}), form},
		{"a status of 1.3 MB", one(fields{"status": repeated(tooMuch)}), form},
		{"a status of its own", one(fields{"status": "true"}), form},
		{"no status", one(fields{"status": ""}), form},
		{"a type without a name", one(fields{"type": "nodeprobe.dev/"}), form},
		{"a type with two slashes", one(fields{"type": "nodeprobe.dev/a/b"}), form},
		{"a line in a type", one(fields{"type": "nodeprobe.dev/X\n  Ready  False"}), form},
		{"a line after a type", one(fields{"type": "nodeprobe.dev/X\n"}), form},
		{"a line in a reason", one(fields{"reason": "X\n  Ready  False"}), form},
		{"a line after a reason", one(fields{"reason": "X\n"}), form},
		{"a reason of several words", one(fields{"reason": "Disk is short"}), form},
		{"no reason", one(fields{"reason": ""}), form},
		{"a line in a message", one(fields{"message": "well\n  Ready  False"}), form},
		{"a line after a message", one(fields{"message": "well\n"}), form},
		{"a carriage return in a message", one(fields{"message": "well\rReady  False"}), form},
		{"an escape in a message", one(fields{"message": "\x1b[2J"}), form},
		{"a line separator in a message", one(fields{"message": "well\u2028Ready  False"}), form},
		{"letters from right to left in a message", one(fields{"message": "\u202eeslaF  ydaeR"}), form},
		{"a bad one beside a good one", append(one(nil), condition(fields{"type": "nodeprobe.dev/X", "reason": ""})), form},
		{"an empty type", one(fields{"type": ""}), foreign},
		{"a type that only begins like ours", one(fields{"type": "nodeprobe.device/X"}), foreign},
	} {
		for _, kind := range patchTypes {
			err := patch(kind, nodePatch(t, kind, before, tt.conditions...), "nodeprobe", metav1.DryRunAll)
			if tt.want != "" {
				err = wantError(err, tt.want)
			}
			if err != nil {
				t.Errorf("%s, %s: %.300v, want %q", tt.name, kind, err, tt.want)
			}
		}
	}
	twice := nodePatch(t, types.JSONPatchType, before, condition(nil), condition(nil))
	if err := wantError(patch(types.JSONPatchType, twice, "", metav1.DryRunAll), number); err != nil {
		t.Errorf("a type twice: %v", err)
	}

	// Each name under which something is applied has an entry in managedFields.
	full := conditions(64, fields{"reason": repeated(128), "message": repeated(2048)})
	must.OK(t, patch(types.StrategicMergePatchType, nodePatch(t, types.StrategicMergePatchType, before, full...), ""))
	for _, manager := range []string{"nodeprobe", "kubectl", "x"} {
		err := patch(types.ApplyPatchType, nodePatch(t, types.ApplyPatchType, before, full...), manager)
		if manager != "nodeprobe" {
			err = wantError(err, "nodeprobe may not apply under the name of another field manager")
		}
		if err != nil {
			t.Errorf("applied as %s: %.300v", manager, err)
		}
	}
	t.Logf("a Node that is as full as nodeprobe can make it has %d bytes", len(encode(t, s.node("a"))))
	s.run("taint", "node", "a", "example.com/full=true:NoSchedule")
	if err := patch(types.StrategicMergePatchType, nodePatch(t, types.StrategicMergePatchType, before, condition(fields{"type": "nodeprobe.dev/X"})), ""); wantError(err, number) != nil {
		t.Errorf("one more: %v", err)
	}
}

// event is one as nodeprobe writes it, and as the policy takes it.
func (s *stage) event(name string) fields {
	return fields{
		"apiVersion": "v1", "kind": "Event", "metadata": fields{"name": name, "namespace": "default"},
		"involvedObject": fields{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": s.node("a").UID},
		"type":           "Warning", "reason": "DiskIsShort", "message": "Node a condition nodeprobe.dev/DiskPressure is now True", "count": 1,
		"firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:05Z",
		"source": fields{"component": "nodeprobe", "host": "a"}, "reportingComponent": "nodeprobe", "reportingInstance": "a",
	}
}

func (s *stage) boundsEvents(t *testing.T, onA kubernetes.Interface) {
	ctx := t.Context()
	create := func(e fields, opts metav1.CreateOptions) error {
		return onA.CoreV1().RESTClient().Post().Namespace("default").Resource("events").VersionedParams(&opts, metav1.ParameterCodec).Body(encode(t, e)).
			SetHeader("Content-Type", "application/json").Do(ctx).Error()
	}
	patch := func(name string, kind types.PatchType, body []byte, opts metav1.PatchOptions) error {
		_, err := onA.CoreV1().Events("default").Patch(ctx, name, kind, body, opts)
		return err
	}
	dry := []string{metav1.DryRunAll}
	const name = "a.18a2b3c4d5e6f708"
	must.OK(t, create(s.event(name), metav1.CreateOptions{}))
	for kind, body := range map[types.PatchType][]byte{
		types.StrategicMergePatchType: encode(t, fields{"count": 2, "message": "again"}),
		types.MergePatchType:          encode(t, fields{"count": 3, "message": "again"}),
		types.JSONPatchType:           []byte(`[{"op":"replace","path":"/count","value":4}]`),
		types.ApplyPatchType:          encode(t, s.event(name).with(fields{"count": 5})),
	} {
		opts := metav1.PatchOptions{}
		if kind == types.ApplyPatchType {
			opts.FieldManager, opts.Force = "nodeprobe", new(true)
		}
		if err := patch(name, kind, body, opts); err != nil {
			t.Errorf("counted up by %s: %v", kind, err)
		}
	}

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
	for _, tt := range []struct {
		name    string
		changed fields
		want    string // "" if it is allowed
	}{
		{"what nodeprobe writes", nil, ""},
		{"as much as may be", fields{"type": "Normal", "reason": repeated(128), "message": strings.Repeat("ä", 512), "count": 1<<31 - 1}, ""},
		{"the name for a UID, as kubelets do", about(fields{"uid": "a"}), ""},
		{"no UID", about(fields{"uid": ""}), ""},
		{"no message, no times", fields{"message": "", "firstTimestamp": nil, "lastTimestamp": nil}, ""},

		{"about a pod", about(fields{"kind": "Pod"}), own},
		{"about another node", about(fields{"name": "b"}), own},
		{"about another node's UID", about(fields{"uid": s.node("b").UID}), own},
		{"a UID of 1.3 MB", about(fields{"uid": repeated(tooMuch)}), own},
		{"about another kind of Node", about(fields{"apiVersion": "example.com/v1"}), own},
		{"about no version", about(fields{"apiVersion": ""}), own},
		{"about an object with a namespace", about(fields{"namespace": "default"}), noField + "namespace"},
		{"about a field", about(fields{"fieldPath": repeated(tooMuch)}), noField + "fieldPath"},
		{"about a version of the Node", about(fields{"resourceVersion": "1"}), noField + "resourceVersion"},
		{"from another component", fields{"source": fields{"component": "kubelet"}}, own},
		{"from another host", fields{"source": fields{"host": "b"}}, own},
		{"from no host", fields{"source": fields{"host": ""}}, own},
		{"from no source", fields{"source": nil}, own},
		{"reported by another component", fields{"reportingComponent": "kubelet"}, own},
		{"reported by none", fields{"reportingComponent": ""}, own},
		{"reported by another instance", fields{"reportingInstance": "b"}, own},
		{"reported by an instance of 1.3 MB", fields{"reportingInstance": repeated(tooMuch)}, own},
		{"related to another object", fields{"related": fields{"kind": "Node", "name": "b"}}, noField + "related"},
		{"an action", fields{"action": repeated(tooMuch)}, noField + "action"},
		{"a time of its own", fields{"eventTime": "2026-01-02T03:04:05.000000Z", "action": "x"}, noField},
		{"a series", fields{"series": fields{"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000000Z"}}, noField + "series"},
		{"labels", meta(fields{"labels": fields{"x": "y"}}), noField + "labels"},
		{"annotations", meta(fields{"annotations": fields{"x": repeated(200_000)}}), noField + "annotations"},
		{"a finalizer", meta(fields{"finalizers": []string{"example.com/x"}}), noField + "finalizers"},
		{"an owner", meta(fields{"ownerReferences": []fields{{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "x"}}}), noField + "ownerReferences"},
		{"a name to generate from", meta(fields{"generateName": "a."}), noField + "generateName"},
		{"another type", fields{"type": "Fatal"}, form},
		{"a type of 1.3 MB", fields{"type": repeated(tooMuch)}, form},
		{"no type", fields{"type": ""}, form},
		{"a reason of 129 characters", fields{"reason": repeated(129)}, form},
		{"a reason of several words", fields{"reason": "Disk is short"}, form},
		{"a line after a reason", fields{"reason": "X\n"}, form},
		{"no reason", fields{"reason": ""}, form},
		{"a message of 1.3 MB", fields{"message": repeated(tooMuch)}, form},
		{"a message of 1025 bytes", fields{"message": strings.Repeat("ä", 512) + "x"}, form},
		{"a line in a message", fields{"message": "well\n  Normal  Fine"}, form},
		{"a line after a message", fields{"message": "well\n"}, form},
		{"an escape in a message", fields{"message": "\x1b[2J"}, form},
		{"letters from right to left in a message", fields{"message": "\u202elleW"}, form},
		{"it has not happened", fields{"count": 0}, form},
		{"it has happened less than never", fields{"count": -1}, form},
		{"it owns a field that there is not", owns(fields{"f:" + repeated(tooMuch): fields{}}), managed},
		{"it owns such a field of a field", owns(fields{"f:source": fields{"f:" + repeated(tooMuch): fields{}}}), managed},
		{"it owns a field of a text", owns(fields{"f:message": fields{"f:x": fields{}}}), managed},
		{"it owns fields below that", owns(fields{"f:source": fields{"f:host": fields{"f:" + repeated(tooMuch): fields{}}}}), managed},
	} {
		if err := check(create(s.event("a.2").with(tt.changed), metav1.CreateOptions{DryRun: dry}), tt.want); err != nil {
			t.Errorf("%s, created: %.300v, want %q", tt.name, err, tt.want)
		}
		if err := check(patch(name, types.MergePatchType, encode(t, fields{}.with(tt.changed)), metav1.PatchOptions{DryRun: dry}), tt.want); err != nil {
			t.Errorf("%s, patched: %.300v, want %q", tt.name, err, tt.want)
		}
	}
	many := owns(slices.Repeat([]fields{{"f:message": fields{}}}, 9)...)
	if err := wantError(patch(name, types.MergePatchType, encode(t, many), metav1.PatchOptions{DryRun: dry}), managed); err != nil {
		t.Errorf("nine of it own a field: %v", err)
	}
	for _, other := range []string{"b.1", "a.b.1", "a", "ab.1", "a.xyz", "a.", "a.12345678901234567"} {
		if err := wantError(create(s.event(other), metav1.CreateOptions{DryRun: dry}), called); err != nil {
			t.Errorf("called %s: %v", other, err)
		}
	}

	// Should somebody's role allow more than events of the core group, the policy
	// still holds.
	s.allow("events.k8s.io", "events")
	s.allow("", "events")
	newer := func(changed fields) fields {
		return fields{
			"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": fields{"name": "a.3", "namespace": "default"},
			"regarding": fields{"apiVersion": "v1", "kind": "Node", "name": "a"}, "type": "Warning", "reason": "X", "note": "x", "action": "x",
			"eventTime": "2026-01-02T03:04:05.000000Z", "reportingController": "nodeprobe", "reportingInstance": "a",
		}.with(changed)
	}
	for _, tt := range []struct {
		changed fields
		want    string
	}{
		{fields{"regarding": fields{"name": "b"}}, own},
		{nil, own}, // it has no source in that group
	} {
		s.eventually("the role is in force, and the policy", func() error {
			opts := metav1.CreateOptions{DryRun: dry}
			return wantError(onA.EventsV1().RESTClient().Post().Namespace("default").Resource("events").VersionedParams(&opts, metav1.ParameterCodec).
				Body(encode(t, newer(tt.changed))).SetHeader("Content-Type", "application/json").Do(ctx).Error(), tt.want)
		})
	}
	_, err := onA.EventsV1().Events("default").Patch(ctx, name, types.MergePatchType,
		encode(t, fields{"series": fields{"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000000Z"}}), metav1.PatchOptions{DryRun: dry})
	must.Note(t, wantError(err, noField+"series"))
	elsewhere := s.event("a.4").with(meta(fields{"namespace": "kube-system"})).with(about(fields{"namespace": "kube-system"}))
	s.eventually("the policy refuses events elsewhere", func() error {
		return wantError(onA.CoreV1().RESTClient().Post().Namespace("kube-system").Resource("events").Body(encode(t, elsewhere)).
			SetHeader("Content-Type", "application/json").Do(ctx).Error(), noField+"namespace")
	})
}

// check returns what is wrong with the answer to a request that must be refused so,
// or not at all.
func check(err error, want string) error {
	if want == "" {
		return err
	}
	return wantError(err, want)
}

// allow gives the service account every verb on resources of a group.
func (s *stage) allow(group string, resources ...string) {
	s.t.Helper()
	ctx, name := s.t.Context(), metav1.ObjectMeta{GenerateName: "too-much-"}
	role := must.Get(s.cp.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: resources, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{}))(s.t)
	must.Get(s.cp.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "nodeprobe", Name: "nodeprobe"}},
	}, metav1.CreateOptions{}))(s.t)
}
