package pressure

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// rule is a condition that any of these clauses makes True.
func rule(t *testing.T, clauses ...string) Rule {
	t.Helper()
	r := Rule{Type: clauses[0]}
	for _, text := range clauses {
		clause, err := ParseClause(text)
		if err != nil {
			t.Fatal(err)
		}
		r.When = append(r.When, clause)
	}
	return r
}

// Each limit is there once, in however many rules it is.
func TestLimits(t *testing.T) {
	thresholds, _, err := Parse(Config{
		Hard: entries{"memory.available": "100Mi", "nodefs.available": "10%"}, MinimumReclaim: entries{"nodefs.available": "1Gi"},
	})
	if err != nil {
		t.Fatal(err)
	}
	limits := NewLimits(thresholds, []Rule{
		rule(t, "memory.available < 100Mi and DiskPressure", "pid.available < 5%"),
		rule(t, "nodefs.readonly"),
		rule(t, "memAvailable < 1Gi and pid.available < 5%", "nodefs.available < 10%", "io.full.avg10 > 5% and swap.available < 10%"),
	})
	var got []string
	for _, threshold := range limits.Thresholds() {
		got = append(got, threshold.String())
	}
	want := []string{
		"memory.available<100Mi", "nodefs.available<10%+1Gi", // as they were given
		"pid.available<5%", "memAvailable<1Gi", "nodefs.available<10%", "swap.available<10%",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, test := range []struct {
		name     string
		verdicts [2]Status // MemoryPressure, DiskPressure
		findings [3]Status
		pids     int64 // of 100
		want     []bool
	}{
		{"nothing", [2]Status{}, [3]Status{}, 100, []bool{false, false, false, true, false, true}},
		{"all", [2]Status{True, True}, [3]Status{True, True, True}, 100, []bool{true, true, true, true, true, true}},
		{"a rule is not", [2]Status{True, True}, [3]Status{False, True, True}, 100, []bool{false, true, false, true, true, true}},
		{"another rule is not", [2]Status{True, True}, [3]Status{True, False, False}, 100, []bool{true, true, true, true, false, true}},
		{"and one term holds", [2]Status{True, True}, [3]Status{True, False, False}, 1, []bool{true, true, true, false, false, true}},
		{"a verdict is not", [2]Status{Unknown, False}, [3]Status{True, True, True}, 100, []bool{false, false, true, true, true, true}},
	} {
		verdicts := [NumConditions]Verdict{{Status: test.verdicts[0]}, {Status: test.verdicts[1]}}
		findings := []Finding{{Status: test.findings[0]}, {Status: test.findings[1]}, {Status: test.findings[2]}}
		s := snapshotAt(start, 1)
		s.Signals[probe.PIDAvailable] = probe.Observation{Available: test.pids, Capacity: 100, OK: true}
		if got := limits.Settled(&s, &verdicts, findings); !slices.Equal(got, test.want) {
			t.Errorf("%s: settled %v, want %v", test.name, got, test.want)
		}
	}
}

// The next sample for rules is due when the soonest of them may change.
func TestSoonest(t *testing.T) {
	const s = time.Second
	after := func(window, ratio float64) time.Duration {
		return time.Duration(window * math.Log(ratio) * float64(s))
	}
	near, far := "memory.available < 500Mi", "memory.available < 100Mi" // 600 Mi of 8 Gi are
	for _, test := range []struct {
		name    string
		clauses []string
		relied  []bool
		stall   float64 // avg10 and avg60 of io
		want    time.Duration
	}{
		{"near a limit", []string{near}, nil, 0, s},
		{"the kernel watches it", []string{near}, []bool{true}, 0, never},
		{"not so near", []string{far}, nil, 0, time.Duration(float64(500<<20) / (8 << 30) / surgeShare * float64(s))},
		{"below it", []string{"memory.available < 601Mi"}, nil, 0, s},
		{"either", []string{far, near}, nil, 0, s},
		{"the last one counts", []string{near + " and pid.available < 50%"}, []bool{false, true}, 0, never},
		{"a limit that cannot be read", []string{near + " and swap.available < 50%"}, nil, 0, never},
		{"is needed by its own clause only", []string{"swap.available < 50%", near}, nil, 0, s},
		{"what announces itself", []string{"DiskPressure", "nodefs.readonly and " + near}, nil, 0, never},
		{"and holds", []string{near + " and MemoryPressure"}, nil, 0, s},

		{"a calm", []string{"io.full.avg10 > 50%"}, nil, 0, after(10, 2)},
		{"for the longer average", []string{"io.full.avg60 > 50% and io.full.avg10 > 50%"}, nil, 0, after(60, 2)},
		{"a stall", []string{"io.full.avg60 > 50%"}, nil, 0.45, after(60, .55/.5)},
		{"almost", []string{"io.full.avg10 > 50%"}, nil, 0.49, s},
		{"holds", []string{"io.full.avg10 > 50%"}, nil, 1, after(10, 2)},
		{"ends with the first", []string{"io.full.avg60 > 50% and io.full.avg10 > 50%"}, nil, 1, after(10, 2)},
		{"never ends", []string{"io.full.avg60 > 0%"}, nil, 0.1, Horizon},
		{"anything", []string{"io.full.avg10 > 0%"}, nil, 0, s},
		{"no such figure", []string{"cpu.full.avg10 > 5%"}, nil, 0, never},
		{"a stall while memory is short", []string{far + " and io.full.avg60 > 50%"}, []bool{true}, 0.49, never},
		{"no rules", nil, nil, 0, never},
	} {
		t.Run(test.name, func(t *testing.T) {
			var rules []Rule
			if test.clauses != nil {
				rules = append(rules, rule(t, test.clauses...))
			}
			limits := NewLimits(nil, rules)
			snap := probe.Snapshot{Time: start}
			snap.Signals[probe.MemoryAvailable] = probe.Observation{Available: 600 << 20, Capacity: 8 << 30, OK: true}
			snap.Signals[probe.PIDAvailable] = probe.Observation{Available: 30000, Capacity: 32768, OK: true}
			line := probe.StallLine{Avg10: test.stall, Avg60: test.stall}
			snap.Pressure[probe.IO] = probe.Stall{Some: line, Full: line, OK: true, FullOK: true}
			snap.NodeFs.Mount = probe.Mount{MountPoint: "/"}
			verdicts := [NumConditions]Verdict{{Status: True}, {Status: False}, {Status: False}}
			estimates := NewForecaster(limits.Thresholds()).Observe(&snap)
			if got := limits.Soonest(&snap, &verdicts, estimates, test.relied, Pace{}); got.Round(time.Millisecond) != test.want.Round(time.Millisecond) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// Rules take part in the pace, by the same steps.
func TestNextSampleForRules(t *testing.T) {
	for _, test := range []struct{ soonest, before, want time.Duration }{
		{0, 10 * time.Second, 10 * time.Second},
		{never, 10 * time.Second, 10 * time.Second},
		{3 * time.Second, 10 * time.Second, 3 * time.Second},
		{3 * time.Second, time.Second, 2 * time.Second},
		{1, 10 * time.Second, 100 * time.Millisecond},
	} {
		if got := NextSample(nil, test.before, Pace{Soonest: test.soonest}); got != test.want {
			t.Errorf("%v after %v: got %v, want %v", test.soonest, test.before, got, test.want)
		}
	}
}

func TestStallLimits(t *testing.T) {
	got := StallLimits([]Rule{
		rule(t, "io.full.avg60 > 50% and io.full.avg10 > 40%", "memory.available < 5%"),
		rule(t, "io.some.avg300 > 5%", "cpu.some.avg10 > 80%", "io.full.avg10 > 45%"),
	})
	want := []StallLimit{{probe.CPU, false, 0.8}, {probe.IO, false, 0.05}, {probe.IO, true, 0.4}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Two signals are for rules alone: a kubelet does not know them.
func TestSignalsOfRules(t *testing.T) {
	for _, name := range []string{"memAvailable", "swap.available"} {
		if _, _, err := Parse(Config{Hard: entries{name: "5%"}}); err == nil || err.Error() != "evictionHard["+name+"]: unsupported eviction signal "+name {
			t.Errorf("%s as a threshold: %v", name, err)
		}
		signal, _ := probe.ParseSignal(name)
		if err := (Threshold{Signal: signal, Value: Value{Quantity: 1}}).Validate(); err == nil {
			t.Errorf("%s is a valid threshold", name)
		}
		snap := probe.Snapshot{Time: start}
		judge := NewJudge([]Rule{rule(t, name+" < 50%")})
		for available, want := range map[int64]Status{49: True, 50: False} {
			snap.Signals[signal] = probe.Observation{Available: available, Capacity: 100, OK: true}
			if findings, _ := judge.Observe(&snap, &[NumConditions]Verdict{}); findings[0].Status != want {
				t.Errorf("%s at %d: %+v", name, available, findings[0])
			}
		}
	}
}
