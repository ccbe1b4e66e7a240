package pressure

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// FuzzForecast decodes its input to a sequence of snapshots of one signal, and
// checks what must hold for every sequence.
func FuzzForecast(f *testing.F) {
	f.Add([]byte("\x0a\x80\x0a\x70\x0a\x60\x0a\x50\x0a\x40\x0a\x30\x0a\x20\x0a\x10"))
	f.Add([]byte("\x01\xff\x01\x01\x01\x00\x81\x40\xc0\x30\x41\x40\x42\x20\x0a\x80\xff\x40"))
	f.Add([]byte("\x0a\x80\x0a\x78\xfe\x01\x02\x03\x04\x05\x06\x07\x08\xff\x0a\x70\xfd\x01\x02\x03\x04\x05\x06\x07\x08\x10"))
	f.Add([]byte("\xfc\x7f\xff\xff\xff\xff\xff\xff\xff\x0a\x80\xfc\x80\x00\x00\x00\x00\x00\x00\x00\x0a\x20"))
	// The same signal with limits that lie one above the other, each leaving at
	// least twice the headroom of the next in most of the levels that a byte can
	// reach; and some that no level is far from.
	var thresholds []Threshold
	for _, q := range []int64{1000, 800, 400, 10, 1, 0, math.MaxInt64} {
		thresholds = append(thresholds, Threshold{Signal: probe.NodeFsAvailable, Value: Value{Quantity: q}})
	}
	thresholds = append(thresholds, Threshold{Signal: probe.NodeFsAvailable, Value: Value{Percentage: 0.3}})
	f.Fuzz(func(t *testing.T, data []byte) {
		once, again := NewForecaster(thresholds), NewForecaster(thresholds)
		var interval time.Duration
		for i, s := range decodeForecast(data) {
			estimates := once.Observe(&s)
			if second := again.Observe(&s); !slices.Equal(estimates, second) {
				t.Fatalf("snapshot %d, once and again:\n%s", i, cmp.Diff(estimates, second))
			}
			for k := range estimates {
				checkEstimate(t, &estimates[k], thresholds[k], s.Signals[probe.NodeFsAvailable])
				for j := range estimates {
					checkMonotone(t, &estimates[k], &estimates[j])
				}
			}
			before := interval
			interval = NextSample(estimates, before, Pace{})
			if interval < 100*time.Millisecond || interval > 10*time.Second || before > 0 && interval > 2*before {
				t.Fatalf("snapshot %d: next sample in %v after %v", i, interval, before)
			}
		}
	})
}

// decodeForecast takes, per snapshot, one byte for the time that has passed and
// one for the level, in steps of 10 of a capacity of 2550. Bytes near the end of
// the range mean what is rare: jumps of the clock, other capacities, absence, and
// levels of 8 bytes.
func decodeForecast(data []byte) []probe.Snapshot {
	var (
		snapshots []probe.Snapshot
		now       = start
		capacity  = int64(2550)
	)
	for len(data) >= 2 {
		step, level := data[0], data[1]
		data = data[2:]
		obs := probe.Observation{Available: 10 * int64(level), Capacity: capacity, OK: true}
		switch {
		case step < 0x40:
			now = now.Add(time.Duration(step) * time.Second)
		case step < 0x80:
			now = now.Add(time.Duration(step-0x40) * 10 * time.Millisecond)
		case step < 0xc0:
			now = now.Add(time.Duration(step-0x80) * time.Nanosecond)
		case step < 0xf0:
			now = now.Add(-time.Duration(step-0xc0) * time.Minute)
		case step == 0xff:
			obs = probe.Observation{Err: errAbsent}
		case step == 0xfe:
			obs = probe.Observation{}
		case step == 0xfd:
			now = now.Add(8 * time.Hour)
		case len(data) >= 8:
			n := int64(binary.BigEndian.Uint64(data))
			data = data[8:]
			now = now.Add(time.Second)
			if step == 0xfc {
				obs.Available = n
			} else {
				capacity = n
				obs.Capacity = n
			}
		}
		s := probe.Snapshot{Time: now}
		s.Signals[probe.NodeFsAvailable] = obs
		snapshots = append(snapshots, s)
	}
	return snapshots
}

func checkEstimate(t *testing.T, e *Estimate, threshold Threshold, obs probe.Observation) {
	t.Helper()
	limit := threshold.Value.Of(obs.Capacity)
	switch {
	case e.Threshold != threshold || e.Signal != threshold.Signal:
		t.Fatalf("%v in the place of %v", e.Threshold, threshold)
	case math.IsNaN(e.Rate) || math.IsInf(e.Rate, 0):
		t.Fatalf("rate %v", e.Rate)
	case e.TimeToLimit < 0 || e.TimeToLimit > Horizon:
		t.Fatalf("%v to the limit", e.TimeToLimit)
	case !e.OK && (e.TimeToLimit != 0 || e.Headroom < 0):
		t.Fatalf("not OK, but %v and %d", e.TimeToLimit, e.Headroom)
	case e.OK && (e.TimeToLimit == 0) != (e.Headroom <= 0):
		t.Fatalf("%v to a limit that is %d away", e.TimeToLimit, e.Headroom)
	case e.Earliest < 0 || e.Earliest > Horizon || e.Earliest > 0 && e.Headroom <= 0:
		t.Fatalf("%v to the limit at the earliest, %d above", e.Earliest, e.Headroom)
	case e.TimeToLimit > 0 && (e.Earliest == 0 || e.Earliest > e.TimeToLimit):
		t.Fatalf("%v to the limit, %v at the earliest", e.TimeToLimit, e.Earliest)
	case e.Earliest > 0 && e.TimeToLimit == 0 && e.Rate >= 0:
		t.Fatalf("%v to the limit at the earliest, at a rate of %v", e.Earliest, e.Rate)
	case obs.OK && (e.Headroom > 0) != (obs.Available > limit):
		t.Fatalf("%d above %d is %d", obs.Available, limit, e.Headroom)
	case !obs.OK && obs.Err == nil && *e != Estimate{Signal: e.Signal, Threshold: threshold}:
		t.Fatalf("there is nothing to estimate: %+v", e)
	}
}

// checkMonotone compares two limits on one signal: what has more headroom takes
// no less time, and is not reached sooner if the other never is.
func checkMonotone(t *testing.T, near, far *Estimate) {
	t.Helper()
	if near.Headroom > far.Headroom || near.Capacity != far.Capacity {
		return
	}
	if near.Rate != far.Rate {
		t.Fatalf("one signal, two rates: %v and %v", near.Rate, far.Rate)
	}
	if far.OK && (!near.OK || near.TimeToLimit > far.TimeToLimit) {
		t.Fatalf("%d takes %v, %d takes %v", near.Headroom, near.TimeToLimit, far.Headroom, far.TimeToLimit)
	}
	if far.Earliest > 0 && near.Headroom > 0 && (near.Earliest == 0 || near.Earliest > far.Earliest) {
		t.Fatalf("%d takes %v at the earliest, %d takes %v", near.Headroom, near.Earliest, far.Headroom, far.Earliest)
	}
}

// FuzzNextSample gives it estimates that no forecaster makes.
func FuzzNextSample(f *testing.F) {
	f.Add(uint8(0), gi, 8*gi, int64(time.Second), true, int64(time.Second))
	f.Add(uint8(8), int64(math.MinInt64), int64(1), int64(0), true, int64(math.MaxInt64))
	f.Add(uint8(3), int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt64), false, int64(-1))
	f.Fuzz(func(t *testing.T, signal uint8, headroom, capacity, ttl int64, ok bool, before int64) {
		e := Estimate{
			Signal: probe.Signal(signal % uint8(probe.NumSignals)), Headroom: headroom, Capacity: capacity,
			Earliest: time.Duration(ttl), OK: ok,
		}
		got := NextSample([]Estimate{e}, time.Duration(before), Pace{})
		if got < 100*time.Millisecond || got > 10*time.Second {
			t.Fatalf("next sample in %v", got)
		}
		if others := NextSample([]Estimate{{}, e}, time.Duration(before), Pace{}); others != got {
			t.Fatalf("in %v, but in %v if another signal is unknown", got, others)
		}
		if headroom > 0 && headroom < math.MaxInt64/2 && ttl > 0 && ttl < math.MaxInt64/2 {
			e.Headroom, e.Earliest = 2*headroom, 2*e.Earliest
			if more := NextSample([]Estimate{e}, time.Duration(before), Pace{}); more < got {
				t.Fatalf("in %v with twice the headroom, in %v without", more, got)
			}
		}
	})
}
