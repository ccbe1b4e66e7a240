package pressure

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// The kubelet's contract on eviction thresholds, and where each part is held:
//
//	grammar and its errors    TestParse, TestParseErrors, TestParsePercentage
//	V2, V3, V4, V8 in numbers TestValueOf
//	V7 to V13, V31, V32       TestScenarios, v07 to v32
//	hard memory thresholds
//	repeated for allocatable  TestAllocatable
//	strictly less             TestMet
//	grace, minimum reclaim,
//	transition period         TestScenarios; FuzzObserve against the type kubelet
//	signals to conditions     TestSignalConditions
//	containerfs               TestContainerFs, containerfs.txt
//
// What only matters to evicting pods (ranking, messages, the rule that a sample
// must be newer than the last) has no counterpart here.

func TestParsePercentage(t *testing.T) {
	for text, want := range map[string]float32{
		"0%": 0, "25.5%": 0.255, "10%": 0.1, "100%": 1, "-5%": -0.05, "5": 0.05,
	} {
		if got, err := parsePercentage(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"blah", "foo%", "12%345", "25..5%", "%", ""} {
		if got, err := parsePercentage(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

// The shares are float32, and the amounts show it.
func TestShares(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05000000074505806, "10%": 0.10000000149011612, "15%": 0.15000000596046448} {
		if got, err := parsePercentage(text); err != nil || float64(got) != want {
			t.Errorf("%s is %v, %v; want %v", text, float64(got), err, want)
		}
	}
}

// Values are equal if they are the same amount, however it is written, and a
// share is no amount.
func TestValuesCompare(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"100Mi", "100Mi", true},
		{"1Gi", "1024Mi", true},
		{"100Mi", "200Mi", false},
		{"10%", "10%", true},
		{"10%", "10.0%", true},
		{"10%", "20%", false},
		{"10%", "100m", false},
	} {
		a, _, errA := parseThreshold(probe.MemoryAvailable, test.a)
		b, _, errB := parseThreshold(probe.MemoryAvailable, test.b)
		if errA != nil || errB != nil || (a == b) != test.want {
			t.Errorf("%s and %s: %v, %v; want equal: %t", test.a, test.b, errA, errB, test.want)
		}
	}
}

// Where node allocatable is enforced for pods, hard thresholds on the node's
// memory are repeated for the pods' memory, with their minimum reclaim. No others
// are.
func TestAllocatable(t *testing.T) {
	type signal = probe.Signal
	const memory, allocatable = probe.MemoryAvailable, probe.AllocatableMemoryAvailable
	hard := entries{"memory.available": "150Mi"}
	for _, test := range []struct {
		name    string
		config  Config
		enforce []string
		want    []signal
	}{
		{"pods", Config{Hard: hard}, []string{"pods"}, []signal{memory, allocatable}},
		{"pods among others", Config{Hard: hard}, []string{"kube-reserved", "pods", "system-reserved"}, []signal{memory, allocatable}},
		{"others", Config{Hard: hard}, []string{"kube-reserved", "system-reserved"}, []signal{memory}},
		{"none", Config{Hard: hard}, []string{"none"}, []signal{memory}},
		{"not said", Config{Hard: hard}, nil, []signal{memory}},
		{"soft", Config{Soft: hard, SoftGracePeriod: entries{"memory.available": "1m"}}, []string{"pods"}, []signal{memory}},
		{"another signal", Config{Hard: entries{"nodefs.available": "10%", "pid.available": "5%"}}, []string{"pods"}, []signal{probe.NodeFsAvailable, probe.PIDAvailable}},
		{"no thresholds", Config{}, []string{"pods"}, nil},
		{"turned off", Config{Hard: entries{"memory.available": "0%"}}, []string{"pods"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.config.EnforceNodeAllocatable = test.enforce
			test.config.MinimumReclaim = entries{"memory.available": "10Mi"}
			var got []signal
			for _, threshold := range mustParse(t, test.config) {
				got = append(got, threshold.Signal)
				if threshold.Signal == allocatable && (threshold.Value.Quantity != 150*mi || threshold.MinReclaim.Quantity != 10*mi) {
					t.Errorf("not a copy: %v", threshold)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("signals: -want +got:\n%s", diff)
			}
		})
	}
}

// A threshold is met strictly below its value, be that a quantity, a share, or,
// once it was met, either with the minimum reclaim on top.
func TestMet(t *testing.T) {
	for _, test := range []struct {
		value, reclaim string
		available      int64
		met            bool // at once
		reclaiming     bool // after it was met before
	}{
		{"1Gi", "", gi, false, false},
		{"1Gi", "", gi - 1, true, true},
		{"1Gi", "", gi + 1, false, false},
		{"1Gi", "500Mi", gi, false, true},
		{"1Gi", "500Mi", gi + 500*mi - 1, false, true},
		{"1Gi", "500Mi", gi + 500*mi, false, false},
		{"1Gi", "500Mi", -gi, true, true},
		{"10%", "", gi, true, true}, // of 10Gi: 1073741840 by float32
		{"10%", "", gi + 15, true, true},
		{"10%", "", gi + 16, false, false},
		{"10%", "5%", gi + 16, false, true},
		{"10%", "5%", gi + 16 + 536870919, false, true},
		{"10%", "5%", gi + 16 + 536870920, false, false},
		{"10%", "512Mi", gi + 16 + 512*mi - 1, false, true},
		{"10%", "512Mi", gi + 16 + 512*mi, false, false},
		{"20Gi", "", 10 * gi, true, true}, // more than there is
		{"0.0%", "", 0, false, false},
		{"0.0%", "", -1, true, true},
	} {
		t.Run(fmt.Sprintf("%d of %s and %s", test.available, test.value, test.reclaim), func(t *testing.T) {
			config := Config{Hard: entries{"memory.available": test.value}}
			if test.reclaim != "" {
				config.MinimumReclaim = entries{"memory.available": test.reclaim}
			}
			observe := func(e *Evaluator, after time.Duration, available int64) bool {
				s := probe.Snapshot{Time: start.Add(after)}
				s.Signals[probe.MemoryAvailable] = probe.Observation{Available: available, Capacity: 10 * gi, OK: true}
				return e.Observe(&s)[MemoryPressure].Met
			}
			e := NewEvaluator(mustParse(t, config), 0)
			if got := observe(e, 0, test.available); got != test.met {
				t.Errorf("at first: met %t, want %t", got, test.met)
			}
			e = NewEvaluator(mustParse(t, config), 0)
			if !observe(e, 0, math.MinInt64) {
				t.Fatal("nothing is available, and the threshold is not met")
			}
			if got := observe(e, time.Second, test.available); got != test.reclaiming {
				t.Errorf("after it was met: met %t, want %t", got, test.reclaiming)
			}
		})
	}
}

// Each of the nine signals makes one condition True, and no other one.
func TestSignalConditions(t *testing.T) {
	for name, want := range map[string]Condition{
		"memory.available": MemoryPressure, "allocatableMemory.available": MemoryPressure,
		"nodefs.available": DiskPressure, "nodefs.inodesFree": DiskPressure,
		"imagefs.available": DiskPressure, "imagefs.inodesFree": DiskPressure,
		"containerfs.available": DiskPressure, "containerfs.inodesFree": DiskPressure,
		"pid.available": PIDPressure,
	} {
		signal, ok := probe.ParseSignal(name)
		if !ok {
			t.Fatalf("no signal %s", name)
		}
		s := snapshotAt(start, 0.5)
		s.Signals[signal].Available = 0
		for _, v := range NewEvaluator([]Threshold{{Signal: signal, Value: Value{Percentage: 0.1}}}, 0).Observe(&s) {
			if got := v.Status == True; got != (v.Condition == want) {
				t.Errorf("%s: %v is %v", name, v.Condition, v.Status)
			}
		}
	}
}

// A kubelet puts copies of other thresholds in the place of those on containerfs:
// of nodefs, or of imagefs where that is dedicated and not split. Each copy
// watches the filesystem of its original, so the condition is the same without.
func TestContainerFs(t *testing.T) {
	others := Config{
		Hard:            entries{"nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%"},
		Soft:            entries{"imagefs.inodesFree": "20%"},
		SoftGracePeriod: entries{"imagefs.inodesFree": "1m"},
	}
	want := mustParse(t, others)
	for _, signal := range []string{"containerfs.available", "containerfs.inodesFree"} {
		for _, soft := range []bool{false, true} {
			with := Config{
				Hard: entries{}, Soft: entries{}, SoftGracePeriod: entries{signal: "1m", "imagefs.inodesFree": "1m"},
			}
			maps.Copy(with.Hard, others.Hard)
			maps.Copy(with.Soft, others.Soft)
			field := FieldHard
			if soft {
				with.Soft[signal], field = "50%", FieldSoft
			} else {
				with.Hard[signal] = "50%"
			}
			got, notes, err := Parse(with)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, soft %t: -want +got:\n%s", signal, soft, diff)
			}
			if !slices.ContainsFunc(notes, func(n Note) bool { return n.Field == field && n.Key == signal }) {
				t.Errorf("%s, soft %t: not a word about it: %v", signal, soft, notes)
			}
		}
	}
}
