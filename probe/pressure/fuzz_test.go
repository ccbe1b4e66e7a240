package pressure

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Whatever is in a configuration, it is an error or a value, and a value reads
// back as itself.
func FuzzParseValue(f *testing.F) {
	for _, seed := range []string{
		"100Mi", "10%", "0%", "100%", "0.0%", "100.0%", "25.5%", "-15%", "110%", "NaN%", "Inf%", "10..5%", "%", "5%%",
		"", "0", "-150Mi", "1.5Gi", "0.5", "-0.5", "1e20", "1e-20", "8Ei", "1e999", "1e-999999999", "9223372036854775808", "1 Gi", "0x1p-3%",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, keep, err := parseThreshold(probe.MemoryAvailable, text)
		if err != nil && (keep || v != Value{}) {
			t.Fatalf("%q: both %v and %v", text, v, err)
		}
		if err == nil && !keep && text != "0%" && text != "100%" {
			t.Fatalf("%q: dropped", text)
		}
		if v.Quantity < 0 || v.Percentage < 0 || v.Percentage > 1 || v.Quantity != 0 && v.Percentage != 0 {
			t.Fatalf("%q: %#v is no threshold", text, v)
		}
		// Not by parseThreshold, which has its own view of 0 and 100%.
		if err == nil {
			readsBack(t, text, v)
		}
		v, err = parseReclaim(probe.MemoryAvailable, text)
		if err != nil && (v != Value{}) {
			t.Fatalf("%q: both %v and %v", text, v, err)
		}
		if err == nil {
			readsBack(t, text, v)
		}
	})
}

func readsBack(t *testing.T, text string, v Value) {
	t.Helper()
	if back, err := parseReclaim(probe.MemoryAvailable, v.String()); err != nil || back != v {
		t.Fatalf("%q is %#v, which prints as %q and reads as %#v, %v", text, v, v.String(), back, err)
	}
}

// FuzzObserve decodes its input to a transition period and a sequence of
// snapshots, and checks what must hold for every sequence. Run it with
// -fuzzminimizetime=10x, or it will do little but shorten what it has found.
func FuzzObserve(f *testing.F) {
	f.Add([]byte{30, 10, 50, 50, 50, 50, 50, 50, 10, 200, 200, 200, 200, 200, 200, 40, 200, 200, 200, 200, 200, 200})
	f.Add([]byte{30, 10, 23, 50, 0, 50, 22, 1, 10, 0, 0, 0, 0, 0, 0, 250, 60, 60, 60, 60, 60, 60, 90, 1, 1, 1, 1, 1, 1})
	f.Add([]byte{0, 10, 10, 10, 10, 10, 10, 10, 10, 200, 200, 200, 200, 200, 200, 0, 255, 255, 255, 255, 255, 255})
	f.Add([]byte{60, 10, 40, 200, 40, 200, 200, 200, 70, 60, 200, 60, 200, 200, 200, 10, 64, 200, 64, 200, 200, 200})
	thresholds := mustParse(f, fuzzConfig)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		period := time.Duration(data[0]) * time.Second
		snapshots := decodeSnapshots(data[1:])
		checkInvariants(t, thresholds, period, snapshots)
		checkSameAgain(t, thresholds, period, snapshots)
		checkIndependence(t, thresholds, period, snapshots)
		checkAgainstKubelet(t, thresholds, period, snapshots)
	})
}

// fuzzConfig has thresholds that lie close together, so that a byte can reach
// each of them.
var fuzzConfig = Config{
	Hard: entries{
		"memory.available": "100", "nodefs.available": "10%", "nodefs.inodesFree": "50",
		"imagefs.available": "15%", "pid.available": "5%",
	},
	Soft:                   entries{"memory.available": "200", "nodefs.available": "20%"},
	SoftGracePeriod:        entries{"memory.available": "1m", "nodefs.available": "20s"},
	MinimumReclaim:         entries{"memory.available": "5%", "nodefs.available": "50"},
	EnforceNodeAllocatable: []string{"pods"},
}

var fuzzSignals = []probe.Signal{
	probe.MemoryAvailable, probe.AllocatableMemoryAvailable, probe.NodeFsAvailable,
	probe.NodeFsInodesFree, probe.ImageFsAvailable, probe.PIDAvailable,
}

// decodeSnapshots takes, per snapshot, one byte for the time that has passed
// (more than 239 s: it is set back) and one for each signal.
func decodeSnapshots(data []byte) []probe.Snapshot {
	var snapshots []probe.Snapshot
	now := start
	for ; len(data) > len(fuzzSignals); data = data[1+len(fuzzSignals):] {
		step := time.Duration(data[0]) * time.Second
		if data[0] >= 240 {
			step = -time.Duration(data[0]-239) * time.Minute
		}
		now = now.Add(step)
		s := probe.Snapshot{Time: now}
		for i, signal := range fuzzSignals {
			switch b := data[1+i]; b {
			case 0:
				s.Signals[signal] = probe.Observation{Err: errAbsent}
			case 1:
			default:
				s.Signals[signal] = probe.Observation{Available: 5 * (int64(b) - 20), Capacity: 1000, OK: true}
			}
		}
		snapshots = append(snapshots, s)
	}
	return snapshots
}

func checkInvariants(t *testing.T, thresholds []Threshold, period time.Duration, snapshots []probe.Snapshot) {
	e := NewEvaluator(thresholds, period)
	var (
		before  [NumConditions]Status
		lastMet [NumConditions]time.Time
	)
	for i, s := range snapshots {
		for c, v := range e.Observe(&s) {
			met, absent := lookAt(thresholds, Condition(c), &s)
			if met || v.Met || lastMet[c].After(s.Time) {
				lastMet[c] = s.Time
			}
			switch {
			case v.Condition != Condition(c):
				t.Fatalf("snapshot %d: %v in the place of %v", i, v.Condition, Condition(c))
			case met && v.Status != True:
				t.Fatalf("snapshot %d: %v is %v while a threshold is met", i, v.Condition, v.Status)
			case v.Met && v.Observation.Available >= v.Limit:
				t.Fatalf("snapshot %d: %v is met by %d, which is not below %d", i, v.Condition, v.Observation.Available, v.Limit)
			case v.Met && v.Observation != s.Signals[v.Threshold.Signal]:
				t.Fatalf("snapshot %d: %v is met by %v, which was not observed", i, v.Condition, v.Observation)
			case v.Status == True && !v.Met && !v.Held && !v.Frozen:
				t.Fatalf("snapshot %d: %v is True for no reason", i, v.Condition)
			case v.Held && (v.Status != True || s.Time.Sub(lastMet[c]) >= period || !v.LastMet.Equal(lastMet[c])):
				t.Fatalf("snapshot %d: %v is held since %v, last met %v", i, v.Condition, v.LastMet, lastMet[c])
			case v.Frozen != (absent && !v.Met):
				t.Fatalf("snapshot %d: %v frozen: %v, absent: %v", i, v.Condition, v.Frozen, absent)
			case v.Frozen && v.Status != before[c]:
				t.Fatalf("snapshot %d: %v went from %v to %v on an absent signal", i, v.Condition, before[c], v.Status)
			case v.Status == Unknown && !v.Frozen:
				t.Fatalf("snapshot %d: %v is Unknown though nothing is absent", i, v.Condition)
			case v.Status == False && before[c] == True && s.Time.Sub(lastMet[c]) < period:
				t.Fatalf("snapshot %d: %v ended %v after it was met", i, v.Condition, s.Time.Sub(lastMet[c]))
			case v.Status != before[c] && !v.Since.Equal(s.Time):
				t.Fatalf("snapshot %d: %v changed to %v, but since %v", i, v.Condition, v.Status, v.Since)
			}
			before[c] = v.Status
		}
	}
}

// lookAt says, without any state, whether a threshold of the condition is met,
// and whether one of its signals is absent.
func lookAt(thresholds []Threshold, c Condition, s *probe.Snapshot) (met, absent bool) {
	for _, t := range thresholds {
		if obs := s.Signals[t.Signal]; t.Condition() == c {
			met = met || obs.OK && obs.Available < t.Value.Of(obs.Capacity)
			absent = absent || !obs.OK && obs.Err != nil
		}
	}
	return met, absent
}

func checkSameAgain(t *testing.T, thresholds []Threshold, period time.Duration, snapshots []probe.Snapshot) {
	a, b := NewEvaluator(thresholds, period), NewEvaluator(thresholds, period)
	for i, s := range snapshots {
		if once, again := a.Observe(&s), b.Observe(&s); !slices.Equal(once, again) {
			t.Fatalf("snapshot %d, once and again:\n%s", i, cmp.Diff(once, again))
		}
	}
}

// checkIndependence takes all other conditions' signals away.
func checkIndependence(t *testing.T, thresholds []Threshold, period time.Duration, snapshots []probe.Snapshot) {
	for c := range Condition(NumConditions) {
		all, alone := NewEvaluator(thresholds, period), NewEvaluator(thresholds, period)
		for i, s := range snapshots {
			want := all.Observe(&s)[c]
			for signal := range s.Signals {
				if conditionOf[signal] != c {
					s.Signals[signal] = probe.Observation{Err: errAbsent}
				}
			}
			if got := alone.Observe(&s)[c]; got != want {
				t.Fatalf("snapshot %d: %v depends on foreign signals:\n%s", i, c, cmp.Diff(want, got))
			}
		}
	}
}

// checkAgainstKubelet plays the snapshots to the kubelet's algorithm as well, up
// to the first that the two are meant to disagree about.
func checkAgainstKubelet(t *testing.T, thresholds []Threshold, period time.Duration, snapshots []probe.Snapshot) {
	if period == 0 {
		return
	}
	e := NewEvaluator(thresholds, period)
	k := newKubelet(thresholds, period)
	for i, s := range snapshots {
		if i > 0 && s.Time.Before(snapshots[i-1].Time) {
			return
		}
		for _, obs := range s.Signals {
			if obs.Err != nil {
				return
			}
		}
		pressure := k.synchronize(&s)
		for c, v := range e.Observe(&s) {
			if pressure[Condition(c)] != (v.Status == True) {
				t.Fatalf("snapshot %d: %v is %v, to the kubelet %v", i, v.Condition, v.Status, pressure[Condition(c)])
			}
		}
	}
}
