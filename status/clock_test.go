package status

import (
	"testing"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// A wall clock that is set, by an hour in either direction, between a condition's
// change and its post.
func TestClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			flip := time.Now()
			now := stepped(t, flip.Add(20*time.Second), step)
			node := &v1.Node{}
			for _, kind := range []v1.NodeConditionType{"MemoryPressure", v1.NodeReady} {
				node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{
					Type: kind, Status: v1.ConditionFalse, LastTransitionTime: metav1.NewTime(flip.Add(-2 * time.Hour).Round(0)),
				})
			}
			facts := machineFacts(flip)
			facts.Verdicts[pressure.MemoryPressure] = pressure.Verdict{Condition: pressure.MemoryPressure, Status: pressure.True, Since: flip}
			cfg := Config{Addresses: testAddresses(), Resources: testResources()}.withDefaults()
			if err := apply(t.Context(), node, setters(&cfg, &facts, now)); err != nil {
				t.Error(err)
			}
			wall := now.Round(0)
			for kind, ago := range map[v1.NodeConditionType]time.Duration{"MemoryPressure": 20 * time.Second, v1.NodeReady: 0} {
				if got := wall.Sub(condition(node, kind).LastTransitionTime.Time); got != ago {
					t.Errorf("%s changed %v ago by the new clock, want %v", kind, got, ago)
				}
			}

			r := reporter{period: time.Minute, last: flip}
			if got := r.left(now); got != 40*time.Second {
				t.Errorf("report period has %v left, want 40s", got)
			}
			p := newPacer()
			p.post(flip)
			p.tokens = 0
			if got := p.wait(stepped(t, flip.Add(3*time.Second), step)); got != 7*time.Second {
				t.Errorf("a change has to wait %v, want 7s", got)
			}
		})
	}
}

// stepped is a time as it would have been read had the wall clock been set by d
// before: another wall time with the same monotonic reading. Package time cannot
// make one, so this goes into its insides, and checks that they are as expected.
func stepped(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	after := at
	*(*uint64)(unsafe.Pointer(&after)) += uint64(d/time.Second) << 30 // below are the nanoseconds
	if after.Sub(at) != 0 || after.Round(0).Sub(at.Round(0)) != d {
		t.Fatalf("package time has changed: %v became %v", at, after)
	}
	return after
}
