package probe

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/google/go-cmp/cmp"
)

const (
	meminfoText = `MemTotal:        8388608 kB
MemFree:         1048576 kB
MemAvailable:    5242880 kB
Buffers:           84836 kB
Cached:          3059892 kB
SwapCached:         1000 kB
Active(anon):       1584 kB
Inactive(file):  1048576 kB
SwapTotal:       2097152 kB
SwapFree:        1572864 kB
AnonPages:       2097152 kB
VmallocTotal:   34359738367 kB
HugePages_Total:       0
`
	statV1Text = `cache 12292096
inactive_file 159744
hierarchical_memory_limit 9223372036854771712
total_cache 2757685248
total_inactive_file 1073741824
total_active_file 1879678976
`
	statV2Text = `anon 2147483648
file 3221225472
kernel 417788000
inactive_anon 590794752
inactive_file 1073741824
workingset_refault_file 13207
`
	vmstatText = `nr_free_pages 1179581
drop_slab 0
oom_kill 184
numa_pte_updates 0
`
	loadavgText = "0.20 0.18 0.12 3/126950 11206\n"
	stallText   = `some avg10=1.50 avg60=0.07 avg300=100.00 total=513682950
full avg10=0.00 avg60=0.01 avg300=2.35 total=104735
`
)

// formats are the files that a sample parses itself, each with one that is
// right.
var formats = []struct {
	name, text string
	parse      func([]byte) (any, error)
}{
	{"meminfo", meminfoText, func(b []byte) (any, error) { return parseMeminfo(b) }},
	{"memory.stat v1", statV1Text, func(b []byte) (any, error) { return parseStat(b, cgroup.V1) }},
	{"memory.stat v2", statV2Text, func(b []byte) (any, error) { return parseStat(b, cgroup.V2) }},
	{"vmstat", vmstatText, func(b []byte) (any, error) { return parseVmstat(b) }},
	{"loadavg", loadavgText, func(b []byte) (any, error) {
		running, total, err := parseLoadavg(b)
		return [2]int64{running, total}, err
	}},
	{"number", "4194304\n", func(b []byte) (any, error) { return hotfile.ParseNumber(b) }},
	{"pressure", stallText, func(b []byte) (any, error) {
		s, err := parseStall(b)
		return s.Some, err
	}},
}

// digits matches what stands for a number in any of the formats.
var digits = regexp.MustCompile(`[0-9][0-9.]*`)

type meminfo struct {
	Memory Memory
	Swap   Swap
}

func parseMeminfo(b []byte) (meminfo, error) {
	r := newMemoryReader("/proc")
	if err := hotfile.ParseTable(b, r.memTable); err != nil {
		return meminfo{r.mem, r.swap}, err
	}
	err := r.parseCgroup(b)
	return meminfo{r.mem, r.swap}, err
}

// parseStat returns the cgroup's inactive file cache.
func parseStat(b []byte, version cgroup.Version) (int64, error) {
	var c memoryCgroup
	c.locate("/cgroup", version)
	err := hotfile.ParseTable(b, c.table)
	return c.inactive, err
}

func parseVmstat(b []byte) (int64, error) {
	var n int64
	err := hotfile.ParseTable(b, []hotfile.Key{{Name: "oom_kill", Value: &n}})
	return n, err
}

func TestParseFormats(t *testing.T) {
	const gi = 1 << 30
	want := map[string]any{
		"meminfo": meminfo{
			Memory{Total: 8 * gi, Free: gi, Available: 5 * gi, Usage: 5 * gi, InactiveFile: gi},
			Swap{Total: 2 * gi, Free: gi + gi/2},
		},
		"memory.stat v1": int64(gi),
		"memory.stat v2": int64(gi),
		"vmstat":         int64(184),
		"loadavg":        [2]int64{3, 126950},
		"number":         int64(4194304),
		"pressure":       StallLine{Avg10: 0.015, Avg60: 0.0007, Avg300: 1, Total: 513682950e3},
	}
	for _, f := range formats {
		got, err := f.parse([]byte(f.text))
		if err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		if d := cmp.Diff(want[f.name], got); d != "" {
			t.Errorf("%s (-want +got):\n%s", f.name, d)
		}
	}
}

// A file that has lost its end, as it does when a buffer is too small, must not
// be taken for one that holds a smaller number.
func TestTruncatedFileHasNoWrongValue(t *testing.T) {
	for _, f := range formats {
		want, err := f.parse([]byte(f.text))
		probetest.Must(t, err)
		for i := range f.text {
			got, err := f.parse([]byte(f.text[:i]))
			if err == nil && !cmp.Equal(want, got) {
				t.Errorf("%s: %q is read as %+v", f.name, f.text[:i], got)
			}
		}
	}
}

func TestBadFilesFail(t *testing.T) {
	for _, f := range formats {
		for name, text := range map[string]string{
			"empty":       "",
			"blank":       "\n",
			"blanks":      " \t \n\n",
			"NULs":        strings.Repeat("\x00", 100),
			"binary":      "\xff\xfe\x7f\n\x00",
			"prose":       "cgroup: the memory controller is not enabled\n",
			"longest":     strings.Repeat("9", 4<<20),
			"longest end": strings.Repeat("x", 4<<20) + "\n",
			"negative":    digits.ReplaceAllString(f.text, "-$0"),
			"overflow":    digits.ReplaceAllString(f.text, "9223372036854775808"),
			"overflow 64": digits.ReplaceAllString(f.text, "18446744073709551616"),
			"float":       digits.ReplaceAllString(f.text, "1e3"),
			"hex":         digits.ReplaceAllString(f.text, "0x10"),
		} {
			got, err := f.parse([]byte(text))
			if err == nil {
				t.Errorf("%s: %s is read as %+v", f.name, name, got)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("%s: %s: the error has %d bytes", f.name, name, len(err.Error()))
			}
		}
	}
}

func TestParsePercent(t *testing.T) {
	for text, want := range map[string]float64{
		"0.00": 0, "0.07": 0.0007, "12.34": 0.1234, "100.00": 1, "100": 1, "7.": 0.07, "0.123456789": 0.00123456789,
	} {
		if got, err := parsePercent([]byte(text)); got != want || err != nil {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]error{
		"": hotfile.ErrNumber, ".5": hotfile.ErrNumber, "1.2.3": hotfile.ErrNumber, "1.-2": hotfile.ErrNumber, "NaN": hotfile.ErrNumber, "inf": hotfile.ErrNumber,
		"-0.01": hotfile.ErrNegative, "101.00": hotfile.ErrRange, "0.1234567890": hotfile.ErrRange, "9223372036854775807.00": hotfile.ErrRange,
	} {
		_, err := parsePercent([]byte(text))
		probetest.CheckError(t, err, want)
	}
}
