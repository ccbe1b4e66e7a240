package deploy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const ourDisk = "nodeprobe.dev/DiskPressure"

var longType, longReason = "nodeprobe.dev/" + repeated(63), repeated(128)

// With the pod's identity, under the policy, nodeprobe does all that mode augment
// consists of, and nothing that it asks for is refused.
func TestAugment(t *testing.T) {
	s := newStage(t, "identity", "base")
	pod := s.config(s.pod("a"))
	s.waitPolicies(s.client(pod), "nodeprobe-node", "nodeprobe-event")
	s.augments(t, pod, "system:serviceaccount:nodeprobe:nodeprobe", nil)
}

// augments runs nodeprobe on node a with a pod's token, lets its disk fill, and ends
// it. The API server has to take it for user.
func (s *stage) augments(t *testing.T, pod *rest.Config, user string, config agent.Config) {
	t.Helper()
	fs := pressure.DiskForTest(t, 64)
	before := s.others("a")
	a := s.start(pod, agent.Config{
		"mode": "augment", "rootDirectory": fs.Dir, "evictionHard": agent.Hard(map[string]string{"nodefs.available": "20Mi"}),
		"conditionHeartbeat": "10s",
		// As long as a row can make it.
		"conditions": map[string]any{longType: map[string]any{
			"when": append(slices.Repeat([]string{"memory.available < 1Ki"}, 100), "DiskPressure"), "reason": longReason, "okReason": longReason,
		}},
	}.With(config))
	s.waitCondition(corev1.ConditionFalse)
	posted := nodewatch.Condition(s.node("a"), ourDisk).LastHeartbeatTime
	s.eventually("there is a heartbeat", func() error {
		if last := nodewatch.Condition(s.node("a"), ourDisk).LastHeartbeatTime; !last.After(posted.Time) {
			return fmt.Errorf("the last was at %s", last)
		}
		return nil
	})
	must.OK(t, fs.Fill(10<<20))
	s.waitCondition(corev1.ConditionTrue)
	s.eventually("there is an event", func() error {
		events, err := s.cp.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,reason=DiskIsShort"})
		if err == nil && len(events.Items) != 1 {
			err = fmt.Errorf("there are %d", len(events.Items))
		}
		return err
	})
	must.OK(t, fs.Empty())
	s.waitCondition(corev1.ConditionFalse)
	if c := nodewatch.Condition(s.node("a"), corev1.NodeConditionType(longType)); len(c.Message) != 2048 || c.Reason != longReason {
		t.Errorf("a long condition has a message of %d bytes and reason %s", len(c.Message), c.Reason)
	}
	s.eventually("there is an event with a long message", func() error {
		events, err := s.cp.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,type=Normal,reason=" + longReason})
		if err == nil && (len(events.Items) != 1 || len(events.Items[0].Message) != 1024) {
			err = fmt.Errorf("there are %d, or it is not long", len(events.Items))
		}
		return err
	})
	a.Stop()
	for _, c := range s.node("a").Status.Conditions {
		if strings.HasPrefix(string(c.Type), "nodeprobe.dev/") {
			t.Errorf("after the end there is %s", c.Type)
		}
	}
	if after := s.others("a"); after != before {
		t.Errorf("the rest of the node is now %s, was %s", after, before)
	}
	requests := s.requests(user, "get nodes", "watch nodes", "patch nodes/status", "create events", "patch events")
	if requests["patch nodes/status"] < 4 || requests["create events"] == 0 {
		t.Error("these are not all")
	}
}

// start runs nodeprobe as node a's until the test ends.
func (s *stage) start(pod *rest.Config, config agent.Config) *agent.Agent {
	s.t.Helper()
	kubeconfig := must.Get(s.cp.WriteKubeconfig("pod", pod))(s.t)
	return agent.StartForTest(s.t, agent.Spec{
		Binary: build.ProductForTest(s.t), Dir: s.t.TempDir(), NodeName: "a", Kubeconfig: kubeconfig, Config: agent.Own().With(config),
	})
}

func (s *stage) waitCondition(want corev1.ConditionStatus) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%s is %s", ourDisk, want), func() error {
		if !nodewatch.Has(ourDisk, want)(s.node("a")) {
			return errors.New("it is not")
		}
		return nil
	})
}

// requests reads in the audit log what nodeprobe has asked for: as that user, nothing
// but what is expected, and none of it may have been refused. That there is no such
// object is an answer.
func (s *stage) requests(user string, expected ...string) map[string]int {
	s.t.Helper()
	all := must.Get(s.cp.AuditEvents())(s.t)
	requests := map[string]int{}
	for _, e := range all {
		if !strings.HasPrefix(e.UserAgent, "nodeprobe/") {
			continue
		}
		request := e.Request()
		requests[request]++
		if e.ResponseStatus.Code >= 400 && e.ResponseStatus.Code != 404 || e.ActingUser() != user {
			s.t.Errorf("%s %s by %s: %d", e.Verb, e.RequestURI, e.ActingUser(), e.ResponseStatus.Code)
		}
		if !slices.Contains(expected, request) {
			s.t.Errorf("unexpected: %s", request)
		}
	}
	s.t.Logf("requests: %v", requests)
	return requests
}
