package pressure

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// What a change of the thresholds keeps: memory is below 2Gi of 8Gi from the start,
// until it is above everything from 1m on.
func TestChangeOfThresholds(t *testing.T) {
	config := func(memory, reclaim string) Config {
		return Config{
			Soft: entries{"memory.available": memory}, SoftGracePeriod: entries{"memory.available": "30s"},
			MinimumReclaim: entries{"memory.available": reclaim},
		}
	}
	was := config("2Gi", "2Gi")
	const period = 5 * time.Minute
	for _, test := range []struct {
		name   string
		to     Config
		period time.Duration
		at     time.Duration // of the change
		share  float64       // available after it
		after  time.Duration // the snapshot that shows
		want   Verdict
	}{
		{
			"nothing: it is met as before", was, period, 45 * time.Second, 0.2, 50 * time.Second,
			Verdict{Status: True, Since: start, Met: true},
		},
		{
			"nothing: the minimum reclaim of a grace period that is over stays in force", was, period, 45 * time.Second, 0.4, 50 * time.Second,
			Verdict{Status: True, Since: start, Met: true},
		},
		{
			"another minimum reclaim: a new threshold, not met", config("2Gi", "3Gi"), period, 45 * time.Second, 0.4, 50 * time.Second,
			Verdict{Status: True, Since: start, Held: true},
		},
		{
			"a lower threshold: held", config("1Gi", "0"), period, 45 * time.Second, 0.2, 50 * time.Second,
			Verdict{Status: True, Since: start, Held: true},
		},
		{
			"held for the new period", was, 2 * time.Minute, 2 * time.Minute, 0.9, 165 * time.Second,
			Verdict{Status: False, Since: start.Add(165 * time.Second)},
		},
		{
			"and for the old one without", was, period, 2 * time.Minute, 0.9, 165 * time.Second,
			Verdict{Status: True, Since: start, Held: true},
		},
		{
			"no threshold any more",
			Config{Hard: entries{"pid.available": "5%"}},
			period, 45 * time.Second, 0.2, 50 * time.Second,
			Verdict{Status: False, Since: start.Add(50 * time.Second)},
		},
		{
			"a threshold that is met at once", config("6Gi", "0"), period, 4 * time.Second, 0.2, 10 * time.Second,
			Verdict{Status: True, Since: start, Met: true},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := NewEvaluator(mustParse(t, was), period)
			observe := func(at time.Duration, share float64) Verdict {
				s := snapshotAt(start.Add(at), share)
				return e.Observe(&s)[MemoryPressure]
			}
			var at time.Duration
			for ; at < test.at && at <= 40*time.Second; at += 5 * time.Second {
				observe(at, 0.2)
			}
			if test.at > time.Minute {
				observe(time.Minute, 0.9)
			}
			e.Change(mustParse(t, test.to), test.period)
			got := observe(test.after, test.share)
			got.LastMet, got.Threshold, got.Observation, got.Limit = time.Time{}, Threshold{}, probe.Observation{}, 0
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A forecast goes on with what is known about a signal.
func TestChangeOfForecast(t *testing.T) {
	half := Threshold{Signal: probe.MemoryAvailable, Value: Value{Percentage: 0.5}}
	tenth := Threshold{Signal: probe.MemoryAvailable, Value: Value{Percentage: 0.1}}
	pids := Threshold{Signal: probe.PIDAvailable, Value: Value{Percentage: 0.1}}
	f := NewForecaster([]Threshold{half})
	at := start
	share := 0.9
	observe := func() []Estimate {
		at, share = at.Add(time.Second), share-0.001
		s := snapshotAt(at, share)
		return f.Observe(&s)
	}
	for range 200 {
		observe()
	}
	f.Change([]Threshold{pids, tenth, half})
	got := observe()
	if len(got) != 3 || got[0].Threshold != pids || got[1].Threshold != tenth || got[2].Threshold != half {
		t.Fatalf("estimates %+v", got)
	}
	if got[0].OK {
		t.Errorf("a forecast from one look: %+v", got[0])
	}
	for _, e := range got[1:] {
		want := float64(e.Headroom) / (0.001 * float64(8*gi))
		if !e.OK || e.TimeToLimit.Seconds() < 0.8*want || e.TimeToLimit.Seconds() > 1.2*want {
			t.Errorf("%+v, want about %.0f s", e, want)
		}
	}
	f.Change([]Threshold{pids})
	f.Change([]Threshold{half})
	if got := observe(); got[0].OK || got[0].Earliest > 0 {
		t.Errorf("a forecast from before it was not watched: %+v", got[0])
	}
}
