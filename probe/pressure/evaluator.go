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
// The package is pure: what time it is comes in with the snapshot, and nothing
// here reads a clock, does I/O, logs or starts a goroutine.
package pressure

import (
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Condition is a node condition that says that something is in short supply.
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

// conditionOf says which condition a signal is about.
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

// The statuses that the Kubernetes API knows.
const (
	Unknown Status = iota
	False
	True
)

// String returns the status as the Kubernetes API spells it.
func (s Status) String() string { return [...]string{"Unknown", "False", "True"}[s] }

// Verdict is what the evaluator makes of one condition.
type Verdict struct {
	Condition Condition
	// Status is Unknown only as long as Frozen has kept it from being decided.
	Status Status
	// Since is the time of the snapshot at which Status last changed. As long as
	// it has not, it is that of the first one, or what Seed said.
	Since time.Time

	// Met says that a threshold is met by this snapshot. Without it, Held or
	// Frozen says why Status is True nevertheless.
	Met bool
	// Held says that Status is True only because the transition period since
	// LastMet is not over.
	Held bool
	// Frozen says that Status was kept because no threshold is met and a signal
	// that could have told otherwise could not be read.
	Frozen bool

	// The rest is the evidence for True; otherwise it is zero.

	// LastMet is the time of the last snapshot that met a threshold. If the
	// clock was set back since, it is where that puts it on the new clock.
	LastMet time.Time
	// Threshold is the most pressing of those that were met at LastMet: a hard
	// one rather than a soft one, then the one furthest from being left. It is
	// zero if LastMet is from Seed.
	Threshold Threshold
	// Observation is what was read, and Limit what Observation.Available was
	// below: Threshold.Value in the signal's unit, with MinReclaim on top where
	// that is in force.
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

// NewEvaluator returns an evaluator to which all conditions are Unknown. After
// a threshold was last met, its condition stays True for the transition period;
// if that is not positive, it is True exactly while a threshold is met.
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

// Seed tells the evaluator, before its first snapshot, how a condition stood
// when the program ended: a restart is then no reason for it to change. A
// condition that was True counts as last met at that time, which may lie on
// another machine's clock. To hold it for the whole transition period from now
// on, pass the current time.
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
	// met says whether it was met when its signal was last read, and since is
	// the first of the unbroken run of snapshots that met it.
	met   bool
	since time.Time
	// reclaiming says that it was met for the grace period, so that what is
	// available must exceed Value by MinReclaim before it is not met any more.
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

// sighting is what one snapshot says about a threshold, or about the thresholds
// of a condition taken together.
type sighting struct {
	absent bool
	// met says that the threshold is met; then the rest is the evidence.
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

// shortfall returns which part of the limit is not available, so that bytes can
// be compared with inodes. Of a limit of 0, that is infinitely much.
func (s *sighting) shortfall() float64 {
	return 1 - float64(s.observation.Available)/float64(s.limit)
}
