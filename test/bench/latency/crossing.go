package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// crossing is when a limit was crossed: not before Above, when the kernel was
// asked for the last time and there still was enough, and not after Below, when
// there was not.
type crossing struct{ Above, Below time.Time }

// errForeign says that somebody else on this machine crossed the limit, at a
// time that nobody noted.
var errForeign = errors.New("crossed by somebody else")

// mostSteps bounds a crossing that does not come about.
const mostSteps = 10_000

// cross takes steps until less is available than the limit.
func cross(r pressure.Ramp, limit, step int64) (c crossing, err error) {
	for range mostSteps {
		asked := time.Now()
		available, err := r.Available()
		switch {
		case err != nil:
			return c, err
		case available < limit && c.Above.IsZero():
			return c, errForeign
		case available < limit:
			c.Below = time.Now()
			return c, nil
		}
		c.Above = asked
		if err := r.Take(step); err != nil {
			return c, err
		}
	}
	return c, fmt.Errorf("the limit %d is not crossed after %d steps of %d", limit, mostSteps, step)
}

// approach has r hold so much that what is available lies in the middle of the
// band between low and high, or near it, and says whether it does. Others use
// and give back memory and tasks at the same time, so this may take a few calls.
func approach(r pressure.Ramp, low, high, stride int64) (there bool, err error) {
	available, err := r.Available()
	if err != nil {
		return false, err
	}
	middle := low + (high-low)/2
	switch {
	case available > high:
		return false, r.Take(min(available-middle, stride))
	case available < low:
		return false, r.Give(middle - available)
	}
	return true, nil
}
