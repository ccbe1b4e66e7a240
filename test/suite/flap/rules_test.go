package flap

import (
	"fmt"
	"testing"
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

// checkPace returns where patches came faster than they may: in any stretch of
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

func at(d time.Duration) time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(d) }

func TestCheckPace(t *testing.T) {
	for _, test := range []struct {
		name  string
		times []time.Duration
		ok    bool
	}{
		{"none", nil, true},
		{"one", []time.Duration{0}, true},
		{"a burst", []time.Duration{0, time.Second, 2 * time.Second}, true},
		{"too close", []time.Duration{0, 300 * time.Millisecond}, false},
		{"folded, and seen a bit late", []time.Duration{50 * time.Millisecond, 520 * time.Millisecond}, true},
		{"a burst of four", []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}, false},
		{"a token came", []time.Duration{0, time.Second, 2 * time.Second, 10 * time.Second}, true},
		{"two, where one token came", []time.Duration{0, time.Second, 2 * time.Second, 10 * time.Second, 11 * time.Second}, false},
		{"too many late on", []time.Duration{0, time.Minute, 61 * time.Second, 62 * time.Second, 63 * time.Second}, false},
	} {
		times := make([]time.Time, len(test.times))
		for i, d := range test.times {
			times[i] = at(d)
		}
		if err := checkPace(times); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func readings(values ...int64) []reading {
	r := make([]reading, len(values))
	for i, v := range values {
		r[i] = reading{at(time.Duration(i) * time.Second), v}
	}
	return r
}

func TestPassages(t *testing.T) {
	for _, test := range []struct {
		values []int64
		want   int
	}{
		{nil, 0},
		{[]int64{30, 15, 10}, 0},
		{[]int64{9, 15, 9, 19}, 1},
		{[]int64{30, 9, 20, 9}, 3},
	} {
		if got := passages(readings(test.values...), 10, 20); got != test.want {
			t.Errorf("%v: %d, want %d", test.values, got, test.want)
		}
	}
}

func TestLongestDenial(t *testing.T) {
	truth := readings(20, 5, 5, 5, 20, 5, 5, 20)
	for _, test := range []struct {
		name string
		said []verdict
		want time.Duration
	}{
		{"never noticed", nil, 2 * time.Second},
		{"noticed after a second", []verdict{{at(2 * time.Second), true}, {at(4 * time.Second), false}}, time.Second},
		{"noticed at once", []verdict{{at(time.Second), true}, {at(4 * time.Second), false}, {at(5 * time.Second), true}}, 0},
		{"ends too early", []verdict{{at(time.Second), true}, {at(2 * time.Second), false}}, time.Second},
		{"always", []verdict{{at(0), true}}, 0},
	} {
		if got := longestDenial(truth, 10, test.said); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
