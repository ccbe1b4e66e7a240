package pressure

import (
	"math"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

func TestNextSample(t *testing.T) {
	const (
		ms = time.Millisecond
		s  = time.Second
	)
	memory := func(headroom int64) Estimate {
		return Estimate{Signal: probe.MemoryAvailable, Capacity: 8 * gi, Headroom: headroom, OK: headroom <= 0}
	}
	in := func(e Estimate, d time.Duration) Estimate {
		e.Earliest = d
		return e
	}
	of := func(signal probe.Signal, capacity, headroom int64) Estimate {
		return Estimate{Signal: signal, Capacity: capacity, Headroom: headroom}
	}
	fast := Pace{Floor: 10 * ms, Ceiling: 200 * ms, Base: 5 * s}
	for _, test := range []struct {
		name      string
		estimates []Estimate
		before    time.Duration
		pace      Pace
		want      time.Duration
	}{
		{"no limits", nil, 10 * s, Pace{}, 10 * s},
		{"no limits, at first", nil, 0, Pace{}, s},
		{"nothing known", []Estimate{{}}, 10 * s, Pace{}, 10 * s},
		{"nothing known, at first", []Estimate{{}}, 0, Pace{}, s},

		{"half of it left", []Estimate{memory(4 * gi)}, 10 * s, Pace{}, 10 * s},
		{"a quarter left", []Estimate{memory(2 * gi)}, 10 * s, Pace{}, 5 * s},
		{"5 % left", []Estimate{memory(8 * gi / 20)}, 10 * s, Pace{}, s},
		{"almost nothing left", []Estimate{memory(mi)}, 10 * s, Pace{}, s},
		{"just reached", []Estimate{memory(0)}, 10 * s, Pace{}, s},
		{"far beyond", []Estimate{memory(-4 * gi)}, 10 * s, Pace{}, 10 * s},
		{"the nearest counts", []Estimate{memory(4 * gi), memory(2 * gi), memory(-3 * gi)}, 10 * s, Pace{}, 5 * s},
		{"a big disk", []Estimate{of(probe.NodeFsAvailable, 1<<40, 20*gi)}, 10 * s, Pace{}, 10 * s},
		{"less of it", []Estimate{of(probe.NodeFsAvailable, 1<<40, 4*gi)}, 10 * s, Pace{}, 2 * s},
		{"few PIDs", []Estimate{of(probe.PIDAvailable, 32768, 16384)}, 10 * s, Pace{}, 10 * s},
		{"many PIDs", []Estimate{of(probe.PIDAvailable, 1<<22, 10000)}, 10 * s, Pace{}, 2 * s},
		{"many inodes", []Estimate{of(probe.NodeFsInodesFree, 1<<26, 40000)}, 10 * s, Pace{}, 2 * s},

		{"an hour away", []Estimate{in(memory(6*gi), time.Hour)}, 10 * s, Pace{}, 10 * s},
		{"a minute away", []Estimate{in(memory(6*gi), 64*s)}, 10 * s, Pace{}, 4 * s},
		{"10 s away", []Estimate{in(memory(6*gi), 10*s)}, 10 * s, Pace{}, 625 * ms},
		{"a second away", []Estimate{in(memory(6*gi), s)}, 10 * s, Pace{}, 100 * ms},
		{"almost there", []Estimate{in(memory(1), 1)}, 10 * s, Pace{}, 100 * ms},
		{"soon, at first", []Estimate{in(memory(6*gi), 10*s)}, 0, Pace{}, 625 * ms},

		{"grows by doubling", []Estimate{memory(4 * gi)}, 100 * ms, Pace{}, 200 * ms},
		{"grows no further", []Estimate{memory(2 * gi)}, 4 * s, Pace{}, 5 * s},
		{"grows from nonsense", []Estimate{memory(4 * gi)}, 1, Pace{}, 100 * ms},
		{"comes down from nonsense", []Estimate{memory(4 * gi)}, math.MaxInt64, Pace{}, 10 * s},

		{"another floor", []Estimate{in(memory(6*gi), 1)}, 5 * s, fast, 10 * ms},
		{"another ceiling", []Estimate{memory(1)}, 5 * s, fast, 200 * ms},
		{"another base", []Estimate{memory(4 * gi)}, 5 * s, fast, 5 * s},
		{"a base below the rest", []Estimate{in(memory(6*gi), 1)}, 0, Pace{Base: 50 * ms}, 50 * ms},
		{"a ceiling above the base", []Estimate{memory(1)}, 10 * s, Pace{Ceiling: time.Minute}, 10 * s},
		{"a floor above the ceiling", []Estimate{in(memory(6*gi), 1)}, 10 * s, Pace{Floor: time.Minute}, s},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := NextSample(test.estimates, test.before, test.pace); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// A forecast that comes with every other sample does not make the interval swing
// between its extremes, and the way back takes seconds.
func TestNextSampleDoesNotFlap(t *testing.T) {
	quiet := []Estimate{{Signal: probe.MemoryAvailable, Capacity: 8 * gi, Headroom: 6 * gi}}
	alarm := []Estimate{{Signal: probe.MemoryAvailable, Capacity: 8 * gi, Headroom: 6 * gi, Earliest: time.Second}}
	interval := NextSample(alarm, 10*time.Second, Pace{})
	for i := range 10 {
		if interval = NextSample(quiet, interval, Pace{}); interval != 200*time.Millisecond {
			t.Fatalf("turn %d: %v when it is quiet", i, interval)
		}
		if interval = NextSample(alarm, interval, Pace{}); interval != 100*time.Millisecond {
			t.Fatalf("turn %d: %v when it is not", i, interval)
		}
	}
	var passed time.Duration
	samples := 0
	for ; interval < 10*time.Second; samples++ {
		interval = NextSample(quiet, interval, Pace{})
		passed += interval
	}
	if samples != 7 || passed > 25*time.Second {
		t.Errorf("back to the base after %d samples in %v", samples, passed)
	}
}
