package pressure

import (
	"math"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// load is what is available of a signal, by the seconds since the start.
type load func(seconds float64) float64

// fill has so much until begin, and loses so much per second from then on.
func fill(level, begin, rate float64) load {
	return func(s float64) float64 { return level - rate*max(0, s-begin) }
}

// until stops at a level.
func (l load) until(level float64) load {
	return func(s float64) float64 { return max(level, l(s)) }
}

// simulation is a load on a signal, and what must come of it. Bounds hold for
// every phase of the sampler against the load.
type simulation struct {
	name            string
	signal          probe.Signal
	capacity, limit int64
	load            load
	jitter          float64 // the deviation of normal noise on top
	length          time.Duration

	// delay is from the crossing (of the load without its jitter) to the sample
	// that shows it; negative where nothing is ever crossed.
	delay time.Duration
	// warning is for how long, up to the crossing, every sample has forecast it within
	// 10 minutes.
	warning time.Duration
	// samples are all samples up to the crossing or the end of the simulation,
	// alarms those that forecast the limit within 10 minutes.
	samples, alarms int
}

const (
	mib = float64(mi)
	gib = float64(gi)
)

// The loads begin at 5 min, when the sampler has gone to sleep. The node has 8 GiB
// of memory, 64 GiB if it is called big, 100 GiB of disk and 32768 PIDs; 5 % of
// the capacity per second are 410 MiB of memory, 5 GiB of disk, 1638 PIDs.
func simulations() []simulation {
	const begin = 300
	memory := simulation{signal: probe.MemoryAvailable, capacity: 8 * gi, limit: 100 * mi, jitter: 5 * mib, length: 30 * time.Minute}
	big := memory
	big.capacity = 64 * gi
	disk := simulation{signal: probe.NodeFsAvailable, capacity: 100 * gi, limit: 10 * gi, length: 30 * time.Minute}
	pids := simulation{signal: probe.PIDAvailable, capacity: 32768, limit: 1638, jitter: 5, length: 30 * time.Minute}
	sawtooth := func(bottom float64) load {
		return func(s float64) float64 { return bottom + gib - 50*mib*math.Mod(s, 20) }
	}
	staircase := func(s float64) float64 { return 20*gib - 300*mib*math.Floor(s/30) }
	bomb := func(s float64) float64 { return 32000 - math.Pow(1.5, max(0, s-begin)) }
	leakySawtooth := func(s float64) float64 { return sawtooth(3*gib)(s) - 4*mib*s }

	crosses := func(s simulation, name string, l load, delay, warning time.Duration, samples int) simulation {
		s.name, s.load, s.delay, s.warning, s.samples, s.alarms = name, l, delay, warning, samples, math.MaxInt
		return s
	}
	stays := func(s simulation, name string, l load, samples, alarms int) simulation {
		s.name, s.load, s.delay, s.samples, s.alarms = name, l, -1, samples, alarms
		return s
	}
	const ms = time.Millisecond
	return []simulation{
		// Nothing happens: one sample per 10 s while half is free, one per second
		// just above the limit.
		stays(memory, "idle, 5 GiB above", fill(5*gib, 0, 0), 190, 0),
		stays(memory, "idle, 1 GiB above", fill(1.1*gib, 0, 0), 800, 0),
		stays(memory, "idle, 100 MiB above", fill(200*mib, 0, 0), 1830, 0),
		stays(memory, "idle, 40 MiB above", fill(140*mib, 0, 0), 1830, 0),
		stays(pids, "idle PIDs", fill(32000, 0, 0), 190, 0),

		// What no surprise is faster than.
		crosses(memory, "leak of 1 MiB/s", fill(1.1*gib, begin, mib), 500*ms, 400*time.Second, 1000),
		crosses(memory, "fill of 10 MiB/s", fill(5*gib, begin, 10*mib), 500*ms, 380*time.Second, 250),
		crosses(memory, "fill of 100 MiB/s", fill(5*gib, begin, 100*mib), 200*ms, 30*time.Second, 120),
		crosses(memory, "fill of 400 MiB/s", fill(5*gib, begin, 400*mib), 200*ms, 1500*ms, 90),
		crosses(memory, "fill of 400 MiB/s, 1 GiB above", fill(1.1*gib, begin, 400*mib), 200*ms, 0, 200),
		crosses(big, "big: fill of 2 GiB/s", fill(32*gib, begin, 2*gib), 200*ms, 4*time.Second, 90),
		crosses(disk, "disk: fill of 500 MiB/s", fill(30*gib, begin, 500*mib), 200*ms, 23*time.Second, 110),
		crosses(pids, "1000 forks/s", fill(32000, begin, 1000), 200*ms, 15*time.Second, 110),
		crosses(disk, "disk: 300 MiB every 30 s", staircase, 2*time.Second, 400*time.Second, 650),
		crosses(memory, "sawtooth of 1 GiB/20 s and 4 MiB/s", leakySawtooth, 200*ms, 0, 600),

		// What is faster, out of the blue, is seen late, but within Base.
		crosses(memory, "fill of 1 GiB/s", fill(5*gib, begin, gib), 6*time.Second, 0, 80),
		crosses(memory, "fill of 8 GiB/s", fill(5*gib, begin, 8*gib), 9500*ms, 0, 50),
		crosses(memory, "fill of 8 GiB/s, 1 GiB above", fill(1.1*gib, begin, 8*gib), 2500*ms, 0, 200),
		crosses(memory, "fill of 8 GiB/s, 100 MiB above", fill(200*mib, begin, 8*gib), time.Second, 0, 400),
		crosses(pids, "fork bomb, x1.5 per second", bomb, 4*time.Second, 0, 80),

		// What looks like a fill but is none.
		stays(memory, "burst, stops 1 GiB above", fill(5*gib, begin, 400*mib).until(1.1*gib), 800, 40),
		stays(memory, "burst, stops 40 MiB above", fill(5*gib, begin, 400*mib).until(140*mib), 2000, 80),
		stays(memory, "sawtooth, far", sawtooth(3*gib), 300, 5),
		stays(memory, "sawtooth, near", sawtooth(0.2*gib), 3600, 80),
	}
}

func TestSimulations(t *testing.T) {
	const phases = 20
	for _, s := range simulations() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			delay, warning, samples, alarms := time.Duration(math.MinInt64), s.length, 0, 0
			crossing := s.crossing()
			for phase := range phases {
				r := s.run(t, time.Duration(phase)*10*time.Second/phases, crossing)
				delay, warning = max(delay, r.delay), min(warning, r.warning)
				samples, alarms = max(samples, r.samples), max(alarms, r.alarms)
			}
			t.Logf("delay %v, warning %v, %d samples, %d alarms",
				delay.Round(time.Millisecond), warning.Round(100*time.Millisecond), samples, alarms)
			switch {
			case s.delay < 0 && delay != -1:
				t.Error("a limit was seen reached that was not")
			case s.delay >= 0 && delay < 0:
				t.Error("the crossing was never seen")
			case s.delay >= 0 && delay > s.delay:
				t.Errorf("the crossing was seen up to %v late, want %v", delay, s.delay)
			case s.delay >= 0 && warning < s.warning:
				t.Errorf("warned %v before, want %v", warning, s.warning)
			case samples > s.samples:
				t.Errorf("%d samples, want %d", samples, s.samples)
			case alarms > s.alarms:
				t.Errorf("%d alarms, want %d", alarms, s.alarms)
			}
		})
	}
}

// crossing returns when the load without its jitter is below the limit.
func (s *simulation) crossing() time.Duration {
	for now := time.Duration(0); s.delay >= 0 && now < s.length; now += 10 * time.Millisecond {
		if s.load(now.Seconds()) < float64(s.limit) {
			return now
		}
	}
	return s.length
}

// run samples the load when NextSample says so, from phase on, and returns what
// came of it.
func (s *simulation) run(t *testing.T, phase, crossing time.Duration) simulation {
	f := NewForecaster([]Threshold{{Signal: s.signal, Value: Value{Quantity: s.limit}}})
	got := simulation{delay: -1}
	var interval time.Duration
	warned := time.Duration(-1)
	for now := phase; now < s.length; now += interval {
		available := int64(s.load(now.Seconds()) + s.jitter*normal(now.Seconds()))
		snapshot := probe.Snapshot{Time: start.Add(now)}
		snapshot.Signals[s.signal] = probe.Observation{Available: available, Capacity: s.capacity, OK: true}
		estimates := f.Observe(&snapshot)
		got.samples++
		if available < s.limit {
			// The jitter may take it over the limit first.
			got.delay = max(0, now-crossing)
			break
		}
		if e := &estimates[0]; !e.OK || e.TimeToLimit > 10*time.Minute {
			warned = -1
		} else {
			got.alarms++
			if warned < 0 {
				warned = now
			}
		}
		interval = NextSample(estimates, interval, Pace{})
		if interval < 100*time.Millisecond || interval > 10*time.Second {
			t.Fatalf("at %v: next sample in %v", now, interval)
		}
	}
	if warned >= 0 {
		got.warning = max(0, crossing-warned)
	}
	return got
}

// normal returns noise of deviation 1 that is the same whenever one looks at the
// same time, and nothing like it 10 ms later.
func normal(seconds float64) float64 {
	i := 2 * int(seconds*100)
	u, v := (stray(i)+1)/2, stray(i+1)
	return math.Sqrt(-2*math.Log(max(u, 1e-12))) * math.Cos(math.Pi*v)
}
