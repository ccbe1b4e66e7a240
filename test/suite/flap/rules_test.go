package flap

import (
	"fmt"
	"time"
)

// What design and product promise about patches that are due to changes.
const (
	fold   = 500 * time.Millisecond
	burst  = 3
	refill = 10 * time.Second
	// late is by how much the API server may take note of a patch later than it
	// was sent, compared with another one.
	late = 100 * time.Millisecond
)

// mostPatches is how many there may be in a time that begins with one.
func mostPatches(d time.Duration) int { return burst + int(d/refill) }

// checkPace says where patches came faster than they may: in any stretch of
// time, or right after each other.
func checkPace(times []time.Time) error {
	for i := range times {
		for j := i + 1; j < len(times); j++ {
			d := times[j].Sub(times[i]) + late
			if n, most := j-i+1, mostPatches(d); n > most {
				return fmt.Errorf("%d patches within %s, at most %d may be", n, d, most)
			}
		}
		if i > 0 && times[i].Sub(times[i-1]) < fold-late {
			return fmt.Errorf("a patch %s after another", times[i].Sub(times[i-1]))
		}
	}
	return nil
}

// reading is a value as it was.
type reading struct {
	at    time.Time
	value int64
}

// passages counts how often the value went from above the band to below it, and
// back, as far as the readings show.
func passages(truth []reading, below, above int64) (n int) {
	under := false
	for _, r := range truth {
		if under && r.value >= above || !under && r.value < below {
			under = !under
			n++
		}
	}
	return n
}

// verdict is what nodeprobe said, from a time on.
type verdict struct {
	at      time.Time
	pressed bool
}

// longestDenial returns for how long at most nodeprobe said that all is well
// while the value was below the limit all the time.
func longestDenial(truth []reading, limit int64, said []verdict) (longest time.Duration) {
	var since time.Time // of both; zero while not
	pressed, next := false, 0
	for _, r := range truth {
		for next < len(said) && !said[next].at.After(r.at) {
			if pressed = said[next].pressed; pressed {
				since = time.Time{}
			}
			next++
		}
		switch {
		case pressed || r.value >= limit:
			since = time.Time{}
		case since.IsZero():
			since = r.at
		default:
			longest = max(longest, r.at.Sub(since))
		}
	}
	return longest
}
