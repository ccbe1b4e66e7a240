package parity

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// sendTime is what both have to send what they send every few seconds, and the audit
// log to follow what a watch has shown.
const sendTime = 90 * time.Second

// clockSlack is for what lies between the clock's reading in a body and its arrival.
const clockSlack = 100 * time.Millisecond

// write is a request of one of them that the API server has recorded.
type write struct {
	kind string // "create nodes", "patch nodes/status"
	at   time.Time
	code int
	body map[string]any // normal
}

const (
	createNode, patchStatus  = "create nodes", "patch nodes/status"
	createLease, updateLease = "create leases", "update leases"
)

// writes returns what one of them has sent to change its Node and its Lease.
func (s *stage) writes(name string) []write {
	s.t.Helper()
	events := must.Get(s.cp.AuditEvents())(s.t)
	user, _ := controlplane.NodeUser(name)
	var all []write
	var posted time.Time // the status
	for _, e := range events {
		if e.Reads() || e.User.Username != user || e.ObjectRef.Resource != "nodes" && e.ObjectRef.Resource != "leases" {
			continue
		}
		kind := e.Request()
		body := must.Get(normalBody(e.RequestObject))(s.t)
		if kind == patchStatus {
			if e.RequestReceivedTimestamp.Sub(posted) < time.Second+clockSlack {
				addHeartbeats(body)
			}
			posted = e.RequestReceivedTimestamp
		}
		all = append(all, write{kind, e.RequestReceivedTimestamp, e.ResponseStatus.Code, body})
	}
	return all
}

// bodies waits for the first body of a kind since then that match accepts, of the
// kubelet and of nodeprobe.
func (s *stage) bodies(what, kind string, since time.Time, match func(map[string]any) bool) (theirs, ours map[string]any) {
	s.t.Helper()
	first := func(name string) (body map[string]any) {
		wait.Until(s.t, sendTime, what+": "+name+" sends such "+kind, func() error {
			all := s.writes(name)
			i := slices.IndexFunc(all, func(w write) bool { return w.kind == kind && !w.at.Before(since) && match(w.body) })
			if i < 0 {
				return fmt.Errorf("none of %d", len(all))
			}
			body = all[i].body
			return nil
		})
		return body
	}
	return first(kubeletNode), first(ourNode)
}

func whatever(map[string]any) bool { return true }

// compareFirst compares the bodies that the Nodes and the Leases were created with,
// those by which the Leases are renewed, and the first patches.
func (s *stage) compareFirst() {
	s.t.Helper()
	for _, kind := range []string{createLease, updateLease} {
		theirs, ours := s.bodies("at first", kind, time.Time{}, whatever)
		s.same(kind, theirs, ours, nil)
	}
	theirs, ours := s.bodies("at first", createNode, time.Time{}, whatever)
	for _, body := range []map[string]any{theirs, ours} {
		// What the runtime tells, either may get to know a moment later.
		for _, field := range []string{"images", "runtimeHandlers", "features"} {
			delete(body["status"].(map[string]any), field)
		}
	}
	s.same(createNode, theirs, ours, atFirst)

	// A kubelet posts its status once more when it has registered, and nothing of
	// that is new but the second.
	theirs, ours = s.bodies("at first", patchStatus, time.Time{}, whatever)
	for name, body := range map[string]map[string]any{kubeletNode: theirs, ourNode: ours} {
		if len(body) > 0 && !isHeartbeat(body) {
			s.t.Errorf("the first patch of %s is no heartbeat: %v", name, body)
		}
	}
}

// comparePatches compares the patches by which both told of a transition.
func (s *stage) comparePatches(when string, since time.Time, allowed *allowance, match func(map[string]any) bool) {
	s.t.Helper()
	theirs, ours := s.bodies(when, patchStatus, since, match)
	s.same(when, strip(theirs, allowed), strip(ours, allowed), nil)
}

// compareHeartbeats compares the patches that only say that time goes by.
func (s *stage) compareHeartbeats() {
	s.t.Helper()
	theirs, ours := s.bodies("heartbeat", patchStatus, s.since, isHeartbeat)
	s.same("heartbeat", theirs, ours, nil)
}

func (s *stage) same(what string, theirs, ours map[string]any, allowed *allowance) {
	s.t.Helper()
	if allowed == nil {
		if diff := cmp.Diff(theirs, ours); diff != "" {
			s.t.Errorf("%s: bodies (-kubelet +nodeprobe):\n%s", what, diff)
		}
		return
	}
	bad, seen := compare(theirs, ours, allowed)
	s.note(allowed, seen)
	for _, b := range bad {
		s.t.Errorf("%s: %s", what, b)
	}
}

// compareWrites compares all that both have ever sent: the kinds of requests, and
// since the start the patches, each once. Neither sends one that the other does not.
func (s *stage) compareWrites() {
	s.t.Helper()
	theirs, ours := s.said(kubeletNode), s.said(ourNode)
	for body, count := range theirs {
		if ours[body] == 0 {
			s.t.Errorf("nodeprobe never sent what the kubelet did: %s", body)
			continue
		}
		s.t.Logf("sent by the kubelet %d times, by nodeprobe %d times: %s", count, ours[body], body)
	}
	for body := range ours {
		if theirs[body] == 0 {
			s.t.Errorf("the kubelet never sent what nodeprobe did: %s", body)
		}
	}
}

// said counts what one of them has sent. Patches from before the start was over
// count by their kind alone.
func (s *stage) said(name string) map[string]int {
	s.t.Helper()
	told := map[string]int{}
	for _, w := range s.writes(name) {
		what := w.kind
		if w.kind == patchStatus {
			if _, ok := w.body["spec"]; ok {
				s.t.Errorf("%s sent a spec in a patch of its status: %v", name, w.body)
			}
			// Nothing at all: the second has not changed.
			if body := strip(w.body, without); w.at.After(s.since) && len(body) > 0 {
				what += " " + text(body)
			}
		}
		if w.code >= 300 && !strings.HasSuffix(w.kind, " leases") { // a kubelet begins with its Lease before there is a Node
			s.t.Errorf("%s of %s was answered with %d", what, name, w.code)
		}
		told[what]++
	}
	if told[createNode] != 1 {
		s.t.Errorf("%s was created by %d requests", name, told[createNode])
	}
	return told
}

func changes(condition corev1.NodeConditionType, status corev1.ConditionStatus) func(map[string]any) bool {
	return func(body map[string]any) bool {
		return slices.ContainsFunc(conditions(body), func(c map[string]any) bool {
			return c["type"] == string(condition) && c["status"] == string(status)
		})
	}
}

// isHeartbeat reports whether a patch holds nothing but heartbeats.
func isHeartbeat(body map[string]any) bool {
	status, _ := body["status"].(map[string]any)
	list := conditions(body)
	return len(body) == 1 && len(status) == 2 && status["$setElementOrder/conditions"] != nil && len(list) > 0 &&
		!slices.ContainsFunc(list, func(c map[string]any) bool {
			return len(c) != 2 || c["type"] == nil || c["lastHeartbeatTime"] == nil
		})
}

func conditions(body map[string]any) []map[string]any {
	status, _ := body["status"].(map[string]any)
	items, _ := status["conditions"].([]any)
	var all []map[string]any
	for _, item := range items {
		if c, ok := item.(map[string]any); ok {
			all = append(all, c)
		}
	}
	return all
}

func text(body map[string]any) string {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // it has been decoded
	}
	return string(data)
}
