package pressure

import (
	"math"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

const (
	mi = int64(1) << 20
	gi = int64(1) << 30
)

func TestValueOf(t *testing.T) {
	for _, test := range []struct {
		name     string
		value    string
		capacity int64
		want     int64
	}{
		{"quantity", "100Mi", 8 * gi, 100 * mi},
		{"quantity above capacity", "16Gi", 8 * gi, 16 * gi},
		{"quantity without capacity", "100Mi", 0, 100 * mi},
		{"5% as pinned upstream", "5%", 10 * gi, 536870920},
		{"V2", "10%", 129900528 << 10, 129900528<<10 - 119716326407},
		{"V3", "10%", 100 * gi, 10737418400},
		{"V4 without the 150Mi that are reserved", "5%", 10 * gi, 694157320 - 150*mi},
		{"V8", "5%", 127000, 6350},
		{"10% of 100", "10%", 100, 10},
		{"15%", "15%", 100 * gi, 16106128000},
		{"rounds down", "10%", 19, 1},
		{"nothing of nothing", "10%", 0, 0},
		{"smallest share", "1e-30%", math.MaxInt64, 0},
		{"all of the greatest capacity", "100.0%", math.MaxInt64, math.MaxInt64},
		{"half of the greatest capacity", "50%", math.MaxInt64, 1 << 62},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, keep, err := parseThreshold(probe.MemoryAvailable, test.value)
			if err != nil || !keep {
				t.Fatalf("parse %q: keep %v, %v", test.value, keep, err)
			}
			if got := v.Of(test.capacity); got != test.want {
				t.Errorf("%s of %d = %d, want %d", test.value, test.capacity, got, test.want)
			}
		})
	}
}

func TestValueOfSaturates(t *testing.T) {
	for _, test := range []struct {
		percentage float32
		capacity   int64
		want       int64
	}{
		{math.MaxFloat32, math.MaxInt64, math.MaxInt64},
		{math.MaxFloat32, math.MinInt64, math.MinInt64},
		{1, math.MinInt64, math.MinInt64},
		{1, -3 << 61, -3 << 61},
		{10, 1 << 60, math.MaxInt64},
	} {
		if got := (Value{Percentage: test.percentage}).Of(test.capacity); got != test.want {
			t.Errorf("%v of %d = %d, want %d", test.percentage, test.capacity, got, test.want)
		}
	}
}

func TestValueString(t *testing.T) {
	for text, want := range map[string]string{
		"100Mi":     "100Mi",
		"1.5Gi":     "1536Mi",
		"104857600": "100Mi",
		"1k":        "1k",
		"0.5":       "1",
		"10%":       "10%",
		"25.5%":     "25.5%",
		"0.10%":     "0.1%",
		"5%%":       "5%",
		"100.0%":    "100%",
		"33.333%":   "33.333%",
		"8Ei":       "9223372036854775807",
		"1e400":     "9223372036854775807",
	} {
		v, keep, err := parseThreshold(probe.MemoryAvailable, text)
		if err != nil || !keep {
			t.Fatalf("parse %q: keep %v, %v", text, keep, err)
		}
		if got := v.String(); got != want {
			t.Errorf("%q reads as %q, want %q", text, got, want)
		}
	}
	if got := (Value{}).String(); got != "0" {
		t.Errorf("zero Value reads as %q", got)
	}
}

// Every whole and every tenth of a percent must read back as it was written.
func TestPercentageString(t *testing.T) {
	for tenths := 1; tenths < 1000; tenths++ {
		text := formatPercentage(float32(tenths) / 10 / 100)
		p, err := parsePercentage(text)
		if err != nil || p != float32(tenths)/10/100 || len(text) > len("99.9%") {
			t.Errorf("%d tenths of a percent read as %q, %v, %v", tenths, text, p, err)
		}
	}
}

func TestThresholdString(t *testing.T) {
	for want, threshold := range map[string]Threshold{
		"memory.available<100Mi": {Signal: probe.MemoryAvailable, Value: Value{Quantity: 100 * mi}},
		"nodefs.available<10%":   {Signal: probe.NodeFsAvailable, Value: Value{Percentage: 0.1}},
		"pid.available<1024":     {Signal: probe.PIDAvailable, Value: Value{Quantity: 1024}},
		"memory.available<1Gi+500Mi (grace 2m0s)": {
			Signal: probe.MemoryAvailable, Value: Value{Quantity: gi},
			MinReclaim: Value{Quantity: 500 * mi}, Grace: 2 * time.Minute,
		},
	} {
		if got := threshold.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestThresholdCheck(t *testing.T) {
	for _, test := range []struct {
		name       string
		signal     probe.Signal
		value      Value
		minReclaim Value
		capacity   int64
		want       string
	}{
		{name: "fine", signal: probe.NodeFsAvailable, value: Value{Percentage: 0.1}, capacity: 252 * gi},
		{name: "all of it", signal: probe.NodeFsAvailable, value: Value{Quantity: gi}, capacity: gi},
		{
			name: "above capacity", signal: probe.NodeFsAvailable, value: Value{Quantity: 300 * gi}, capacity: 252 * gi,
			want: "nodefs.available: threshold 300Gi is above the capacity 252Gi: the condition would always be true",
		},
		{
			name: "nothing", signal: probe.NodeFsInodesFree, value: Value{Percentage: 0.001}, capacity: 100,
			want: "nodefs.inodesFree: threshold 0.1% comes to 0 of the capacity 100: the condition would never be true",
		},
		{
			name: "0.0%", signal: probe.PIDAvailable, capacity: 32000,
			want: "pid.available: threshold 0 comes to 0 of the capacity 32k: the condition would never be true",
		},
		{
			name: "no way back", signal: probe.MemoryAvailable,
			value: Value{Quantity: gi}, minReclaim: Value{Percentage: 0.9}, capacity: 8 * gi,
			want: "memory.available: threshold 1Gi plus minimum reclaim 90% is above the capacity 8Gi: the condition would never end",
		},
		{
			name: "overflow", signal: probe.MemoryAvailable,
			value: Value{Quantity: gi}, minReclaim: Value{Quantity: math.MaxInt64}, capacity: 8 * gi,
			want: "memory.available: threshold 1Gi plus minimum reclaim 9223372036854775807 is above the capacity 8Gi: the condition would never end",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			threshold := Threshold{Signal: test.signal, Value: test.value, MinReclaim: test.minReclaim}
			got := ""
			if err := threshold.Check(probe.Observation{Capacity: test.capacity, OK: true}); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			if err := threshold.Check(probe.Observation{Capacity: test.capacity, Err: errAbsent}); err != nil {
				t.Errorf("absent signal: %v", err)
			}
		})
	}
}
