package status

import (
	"hash/fnv"
	"math"
	"time"
)

// reporter decides when an unchanged status is posted all the same: once in a
// report period, as the kubelet does. After a change, or the first post, the
// next such post comes at a random time between half and one and a half periods
// later, so that nodes which changed together do not post together for ever.
//
// With a phase, those posts come that long after the start of a period by the wall
// clock, whatever happens in between. A period of 0 is never.
type reporter struct {
	period time.Duration
	phased bool
	phase  time.Duration
	last   time.Time // of the latest successful post; zero before the first
	delay  time.Duration
}

// due reports whether the period is over.
func (r *reporter) due(now time.Time) bool { return r.left(now) <= 0 }

// left returns the time until the period is over.
func (r *reporter) left(now time.Time) time.Duration {
	switch {
	case r.last.IsZero():
		return 0
	case r.period == 0:
		return math.MaxInt64
	case r.phased:
		next := r.last.Truncate(r.period).Add(r.phase)
		if !next.After(r.last) {
			next = next.Add(r.period)
		}
		// The wall clock may have been set back.
		return min(next.Sub(now), r.period-now.Sub(r.last))
	}
	return r.period + r.delay - now.Sub(r.last)
}

// posted records a post; random is from 0 up to 1.
func (r *reporter) posted(now time.Time, changed bool, random float64) {
	r.delay = 0
	if changed || r.last.IsZero() {
		r.delay = time.Duration(float64(r.period) * (random - 0.5))
	}
	r.last = now
}

// phaseOf returns when in a period a node posts: nodes are spread evenly by name.
func phaseOf(nodeName string, period time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(nodeName))
	// FNV's last bytes of short names that differ in their last letter are close
	// together; multiplying spreads them.
	spread := h.Sum64() * 0x9e3779b97f4a7c15
	return time.Duration(float64(spread>>11) / (1 << 53) * float64(period))
}

// pacer bounds how fast changes are posted, however fast they come: the first
// goes out at once, what follows within fold of a post waits and goes out as
// one, and a token bucket bounds the long run. Its last token is for what gets worse:
// a condition that ends does not hold up another that begins.
type pacer struct {
	fold   time.Duration
	burst  int
	refill time.Duration // of one token

	tokens int
	filled time.Time // when tokens was right
	last   time.Time // of the latest post
}

func newPacer() pacer {
	return pacer{fold: 500 * time.Millisecond, burst: 3, refill: 10 * time.Second}
}

// wait returns how long a change must still wait at now; 0 means that it may go out. One
// by which nothing gets worse leaves the last token.
func (p *pacer) wait(now time.Time, worse bool) time.Duration {
	if p.last.IsZero() {
		return 0
	}
	p.advance(now)
	wait := p.fold - now.Sub(p.last)
	needed := 2
	if worse {
		needed = 1
	}
	if missing := needed - p.tokens; missing > 0 {
		wait = max(wait, time.Duration(missing)*p.refill-now.Sub(p.filled))
	}
	return max(0, wait)
}

// post takes a token.
func (p *pacer) post(now time.Time) {
	if p.last.IsZero() {
		p.tokens, p.filled = p.burst, now
	}
	p.advance(now)
	if p.tokens == p.burst {
		p.filled = now
	}
	p.tokens = max(0, p.tokens-1)
	p.last = now
}

func (p *pacer) advance(now time.Time) {
	earned := int(now.Sub(p.filled) / p.refill)
	if earned <= 0 {
		return
	}
	p.tokens = min(p.burst, p.tokens+earned)
	p.filled = p.filled.Add(time.Duration(earned) * p.refill)
}
