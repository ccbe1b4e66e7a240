package cluster

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const identity = "system:serviceaccount:nodeprobe:nodeprobe"

// wantOnlyOurs reads in the API server's audit log what a user has written since a
// time: conditions of ours and Events, and all of it was allowed.
func wantOnlyOurs(t *testing.T, cp *controlplane.ControlPlane, user, node string, since time.Time) {
	t.Helper()
	all := must.Get(cp.AuditEvents())(t)
	patches, events := 0, 0
	for _, e := range all {
		if e.User.Username != user || e.RequestReceivedTimestamp.Before(since) || e.Reads() {
			continue
		}
		t.Logf("%s %s %s: %d %s", e.RequestReceivedTimestamp.Format("15:04:05.000"), e.Verb, e.RequestURI, e.ResponseStatus.Code, summary(e))
		if e.ResponseStatus.Code/100 != 2 {
			t.Errorf("%s %s: %d", e.Verb, e.RequestURI, e.ResponseStatus.Code)
		}
		switch e.Request() {
		case "create events", "patch events":
			events++
		case "patch nodes/status":
			patches++
			if err := stage.OnlyConditions(e.RequestObject, "nodeprobe.dev/"); err != nil || e.ObjectRef.Name != node {
				t.Errorf("patch of node %s: %v: %s", e.ObjectRef.Name, err, e.RequestObject)
			}
		default:
			t.Errorf("%s %s", e.Request(), e.RequestURI)
		}
	}
	t.Logf("%s: %d patches of conditions, %d Events", user, patches, events)
	if patches == 0 || events == 0 {
		t.Errorf("the audit log has %d patches and %d Events", patches, events)
	}
}

// wantOwns wants the API server to count nothing of the Node as ours but conditions
// of ours.
func wantOwns(t *testing.T, node *corev1.Node) {
	t.Helper()
	found := false
	for _, m := range node.ManagedFields {
		if m.Manager != "nodeprobe" {
			continue
		}
		found = true
		var fields map[string]map[string]map[string]any
		must.OK(t, json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields))
		conditions := fields["f:status"]["f:conditions"]
		if len(fields) != 1 || len(fields["f:status"]) != 1 {
			t.Errorf("more of the Node than conditions is ours: %s", m.FieldsV1.GetRawString())
		}
		for key := range conditions {
			if !strings.HasPrefix(key, `k:{"type":"nodeprobe.dev/`) {
				t.Errorf("%s is ours", key)
			}
		}
	}
	if !found {
		t.Error("nothing of the Node is ours")
	}
}

// summary is what a write says, in a line.
func summary(e controlplane.AuditEvent) string {
	var body struct {
		Status struct {
			Conditions []struct {
				Type, Status string
				Patch        string `json:"$patch"`
			}
		}
		Reason, Message string
	}
	if json.Unmarshal(e.RequestObject, &body) != nil {
		return ""
	}
	var words []string
	for _, c := range body.Status.Conditions {
		words = append(words, strings.TrimPrefix(c.Type, "nodeprobe.dev/")+"="+c.Status+c.Patch)
	}
	return strings.Join(words, " ") + body.Reason + " " + body.Message
}
