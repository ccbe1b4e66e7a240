// Package pressure decides whether the node is short of memory, disk or PIDs.
//
// It is the kubelet's eviction manager (v1.36, pkg/kubelet/eviction) reduced to
// the node conditions: the same configuration, read by [Parse], and the same
// state machine, run by an [Evaluator]. Given the same observations at the same
// times, it reports the same conditions, except that
//
//   - a signal that could not be read freezes the one condition that depends on
//     it, where the kubelet skips the pass and so freezes all three;
//   - a restart need not forget what was True: see [Evaluator.Seed];
//   - a transition period of 0 means that nothing is held, where the kubelet
//     would never report any pressure;
//   - a clock that is set back cannot revive a condition that has ended, nor
//     hold one for much longer (see hold.go).
//
// The package is pure: time comes in with the snapshot, and nothing here reads a
// clock, does I/O, logs or starts a goroutine.
package pressure

import (
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Condition is a node condition about a resource that is in short supply.
type Condition uint8

// The conditions, in the order in which Observe returns them.
const (
	MemoryPressure Condition = iota
	DiskPressure
	PIDPressure

	// NumConditions is the length of an array indexed by Condition.
	NumConditions = int(iota)
)

// String returns the condition's type in the Kubernetes API.
func (c Condition) String() string {
	return [NumConditions]string{"MemoryPressure", "DiskPressure", "PIDPressure"}[c]
}

// conditionOf maps an eviction signal to the condition that it decides.
var conditionOf = [probe.NumSignals]Condition{
	probe.MemoryAvailable:            MemoryPressure,
	probe.AllocatableMemoryAvailable: MemoryPressure,
	probe.NodeFsAvailable:            DiskPressure,
	probe.NodeFsInodesFree:           DiskPressure,
	probe.ImageFsAvailable:           DiskPressure,
	probe.ImageFsInodesFree:          DiskPressure,
	probe.ContainerFsAvailable:       DiskPressure,
	probe.ContainerFsInodesFree:      DiskPressure,
	probe.PIDAvailable:               PIDPressure,
}

// Status is the status of a condition.
type Status uint8

// The statuses of the Kubernetes API.
const (
	Unknown Status = iota
	False
	True
)

// String returns the status as the Kubernetes API spells it.
func (s Status) String() string { return [...]string{"Unknown", "False", "True"}[s] }

// Verdict is the evaluator's decision on one condition.
type Verdict struct {
	Condition Condition
	// Status is Unknown only as long as Frozen has kept it from being decided.
	Status Status
	// Since is the time of the snapshot at which Status last changed. Before the
	// first change it is the time of the first snapshot, or that given to Seed.
	Since time.Time

	// Met reports that this snapshot meets a threshold. If it does not and Status
	// is True, either Held or Frozen is set.
	Met bool
	// Held reports that Status is True only because the transition period since
	// LastMet is not over.
	Held bool
	// Frozen reports that Status was kept because no threshold is met and a signal
	// that could have met one could not be read.
	Frozen bool

	// The rest is the evidence for True; otherwise it is zero.

	// LastMet is the time of the last snapshot that met a threshold. If the clock
	// was set back since, it is that moment on the new clock.
	LastMet time.Time
	// Threshold is the most pressing of those met at LastMet: hard before soft, then
	// the one that is exceeded the most. It is zero if LastMet is from Seed.
	Threshold Threshold
	// Observation is the reading, and Limit what Observation.Available was below:
	// Threshold.Value in the signal's unit, plus MinReclaim if that applies.
	Observation probe.Observation
	Limit       int64
}

// Evaluator turns snapshots into verdicts. It is not safe for concurrent use.
type Evaluator struct {
	watches  []watch
	holds    [NumConditions]hold
	period   time.Duration
	verdicts [NumConditions]Verdict
}

// NewEvaluator returns an evaluator with all conditions Unknown. After a threshold
// was last met, its condition stays True for the transition period; if that is not
// positive, it is True exactly while a threshold is met.
func NewEvaluator(thresholds []Threshold, transitionPeriod time.Duration) *Evaluator {
	e := &Evaluator{watches: make([]watch, len(thresholds)), period: transitionPeriod}
	for i, t := range thresholds {
		e.watches[i].Threshold = t
		e.holds[t.Condition()].watched = true
	}
	for c := range e.holds {
		e.holds[c].Condition = Condition(c)
	}
	return e
}

// Seed sets, before the first snapshot, the status that a condition had when the
// program ended, so that a restart does not change it. A condition that was True
// counts as last met at that time, which may be from another machine's clock. To
// hold it for the whole transition period from now on, pass the current time.
func (e *Evaluator) Seed(c Condition, s Status, at time.Time) {
	v := Verdict{Condition: c, Status: s, Since: at}
	if s == True {
		v.LastMet = at
	}
	e.holds[c].Verdict = v
}

// Observe takes one snapshot into account. It returns the verdicts on all
// conditions, indexed by Condition, in a slice that belongs to the evaluator
// and is valid until the next call. It does not allocate.
//
// A threshold is met while less is available than its Value. A condition is
// True as soon as one of its thresholds is met, whatever its grace period, and
// until the transition period has passed; it is False if it has no thresholds.
//
// A signal that could not be read (OK is false, Err is not nil) leaves the
// thresholds on it as they were; unless another threshold of the condition is
// met, the verdict keeps its Status. The transition period goes on meanwhile,
// so that the first complete snapshot may end the condition. A signal that is
// not there to be read (OK is false, Err is nil) meets no threshold.
func (e *Evaluator) Observe(s *probe.Snapshot) []Verdict {
	var sightings [NumConditions]sighting
	for i := range e.watches {
		w := &e.watches[i]
		sightings[w.Condition()].add(w.observe(s.Time, s.Signals[w.Signal]))
	}
	for c := range e.holds {
		e.verdicts[c] = e.holds[c].observe(s.Time, e.period, &sightings[c])
	}
	return e.verdicts[:]
}

// watch is a threshold and whether it is met.
type watch struct {
	Threshold
	// met reports whether it was met when its signal was last read, and since is the
	// time of the first in the unbroken run of snapshots that met it.
	met   bool
	since time.Time
	// reclaiming reports that it was met for the grace period: the available amount
	// must exceed Value by MinReclaim before it is no longer met.
	reclaiming bool
}

// observe is one pass of the kubelet's thresholdsMet, thresholdsFirstObservedAt
// and thresholdsMetGracePeriod.
func (w *watch) observe(now time.Time, obs probe.Observation) sighting {
	if !obs.OK {
		if obs.Err == nil {
			w.met, w.reclaiming = false, false
		}
		return sighting{absent: obs.Err != nil}
	}
	limit := w.Value.Of(obs.Capacity)
	if w.reclaiming {
		limit = plus(limit, w.MinReclaim.Of(obs.Capacity))
	}
	if obs.Available >= limit {
		w.met, w.reclaiming = false, false
		return sighting{}
	}
	if !w.met {
		w.met, w.since = true, now
	}
	w.since = rebase(w.since, now)
	w.reclaiming = now.Sub(w.since) >= w.Grace
	return sighting{met: true, threshold: w.Threshold, observation: obs, limit: limit}
}

// sighting is what one snapshot shows of a threshold, or of all thresholds of a
// condition together.
type sighting struct {
	absent bool
	// met reports that the threshold is met; the rest is then the evidence.
	met         bool
	threshold   Threshold
	observation probe.Observation
	limit       int64
}

// add takes the more pressing of two sightings.
func (s *sighting) add(other sighting) {
	absent := s.absent || other.absent
	if other.met && (!s.met || other.presses(s)) {
		*s = other
	}
	s.absent = absent
}

func (s *sighting) presses(other *sighting) bool {
	if hard := s.threshold.Hard(); hard != other.threshold.Hard() {
		return hard
	}
	return s.shortfall() > other.shortfall()
}

// shortfall returns the share of the limit that is not available, so that bytes can
// be compared with inodes. For a limit of 0 it is infinite.
func (s *sighting) shortfall() float64 {
	return 1 - float64(s.observation.Available)/float64(s.limit)
}
