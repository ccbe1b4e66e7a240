package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const (
	// transition is how long the kubelet and nodeprobe keep a condition True.
	transition = time.Second
	// refill is how long nodeprobe takes to be allowed another write when it has
	// written as often as it may.
	refill = 10 * time.Second
)

// ourCondition is ours about what the load is about.
func ourCondition(l *pressure.Load) corev1.NodeConditionType { return "nodeprobe.dev/" + l.Condition }

// pressAndRelease puts the node under every pressure and takes it all away again.
// Our conditions are to follow at once, and the kubelet's own do.
func (s *scene) pressAndRelease(t *testing.T, meanwhile func()) {
	t.Helper()
	for _, phase := range []struct {
		what   string
		status corev1.ConditionStatus
		do     func(*pressure.Load) error
	}{
		{"press", corev1.ConditionTrue, func(l *pressure.Load) error { return l.Press() }},
		{"release", corev1.ConditionFalse, func(l *pressure.Load) error { return l.Release() }},
	} {
		begun := map[*pressure.Load]time.Time{}
		for _, l := range s.loads {
			begun[l] = time.Now()
			must.OK(t, phase.do(l))
			if phase.status == corev1.ConditionTrue {
				t.Cleanup(func() { _ = l.Release() }) // once more, if the test ends early
			}
		}
		for _, l := range s.loads {
			took := s.wait(t, ours, begun[l], nodewatch.Has(ourCondition(l), phase.status)).Sub(begun[l])
			theirs := s.wait(t, patience, begun[l], nodewatch.Has(l.Condition, phase.status)).Sub(begun[l])
			fmt.Printf("RESULT %s_%s_to_%s=%.2f s peer=kubelet:%.2f\n", phase.what, l.Condition, phase.status, took.Seconds(), theirs.Seconds())
		}
		if phase.status == corev1.ConditionTrue {
			meanwhile()
			// A write is saved up for every ten seconds: one for the first release,
			// and one for the others, which come within half a second of it.
			time.Sleep(time.Until(begun[s.loads[len(s.loads)-1]].Add(2*refill + time.Second)))
		}
	}
}

// wantLead waits until nodeprobe has counted an episode of each pressure which the
// kubelet saw too, and wants to have been first.
func (s *scene) wantLead(t *testing.T) {
	t.Helper()
	for _, l := range s.loads {
		s.eventually(t, "the kubelet's "+string(l.Condition)+" is compared with ours", func() error {
			metrics, err := agent.ReadMetrics(t.Context(), s.metricsAddress())
			if err != nil {
				return err
			}
			label := fmt.Sprintf("{condition=%q", l.Condition)
			both, alone := metrics["nodeprobe_shadow_episodes_total"+label+`,seen_by="both"}`], metrics["nodeprobe_shadow_episodes_total"+label+`,seen_by="kubelet"}`]
			sum, count := metrics["nodeprobe_shadow_lead_seconds_sum"+label+"}"], metrics["nodeprobe_shadow_lead_seconds_count"+label+"}"]
			if both < 1 || alone > 0 || count < 1 || sum <= 0 {
				return fmt.Errorf("%v episodes seen by both, %v by the kubelet alone, %v leads of %v s", both, alone, count, sum)
			}
			fmt.Printf("RESULT lead_%s=%.2f s\n", l.Condition, sum/count)
			return nil
		})
	}
}

// within is a context of the test that ends earlier.
func within(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}
