package pressure

import (
	"math"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Horizon is how far a forecast looks ahead; anything further off is never.
const Horizon = 30 * 24 * time.Hour

// Estimate is when a limit will be reached, if what the signal does goes on.
//
//	reached     OK, TimeToLimit is 0, Headroom is not positive
//	approached  OK, TimeToLimit is positive
//	never       not OK, Headroom is positive: nothing speaks for it
//	unknown     not OK, Capacity is 0: the signal cannot be read
//
// A limit is forecast to be reached on evidence only: a straight line explains nine
// tenths of how the latest samples vary, five of them at least; along it the signal has
// lost a quarter of the Headroom, and twice of what it rises by now and then (or all of
// the Headroom once more); and it still moves.
type Estimate struct {
	Signal    probe.Signal
	Threshold Threshold
	// Headroom is how much more than the limit is available, in the signal's
	// unit. The limit is Threshold.Value, without the minimum reclaim. At 0 the
	// limit is reached, which the condition is not until it is below.
	Headroom int64
	// Capacity is the signal's, to compare Headroom with.
	Capacity int64
	// TimeToLimit is Headroom at the rate of that line, but not less than the time for
	// which nothing has moved. It is 0 if and only if the limit is reached (or OK is
	// false).
	TimeToLimit time.Duration
	// OK reports that the limit is reached, or will be.
	OK bool

	// Rate is by how much the available amount changes just now, in units per second:
	// less than 0 while it shrinks, and 0 while it does no more than jitter. It takes one
	// sample, and may be noise.
	Rate float64
	// Earliest is when the limit may be reached: Headroom at Rate, or TimeToLimit if that
	// is less; 0 if the limit is reached, or never will be within the Horizon. It is for
	// the time of the next sample, not for people.
	Earliest time.Duration
}

// Forecaster turns snapshots into estimates. Like the Evaluator it is pure, and
// not safe for concurrent use.
type Forecaster struct {
	signals   []probe.Signal // those that have a threshold, each once
	trends    [probe.NumSignals]trend
	estimates []Estimate
}

// NewForecaster returns a forecaster without a history.
func NewForecaster(thresholds []Threshold) *Forecaster {
	f := &Forecaster{estimates: make([]Estimate, len(thresholds))}
	var watched [probe.NumSignals]bool
	for i, t := range thresholds {
		f.estimates[i] = Estimate{Signal: t.Signal, Threshold: t}
		if !watched[t.Signal] {
			watched[t.Signal] = true
			f.signals = append(f.signals, t.Signal)
		}
	}
	return f
}

// Observe takes one snapshot into account. It returns one estimate for each
// threshold, in their order, in a slice that belongs to the forecaster and is
// valid until the next call. It does not allocate.
//
// Snapshots may come at any distance, and as close together as events happen.
// While a signal cannot be read (Err is not nil), its estimates stay as they
// were, for two minutes at most. A signal that is not there (Err is nil), or
// whose capacity has changed by more than 1 %, starts afresh.
func (f *Forecaster) Observe(s *probe.Snapshot) []Estimate {
	for _, signal := range f.signals {
		f.trends[signal].observe(s.Time, s.Signals[signal])
	}
	for i := range f.estimates {
		e := &f.estimates[i]
		t := &f.trends[e.Signal]
		switch obs := s.Signals[e.Signal]; {
		case obs.OK:
			*e = estimate(e.Threshold, obs, t.rate(s.Time), t.course.evidence(t.still(s.Time)), t.still(s.Time))
		case !t.begun:
			*e = Estimate{Signal: e.Signal, Threshold: e.Threshold}
		}
	}
	return f.estimates
}

// estimate divides what is left by the rates at which it shrinks, given how long it has
// stood still.
func estimate(t Threshold, obs probe.Observation, rate float64, v evidence, still time.Duration) Estimate {
	e := Estimate{
		Signal: t.Signal, Threshold: t, Capacity: obs.Capacity, Rate: rate,
		Headroom: minus(obs.Available, t.Value.Of(obs.Capacity)),
	}
	if e.Headroom <= 0 {
		e.OK = true
		return e
	}
	e.Earliest = until(e.Headroom, rate, still)
	if v.enough(float64(e.Headroom)) {
		e.TimeToLimit = until(e.Headroom, v.rate, still)
		e.OK = e.TimeToLimit > 0
	}
	if e.OK && (e.Earliest == 0 || e.TimeToLimit < e.Earliest) {
		e.Earliest = e.TimeToLimit
	}
	return e
}

// until returns for how long what is left lasts at a rate, but not less than the time for
// which it has stood still: a burst that is over was no promise. It is 0 if that is never.
func until(headroom int64, rate float64, still time.Duration) time.Duration {
	if rate >= 0 {
		return 0
	}
	// Compared as floats, since what is beyond the Horizon need not fit into a
	// Duration, and may be infinite.
	seconds := float64(headroom) / -rate
	if seconds > Horizon.Seconds() {
		return 0
	}
	return max(time.Duration(seconds*float64(time.Second)), still, 1) // 0 would be never
}

// minus returns a-b, or the nearest that fits into an int64. A limit is not
// negative, but what is available may be.
func minus(a, b int64) int64 {
	switch {
	case b > 0 && a < math.MinInt64+b:
		return math.MinInt64
	case b < 0 && a > math.MaxInt64+b:
		return math.MaxInt64
	default:
		return a - b
	}
}
