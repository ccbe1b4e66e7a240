package pressure

import (
	"math"
	"time"
)

const (
	// minSamples is the least number of samples that make a line. The kernel watches
	// most limits, so that samples come every 10 s: 50 s of a fill.
	minSamples = 5

	// explained is the share of the variance of its samples that a line must explain to
	// be a trend. A step explains at most three quarters of its own.
	explained = 0.9

	// reach is for how many times its own length a line is good: a fill must have taken a
	// quarter of what is left. It is the measure of the alerts on node_exporter that are in
	// common use, which look 24 h ahead from what they saw in 6 h. What a calm machine
	// does is never as much.
	reach = 4

	// usual is how many times what the signal gives back now and then a fill must have
	// taken to be none of these.
	usual = 2

	// memorySeconds is how long that is remembered, and what a line is made of: what was
	// before fades. So a line covers three and a half hours at most.
	memorySeconds = 3600

	// stillShare is the share of its length for which a line outlives the last sample that
	// moved along it.
	stillShare = 1.0 / 4

	// settledSeconds is how long a signal must be off the line to be on another one. A
	// filesystem that accounts in steps, two a minute, comes back.
	settledSeconds = 60

	// strays is how many standard deviations off the line a sample is still on it.
	strays = 3
)

// line is the straight line that explains samples best, each weighted by the seconds that
// it stands for: least squares, updated by West's method, which needs no samples and loses
// no digits.
type line struct {
	n                        int
	weight                   float64
	time, level              float64 // weighted means
	timeSq, product, levelSq float64 // weighted sums of squares about the means
}

func (l *line) add(time, level, seconds float64) {
	l.n++
	kept := math.Exp(-seconds / memorySeconds)
	l.weight, l.timeSq, l.product, l.levelSq = kept*l.weight, kept*l.timeSq, kept*l.product, kept*l.levelSq
	l.weight += seconds
	share := seconds / l.weight
	dt, dl := time-l.time, level-l.level
	l.time += share * dt
	l.level += share * dl
	rest := seconds * (1 - share)
	l.timeSq += rest * dt * dt
	l.product += rest * dt * dl
	l.levelSq += rest * dl * dl
}

// slope returns the change per second; 0 of less than two samples.
func (l *line) slope() float64 {
	if l.timeSq == 0 {
		return 0
	}
	return l.product / l.timeSq
}

// at returns where the line is at a time.
func (l *line) at(time float64) float64 { return l.level + l.slope()*(time-l.time) }

// left returns the sum of squares that the line does not explain.
func (l *line) left() float64 { return max(0, l.levelSq-l.slope()*l.product) }

// deviation returns how far samples are from the line.
func (l *line) deviation() float64 {
	if l.weight == 0 {
		return 0
	}
	return math.Sqrt(l.left() / l.weight)
}

// has reports whether a sample is on the line, or strays from it by as much as others.
func (l *line) has(time, level, jitter float64) bool {
	return math.Abs(level-l.at(time)) <= max(jitter, strays*l.deviation())
}

// length returns the seconds that the line covers.
func (l *line) length() float64 {
	if l.weight == 0 {
		return 0
	}
	return math.Sqrt(12 * l.timeSq / l.weight) // the variance of a uniform distribution
}

// course follows one signal along straight lines: the one on which it has been, and once it
// is off that, the next.
type course struct {
	age       float64 // seconds since the beginning, not counting what a clock was set back
	now, next line
	// low is the lowest level lately, and rebound by how much the signal rose from it:
	// what it gives back now and then, such as garbage.
	low, rebound float64
}

func newCourse(level float64) course {
	c := course{low: level}
	c.now.add(0, level, 1)
	return c
}

// follow takes one sample into account. The jitter is how far samples stray without
// having moved.
func (c *course) follow(seconds, level, jitter float64) {
	c.age += seconds
	faded := -math.Expm1(-seconds / memorySeconds)
	c.low = min(level, c.low+faded*(level-c.low))
	c.rebound = max((1-faded)*c.rebound, level-c.low)
	left := c.next.n >= minSamples && c.next.has(c.age, level, jitter) // it may only cross the other
	if !left && (c.now.n < minSamples || c.now.has(c.age, level, jitter)) {
		c.now.add(c.age, level, seconds)
		c.next = line{}
		return
	}
	c.next.add(c.age, level, seconds)
	if c.next.n >= minSamples && c.next.length() >= settledSeconds {
		c.now, c.next = c.next, line{}
	}
}

// evidence is what speaks for a forecast; its rate is 0 if nothing does.
type evidence struct {
	rate  float64 // per second, less than 0
	taken float64 // since the line began
	usual float64 // what must have been taken to be unusual
}

// evidence returns what the present line shows, given for how long the signal has not
// shrunk.
func (c *course) evidence(still time.Duration) evidence {
	l := &c.now
	if c.next.n >= minSamples {
		l = &c.next // it is off the other for good, or for as long as a forecast may be silent
	}
	slope, length := l.slope(), l.length()
	if l.n < minSamples || slope >= 0 || l.left() > (1-explained)*l.levelSq || still.Seconds() > stillShare*length {
		return evidence{}
	}
	return evidence{rate: slope, taken: -slope * length, usual: usual * c.rebound}
}

// enough reports whether so much headroom may be forecast to be used up. Where a fill has
// taken more than it has left, it does not matter what is usual.
func (v evidence) enough(headroom float64) bool {
	return v.rate < 0 && v.taken >= min(headroom, max(headroom/reach, v.usual))
}
