package pressure

import (
	"slices"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// kubelet is what the Evaluator is measured against: the part of the kubelet's
// managerImpl.synchronize (v1.36, pkg/kubelet/eviction/eviction_manager.go) that
// decides on node conditions, step by step and with the same names.
type kubelet struct {
	thresholds                   []Threshold
	pressureTransitionPeriod     time.Duration
	thresholdsMet                []Threshold
	thresholdsFirstObservedAt    map[Threshold]time.Time
	nodeConditionsLastObservedAt map[Condition]time.Time
}

func newKubelet(thresholds []Threshold, period time.Duration) *kubelet {
	return &kubelet{
		thresholds:                   thresholds,
		pressureTransitionPeriod:     period,
		nodeConditionsLastObservedAt: map[Condition]time.Time{},
	}
}

// synchronize returns the conditions that are true.
func (k *kubelet) synchronize(s *probe.Snapshot) map[Condition]bool {
	now := s.Time

	// determine the set of thresholds met independent of grace period
	thresholds := thresholdsMet(k.thresholds, s, false)
	// determine the set of thresholds previously met that have not yet satisfied
	// the associated min-reclaim
	for _, t := range thresholdsMet(k.thresholdsMet, s, true) {
		if !slices.Contains(thresholds, t) {
			thresholds = append(thresholds, t)
		}
	}

	// track when a threshold was first observed
	firstObservedAt := map[Threshold]time.Time{}
	for _, t := range thresholds {
		at, found := k.thresholdsFirstObservedAt[t]
		if !found {
			at = now
		}
		firstObservedAt[t] = at
	}
	k.thresholdsFirstObservedAt = firstObservedAt

	// track when a node condition was last observed
	for _, t := range thresholds {
		k.nodeConditionsLastObservedAt[t.Condition()] = now
	}
	// node conditions report true if it has been observed within the transition
	// period window
	conditions := map[Condition]bool{}
	for c, at := range k.nodeConditionsLastObservedAt {
		if now.Sub(at) < k.pressureTransitionPeriod {
			conditions[c] = true
		}
	}

	// determine the set of thresholds whose grace periods are met
	k.thresholdsMet = nil
	for t, at := range firstObservedAt {
		if now.Sub(at) >= t.Grace {
			k.thresholdsMet = append(k.thresholdsMet, t)
		}
	}
	return conditions
}

func thresholdsMet(thresholds []Threshold, s *probe.Snapshot, enforceMinReclaim bool) []Threshold {
	var results []Threshold
	for _, t := range thresholds {
		observed := s.Signals[t.Signal]
		if !observed.OK {
			continue
		}
		quantity := t.Value.Of(observed.Capacity)
		if enforceMinReclaim {
			quantity += t.MinReclaim.Of(observed.Capacity)
		}
		if quantity > observed.Available {
			results = append(results, t)
		}
	}
	return results
}
