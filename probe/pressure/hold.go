package pressure

import "time"

// hold is one condition over time: the last verdict, held for the transition
// period.
//
// Its durations come from Time.Sub, which is immune to steps of the wall clock
// as long as the snapshots carry a monotonic reading, as the sampler's do. A
// suspended machine's monotonic clock stands still, so such a hold outlasts the
// suspension. Without monotonic readings,
//
//   - a step back makes a hold last longer: at most the transition period from
//     the step on, however far it goes, since rebase moves LastMet along;
//   - a step forward is no different from a suspension, and ends the hold.
type hold struct {
	Verdict
	// watched reports that the condition has thresholds.
	watched bool
	// judged reports that a snapshot was enough to decide.
	judged bool
}

// observe is one pass of the kubelet's nodeConditionsLastObservedAt and
// nodeConditionsObservedSince.
func (h *hold) observe(now time.Time, period time.Duration, s *sighting) Verdict {
	v := &h.Verdict
	was := v.Status
	v.Met, v.Held, v.Frozen = s.met, false, false
	h.judged = h.judged || s.met || !s.absent
	if was == True {
		v.LastMet = rebase(v.LastMet, now)
	}
	switch {
	case s.met:
		v.Status, v.LastMet = True, now
		v.Threshold, v.Observation, v.Limit = s.threshold, s.observation, s.limit
	case s.absent:
		v.Frozen = true
	case h.watched && was == True && now.Sub(v.LastMet) < period:
		v.Held = true
	default:
		*v = Verdict{Condition: v.Condition, Status: False, Since: v.Since}
	}
	if v.Status != was || v.Since.IsZero() {
		v.Since = now
	}
	return *v
}

// rebase returns t as a time that is as long before now. That changes nothing if both
// carry a monotonic reading. If t came from elsewhere (see Seed), it gets one from now,
// and later steps of the wall clock cannot hurt; and a t that lies after now,
// because the clock was set back, becomes now.
func rebase(t, now time.Time) time.Time { return now.Add(-max(0, now.Sub(t))) }
