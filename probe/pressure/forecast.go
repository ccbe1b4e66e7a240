package pressure

import (
	"math"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Horizon is how far a forecast looks ahead; anything further off is never. Rates are
// averages over a minute at most, so a figure of days only means that there is no
// hurry.
const Horizon = 30 * 24 * time.Hour

// Estimate is when a limit will be reached at the present rate.
//
//	reached     OK, TimeToLimit is 0, Headroom is not positive
//	approached  OK, TimeToLimit is positive
//	never       not OK, Headroom is positive: it does not shrink by more than it
//	            jitters, too slowly for the Horizon, or was not watched for long
//	unknown     not OK, Capacity is 0: the signal cannot be read
type Estimate struct {
	Signal    probe.Signal
	Threshold Threshold
	// Headroom is how much more than the limit is available, in the signal's
	// unit. The limit is Threshold.Value, without the minimum reclaim. At 0 the
	// limit is reached, which the condition is not until it is below.
	Headroom int64
	// Capacity is the signal's, to compare Headroom with.
	Capacity int64
	// Rate is by how much the available amount changes, in units per second:
	// less than 0 while it shrinks, and 0 while it does no more than jitter.
	Rate float64
	// TimeToLimit is Headroom at that Rate, but not less than the time for which
	// nothing has moved: a burst that is over was no promise. It is 0 if and
	// only if the limit is reached (or OK is false).
	TimeToLimit time.Duration
	// OK reports that the limit is reached, or will be within the Horizon.
	OK bool
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
			*e = estimate(e.Threshold, obs, t.rate(s.Time), t.still(s.Time))
		case !t.begun:
			*e = Estimate{Signal: e.Signal, Threshold: e.Threshold}
		}
	}
	return f.estimates
}

// estimate divides what is left by the rate at which it shrinks, given how long it has
// stood still.
func estimate(t Threshold, obs probe.Observation, rate float64, still time.Duration) Estimate {
	e := Estimate{
		Signal: t.Signal, Threshold: t, Capacity: obs.Capacity, Rate: rate,
		Headroom: minus(obs.Available, t.Value.Of(obs.Capacity)),
	}
	switch {
	case e.Headroom <= 0:
		e.OK = true
	case rate < 0:
		// Compared as floats, since what is beyond the Horizon need not fit
		// into a Duration, and may be infinite.
		if seconds := float64(e.Headroom) / -rate; seconds <= Horizon.Seconds() {
			e.OK = true
			// Not 0, which would mean that it has been reached.
			e.TimeToLimit = max(time.Duration(seconds*float64(time.Second)), still, 1)
		}
	}
	return e
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
