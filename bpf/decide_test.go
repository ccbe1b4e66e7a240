//go:build linux && (amd64 || arm64)

package bpf

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
)

// testPrograms loads the programs of a file in testdata.
func testPrograms(t *testing.T, source string) *ebpf.Collection {
	t.Helper()
	needRoot(t)
	// Compiled where make test-kernels runs this, which has no compiler.
	object := "testdata/" + strings.TrimSuffix(source, ".bpf.c") + ".o"
	if _, err := os.Stat(object); err != nil {
		needClang(t)
		object = filepath.Join(t.TempDir(), "test.o")
		cmd := exec.CommandContext(t.Context(), "clang", "-O2", "-g", "-mcpu=v3", "-target", "bpf", "-c", "testdata/"+source, "-o", object)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	coll, err := ebpf.LoadCollection(object)
	if err != nil {
		lacking(t, "load programs: %v", err) // Linux 5.14, 5.15 with timers
	}
	t.Cleanup(coll.Close)
	return coll
}

// decision is struct decision in testdata/decide.bpf.c.
type decision struct {
	Below, Above, Total int64
	Rate                uint64
	Figure, FD          uint32
	Pressure            uint64
	Value               int64
	Result              uint64
}

func runDecision[T decision | arithmetic | wait](t *testing.T, coll *ebpf.Collection, name string, in T) T {
	t.Helper()
	var out T
	if _, err := coll.Programs[name].Run(&ebpf.RunOptions{Context: in, ContextOut: &out}); err != nil {
		t.Fatalf("run %s: %v", name, err)
	}
	return out
}

func TestCrosses(t *testing.T) {
	coll := testPrograms(t, "decide.bpf.c")
	for _, tt := range []struct {
		below, above int64
		pressure     uint64
		value        int64
		want         uint64
	}{
		{below: 100, above: 200, value: 100, want: 0},
		{below: 100, above: 200, value: 99, want: 1},
		{below: 100, above: 200, value: math.MinInt64, want: 1},
		{below: 100, above: 200, value: math.MaxInt64, want: 0},
		{below: 100, above: 200, pressure: 1, value: 99, want: 0},
		{below: 100, above: 200, pressure: 1, value: 199, want: 0},
		{below: 100, above: 200, pressure: 1, value: 200, want: 1},
		{below: 100, above: 100, pressure: 0, value: 100, want: 0},
		{below: 100, above: 100, pressure: 1, value: 100, want: 1},
		{below: -5, above: -3, pressure: 0, value: -6, want: 1},
		{below: -5, above: -3, pressure: 1, value: -4, want: 0},
	} {
		d := runDecision(t, coll, "test_crosses", decision{Below: tt.below, Above: tt.above, Pressure: tt.pressure, Value: tt.value})
		if d.Result != tt.want {
			t.Errorf("%+v: %d", tt, d.Result)
		}
	}
}

func TestUntilCrossing(t *testing.T) {
	coll := testPrograms(t, "decide.bpf.c")
	const mib, gib = 1 << 20, 1 << 30
	for name, tt := range map[string]struct {
		figure       Figure
		below, above int64
		rate         uint64
		pressure     uint64
		value        int64
		want         time.Duration
	}{
		"far":                   {MemAvailable, gib, 2 * gib, 8 * gib, 0, 100 * gib, time.Second},
		"a second away":         {MemAvailable, gib, 2 * gib, 8 * gib, 0, 9 * gib, time.Second},
		"less than that":        {MemAvailable, gib, 2 * gib, 8 * gib, 0, 5 * gib, 500 * time.Millisecond},
		"rounded down":          {MemAvailable, gib, 2 * gib, 8 * gib, 0, gib + 100*mib, 12207 * time.Microsecond},
		"near":                  {MemAvailable, gib, 2 * gib, 8 * gib, 0, gib + mib, 250 * time.Microsecond},
		"there":                 {MemAvailable, gib, 2 * gib, 8 * gib, 0, gib, 250 * time.Microsecond},
		"beyond":                {MemAvailable, gib, 2 * gib, 8 * gib, 0, 0, 250 * time.Microsecond},
		"pressure, far":         {MemAvailable, gib, 2 * gib, 8 * gib, 1, 0, 100 * time.Millisecond},
		"pressure, between":     {MemAvailable, gib, 2 * gib, 8 * gib, 1, 2*gib - 400*mib, 48828 * time.Microsecond},
		"pressure, near":        {MemAvailable, gib, 2 * gib, 8 * gib, 1, 2*gib - mib, 10 * time.Millisecond},
		"pressure, over":        {MemAvailable, gib, 2 * gib, 8 * gib, 1, 3 * gib, 10 * time.Millisecond},
		"slow figure":           {FreeInodes, 1000, 2000, 10, 0, 1005, 500 * time.Millisecond},
		"rate of one":           {FreeInodes, 1000, 2000, 1, 0, 1001, time.Second},
		"forks tell themselves": {PIDs, 1000, 2000, 1_000_000, 0, 1001, time.Second},
		"PIDs' release":         {PIDs, 1000, 2000, 100_000, 1, 500, 15 * time.Millisecond},
		"no overflow":           {FreeBytes, 0, 0, maxRate, 0, maxRate - 1, 999_999 * time.Microsecond},
		"no overflow either":    {FreeBytes, 0, 0, maxRate, 0, math.MaxInt64, time.Second},
	} {
		d := runDecision(t, coll, "test_until_crossing", decision{
			Figure: uint32(tt.figure), Below: tt.below, Above: tt.above, Rate: tt.rate, Pressure: tt.pressure, Value: tt.value,
		})
		if got := time.Duration(d.Result); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// A watch goes through values: the edges, and no others, are counted.
func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		values []int64
		want   []int // indexes of the values that make an edge
	}{
		"fine":              {[]int64{200, 150, 100}, nil},
		"down and up":       {[]int64{200, 99, 200}, []int{1, 2}},
		"dance below above": {[]int64{150, 99, 150, 101, 199, 50, 199, 100}, []int{1}},
		"dance above below": {[]int64{150, 100, 199, 250, 100, 120}, nil},
		"again and again":   {[]int64{99, 200, 99, 200, 99}, []int{0, 1, 2, 3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			coll := testPrograms(t, "decide.bpf.c")
			var levels nodeprobeWatchLevels
			var got []int
			for i, v := range tt.values {
				before := levels.Watch[0].Pressure
				runDecision(t, coll, "test_judge", decision{Below: 100, Above: 200, Value: v})
				if err := coll.Variables[nodeprobeVarLevels].Get(&levels); err != nil {
					t.Fatal(err)
				}
				if levels.Watch[0].Value != v {
					t.Errorf("value %d, want %d", levels.Watch[0].Value, v)
				}
				switch levels.Watch[0].Pressure - before {
				case 0:
				case 1:
					got = append(got, i)
				default:
					t.Errorf("value %d makes %d edges of %d", v, levels.Watch[0].Pressure, before)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("edges at %v, want %v", got, tt.want)
			}
		})
	}
}

// arithmetic is struct arithmetic in testdata/decide.bpf.c.
type arithmetic struct {
	Free, Reserve, Low                 int64
	ActiveFile, InactiveFile           int64
	Slab, Misc                         int64
	Anon, File                         int64
	WantMemAvailable, WantInWorkingSet int64
}

func TestMemoryArithmetic(t *testing.T) {
	coll := testPrograms(t, "decide.bpf.c")
	for name, want := range map[string]arithmetic{
		"nothing":                 {},
		"free less reserve":       {Free: 1000, Reserve: 100, WantMemAvailable: 900},
		"file above watermark":    {ActiveFile: 300, InactiveFile: 700, Low: 50, File: 1000, WantMemAvailable: 950, WantInWorkingSet: 300},
		"file below watermark":    {ActiveFile: 30, InactiveFile: 70, Low: 80, File: 100, WantMemAvailable: 50, WantInWorkingSet: 30},
		"slab and misc":           {Slab: 900, Misc: 100, Low: 50, WantMemAvailable: 950},
		"slab below watermark":    {Slab: 90, Misc: 11, Low: 80, WantMemAvailable: 51},
		"each gives a half":       {Free: 10, ActiveFile: 100, Slab: 100, Low: 1000, WantMemAvailable: 110},
		"never negative":          {Free: 10, Reserve: 100, WantMemAvailable: 0},
		"reserve eats from file":  {Free: 10, Reserve: 100, InactiveFile: 200, Low: 20, File: 200, WantMemAvailable: 90},
		"anon and shared":         {Anon: 500, File: 300, ActiveFile: 100, InactiveFile: 50, WantMemAvailable: 150, WantInWorkingSet: 750},
		"inactive exceeds":        {Anon: 10, File: 20, InactiveFile: 50, WantMemAvailable: 50, WantInWorkingSet: 0},
		"a terabyte of 4 K pages": {Free: 1 << 28, Anon: 1 << 40, WantMemAvailable: 1 << 28, WantInWorkingSet: 1 << 40},
	} {
		in := want
		in.WantMemAvailable, in.WantInWorkingSet = -1, -1
		if diff := cmp.Diff(want, runDecision(t, coll, "test_arithmetic", in)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
