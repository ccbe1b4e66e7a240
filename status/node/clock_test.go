package node

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// A wall clock that is set, by an hour in either direction, between a condition's
// change and its post.
func TestClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			flip := time.Now()
			now := apitest.Stepped(t, flip.Add(20*time.Second), step)
			node := &v1.Node{}
			for _, kind := range []v1.NodeConditionType{"MemoryPressure", v1.NodeReady} {
				node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{
					Type: kind, Status: v1.ConditionFalse, LastTransitionTime: metav1.NewTime(flip.Add(-2 * time.Hour).Round(0)),
				})
			}
			facts := machineFacts(flip)
			facts.Verdicts[pressure.MemoryPressure] = pressure.Verdict{Condition: pressure.MemoryPressure, Status: pressure.True, Since: flip}
			p := New(Config{Addresses: testAddresses(), Resources: testResources()}).pass(&facts, now)
			if err := p.apply(t.Context(), node); err != nil {
				t.Error(err)
			}
			wall := now.Round(0)
			for kind, ago := range map[v1.NodeConditionType]time.Duration{"MemoryPressure": 20 * time.Second, v1.NodeReady: 0} {
				if got := wall.Sub(condition(node, kind).LastTransitionTime.Time); got != ago {
					t.Errorf("%s changed %v ago by the new clock, want %v", kind, got, ago)
				}
			}
		})
	}
}
