package flap

import (
	"testing"
	"time"
)

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
