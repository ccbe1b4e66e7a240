package pressure

import (
	"math"
	"time"
)

// Pace bounds the time between two samples where the kernel does not watch the
// limits itself. A field that is not positive stands for its default.
//
// The cost is in the wake-ups, about 0.1 ms each, not in what is read: 0.2 % of a
// CPU at 100 ms, 0.001 % at 10 s.
type Pace struct {
	// Floor is the least time, right before a limit is reached; 100 ms.
	Floor time.Duration
	// Ceiling is the longest time while a limit is so near that a burst which has not
	// begun yet might reach it; 1 s. It bounds how late that is noticed.
	Ceiling time.Duration
	// Base is the time while nothing is near; 10 s. If it is less than the
	// others, it replaces them.
	Base time.Duration
	// Soonest is when something may change that no estimate is about, as
	// [Limits.Soonest] tells; never if it is not positive.
	Soonest time.Duration
}

const (
	// lead is how many samples an Earliest is good for: the next one comes when a
	// sixteenth of it has passed. After Base, a burst has
	// possibly just begun, and is averaged with the quiet before it: so much
	// faster than it seems it may be, and still be seen coming. A steady fill
	// costs 11 samples each time that the time to the limit halves.
	lead = 16

	// surgeShare bounds a burst that has not begun yet: a twentieth of the capacity
	// per second, or less by surge. A node whose resources are half free need not be
	// sampled for Base.
	surgeShare = 1. / 20
)

// surge is how fast one busy process uses a resource up, in units per second.
// The fastest that a machine can do is several times that (8 GiB/s of memory, 4
// GiB/s of disk, 50000 tasks per second), but if that had to be expected at any
// time, an idle machine with 8 GiB free would have to be sampled every second, and
// any small one every 100 ms, forever. So a burst that is faster than surge and comes
// without warning may be noticed late, by up to Base.
func surge(unit string) float64 {
	switch unit {
	case "tasks":
		return 5000
	case "inodes":
		return 20000
	default:
		return 2 << 30
	}
}

// NextSample returns the time until the next sample, given the estimates of the
// latest and what NextSample returned before it; 0 if this is the first. It is
// the least of
//
//   - a sixteenth of the time in which a limit may be reached, but at least Floor;
//   - the time in which a burst that has not begun yet might reach a limit (or end a
//     shortage), but at least Ceiling: a disk may stay just above its limit for
//     weeks, which does not justify ten samples a second;
//   - Soonest;
//   - Base;
//   - twice the time before: it shrinks at once, but grows in steps, so that a
//     forecast which comes and goes costs samples and not a crossing, and a burst
//     that pauses finds the sampler awake.
//
// A signal that shrinks by no more than 5 % of its capacity per second, and no
// more than 2 GiB/s, 20000 inodes/s or 5000 tasks/s, is thus seen to reach its
// limit within Ceiling, and if it was seen shrinking before, within about Floor.
// What is faster may be seen late by Base; TestSimulations has figures.
func NextSample(estimates []Estimate, before time.Duration, p Pace) time.Duration {
	p = p.complete()
	next := p.Base
	if p.Soonest > 0 {
		next = min(next, max(p.Soonest, p.Floor))
	}
	for i := range estimates {
		next = min(next, estimates[i].due(p))
	}
	switch {
	case before <= 0:
		return min(next, p.Ceiling) // two samples make a rate
	case before < next-before: // not 2*before < next, which might overflow
		return max(2*before, p.Floor)
	default:
		return next
	}
}

func (p Pace) complete() Pace {
	for _, f := range [...]struct {
		field *time.Duration
		value time.Duration
	}{{&p.Floor, 100 * time.Millisecond}, {&p.Ceiling, time.Second}, {&p.Base, 10 * time.Second}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	p.Ceiling = min(p.Ceiling, p.Base)
	p.Floor = min(p.Floor, p.Ceiling)
	return p
}

// due returns the time until the next sample for an estimate, which may be never.
func (e *Estimate) due(p Pace) time.Duration {
	next := max(e.surprise(), p.Ceiling)
	if e.Earliest > 0 {
		next = min(next, max(e.Earliest/lead, p.Floor))
	}
	return next
}

// surprise returns the time in which a burst that has not begun yet might cross the
// limit, in either direction.
func (e *Estimate) surprise() time.Duration {
	if e.Capacity <= 0 {
		return math.MaxInt64 // nothing is known, and more samples do not help
	}
	fastest := min(surge(e.Signal.Unit()), float64(e.Capacity)*surgeShare)
	seconds := math.Abs(float64(e.Headroom)) / fastest
	if seconds > Horizon.Seconds() {
		return Horizon
	}
	return time.Duration(seconds * float64(time.Second))
}
