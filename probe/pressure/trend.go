package pressure

import (
	"math"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

const (
	// A burst must show at once, and a leak must show although the signal
	// jitters: so there are two averages, and the one that shrinks faster counts.
	// Memory jitters by megabytes from one sample to the next; the fast average
	// makes at most jitter/2s of that, the slow one jitter/60s. A minute also
	// evens out the steps in which a filesystem accounts for what is written,
	// which come twice a minute.
	fastSeconds, slowSeconds = 2, 60

	// minStep is the least time over which a rate is measured. Events can cause two
	// samples within microseconds, where a page or two would look like gigabytes per
	// second.
	minStep = 50 * time.Millisecond

	// forgetAfter is how long a signal may go unread before what was known about
	// it is worth nothing: two slow constants. Nothing is known about the time
	// for which a machine was suspended, and longer periods between samples have
	// no use for a forecast.
	forgetAfter = 2 * time.Minute

	// newCapacity is the relative change that makes it another resource: a disk
	// that was grown, memory that was plugged in, another pid_max. It is not 0
	// because on ZFS the capacity of a dataset is what it uses plus what the pool
	// has left, which changes with every write to any other, and because balloons
	// take memory away in small pieces; that is a trend like any other.
	newCapacity = 0.01

	// significance is how many times its jitter a signal must have moved before
	// it has moved at all. Normal noise of deviation s has a mean step of 1.1 s,
	// and the fast average strays by 0.7 to 1.4 s.
	significance = 3

	// outlierDown and outlierUp are how many times the jitter so far one step may
	// add to it. More than that, downwards, is a burst, which must not raise the
	// bar that it has to take; but regular steps are learned within some of them.
	// Upwards, something was given back, which says nothing about jitter: the heap
	// of a garbage collector fills steadily in between.
	outlierDown, outlierUp = 8, 2

	// leastJitter is the share of the capacity below which no jitter is learned:
	// 8 KiB of 8 GiB, 1 MiB of 1 TiB. A signal that never moved would otherwise
	// make a trend of its first page.
	leastJitter = 1.0 / (1 << 20)

	// minWeight is the weight of evidence below which an average is damped: alone, the
	// first 0.1 s of a history would turn a step of 300 MB into 3 GB/s.
	minWeight = 0.25
)

// trend follows one signal.
type trend struct {
	// begun reports that there is a history; its last entry is level at time.
	begun bool
	time  time.Time
	level float64
	step  float64 // seconds between the last two levels
	// capacity is what it was when the history began.
	capacity float64

	fast, slow average
	// jitter averages the distances between where the fast average led and
	// where the signal went.
	jitter average

	// mark is where the signal was when it last moved by more than jitter, and
	// shrank is when it last moved down.
	mark   float64
	shrank time.Time

	// course is what forecasts are made from: the averages are for the pace, which must
	// not miss a burst; this must not take noise for one.
	course course
}

// observe takes one reading into account.
func (t *trend) observe(now time.Time, obs probe.Observation) {
	if !t.begun && !obs.OK {
		return
	}
	elapsed := now.Sub(t.time)
	switch {
	case !obs.OK:
		// The clock was set back: how long it has been is unknown.
		if obs.Err == nil || elapsed > forgetAfter || elapsed < 0 {
			*t = trend{}
		}
	case !t.begun, elapsed > forgetAfter,
		math.Abs(float64(obs.Capacity)-t.capacity) > newCapacity*t.capacity:
		*t = trend{
			begun: true, time: now, shrank: now, level: float64(obs.Available),
			mark: float64(obs.Available), capacity: float64(max(0, obs.Capacity)),
			course: newCourse(float64(obs.Available)),
		}
	case elapsed < 0:
		// The clock was set back. The averages are rates, which remain true; only the
		// change since the last level is lost.
		t.time, t.level = now, float64(obs.Available)
	case elapsed >= minStep:
		t.add(elapsed.Seconds(), float64(obs.Available))
		t.course.follow(elapsed.Seconds(), t.level, t.bar())
		t.time = now
		t.note(now)
	}
}

// add takes one step of the signal into account.
func (t *trend) add(seconds, level float64) {
	change, bar, slowShare := level-t.level, t.bar(), -math.Expm1(-seconds/slowSeconds)
	if change < 0 {
		// Otherwise 4 GB that were given back would hide for minutes that something
		// else has begun to take them.
		if t.fast.moved(t.step, fastSeconds) > bar {
			t.fast = average{}
		}
		if t.slow.moved(t.step, slowSeconds) > bar {
			t.slow = average{}
		}
	}
	// The first step of all cannot surprise; after that, an average that starts
	// over expects that nothing moves.
	if t.jitter.weight > 0 || t.fast.weight > 0 {
		surprise, most := change-t.fast.value()*seconds, bar/significance
		surprise = max(-outlierDown*most, min(surprise, outlierUp*most))
		t.jitter.add(math.Abs(surprise), slowShare)
	}
	t.fast.add(change/seconds, -math.Expm1(-seconds/fastSeconds))
	t.slow.add(change/seconds, slowShare)
	t.step, t.level = seconds, level
}

// note keeps the time at which the signal last shrank.
func (t *trend) note(now time.Time) {
	if math.Abs(t.level-t.mark) <= t.bar() {
		return
	}
	if t.level < t.mark {
		t.shrank = now
	}
	t.mark = t.level
}

// bar is how far the signal must move to have moved.
func (t *trend) bar() float64 {
	least := max(1, t.capacity*leastJitter)
	if t.jitter.weight == 0 {
		return significance * least
	}
	return significance * max(least, t.jitter.sum/t.jitter.weight)
}

// rate returns by how much the signal changes per second. If either average
// shrinks, it is the one that shrinks faster.
func (t *trend) rate(now time.Time) float64 {
	bar := t.bar()
	fast, slow := t.fast.value(), t.slow.value()
	if t.still(now) > forgetAfter {
		// What is left of a burst that is over would otherwise fade for ten
		// minutes. Nothing that shrinks by more than the bar within the memory
		// of an average stands still for as long.
		fast, slow = max(0, fast), max(0, slow)
	}
	if math.Abs(t.fast.moved(t.step, fastSeconds)) <= bar {
		fast = 0
	}
	if math.Abs(t.slow.moved(t.step, slowSeconds)) <= bar {
		slow = 0
	}
	if fast > 0 && slow >= 0 {
		return fast // what grows is judged by what it does now
	}
	if fast == 0 {
		return slow
	}
	return min(fast, slow)
}

// still returns for how long the signal has not shrunk; 0 if the clock was set back
// meanwhile.
func (t *trend) still(now time.Time) time.Duration { return max(0, now.Sub(t.shrank)) }

// average is an exponentially weighted average over time. Each value has a share
// of 1-exp(-seconds/constant) for the seconds that it stands for, so that a
// straight line has the same rate however it is sampled. The weight is the sum of
// the shares that are in it, and tends to 1; without it, an average would take its
// time constant to get off the ground.
type average struct{ sum, weight float64 }

func (a *average) add(value, share float64) {
	a.sum += share * (value - a.sum)
	a.weight += share * (1 - a.weight)
}

// value returns the average, damped while its weight is below minWeight.
func (a *average) value() float64 { return a.sum / max(a.weight, minWeight) }

// moved returns, for an average of rates, how far the signal has gone within its
// memory: its time constant, or the last step if that was longer.
func (a *average) moved(step, constant float64) float64 { return a.sum * max(step, constant) }
