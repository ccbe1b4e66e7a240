package probe

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

// The property of every target: no panic, and either an error or values that a
// machine can have. Text that is not cut keeps its meaning if it is read again
// from a larger buffer, and it never depends on what follows a complete file of
// one line.

func FuzzParseTable(f *testing.F) {
	for _, text := range []string{meminfoText, statV1Text, statV2Text, vmstatText, "MemTotal: 1", "anon -1\n", "file\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		if m, err := parseMeminfo(b); err == nil {
			for _, v := range []int64{m.Memory.Total, m.Memory.Free, m.Memory.Available, m.Swap.Total, m.Swap.Free, m.Memory.Usage, m.Memory.InactiveFile} {
				if v < 0 || v%1024 != 0 {
					t.Errorf("%d is no number of KiB", v)
				}
			}
			for _, key := range []string{"MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "AnonPages", "Cached", "Buffers", "SwapCached", "Inactive(file)"} {
				if !bytes.Contains(b, []byte(key)) {
					t.Errorf("%s comes from nowhere", key)
				}
			}
		}
		for _, version := range []cgroup.Version{cgroup.V1, cgroup.V2} {
			v, err := parseStat(b, version)
			if err == nil && (v < 0 || !bytes.Contains(b, []byte("inactive_file"))) {
				t.Errorf("memory.stat: %v", v)
			}
		}
		n, err := parseVmstat(b)
		if err == nil && n < 0 {
			t.Errorf("oom_kill %d", n)
		}
		if more, err2 := parseVmstat(append(bytes.Clone(b), "\nnr_more 5\n"...)); err == nil && (err2 != nil || more != n) {
			t.Errorf("oom_kill %d, and %d, %v with another line", n, more, err2)
		}
		if !bytes.Equal(b, before) {
			t.Error("the input was changed")
		}
	})
}

func FuzzParseStall(f *testing.F) {
	for _, text := range []string{
		stallText, "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "irq avg10=x\n" + stallText,
		"some total=1 avg10=1.00 avg60=1.00 avg300=1.00\n", "some avg10=0.00 avg10=0.00 avg10=0.00 avg10=0.00\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseStall(b)
		if err != nil {
			if s != (Stall{}) {
				t.Errorf("%+v beside the error %v", s, err)
			}
			return
		}
		if !s.OK || (!s.FullOK && s.Full != (StallLine{})) {
			t.Errorf("%+v", s)
		}
		for _, l := range []StallLine{s.Some, s.Full} {
			for _, share := range []float64{l.Avg10, l.Avg60, l.Avg300} {
				if !(share >= 0 && share < 1.01) {
					t.Errorf("share %v", share)
				}
			}
			if l.Total < 0 {
				t.Errorf("total %v", l.Total)
			}
		}
	})
}

func FuzzParseLoadavg(f *testing.F) {
	for _, text := range []string{loadavgText, "0.00 0.00 0.00 1/80 1\n", "0 0 0 1/80\n", "0 0 0 -1/80 1\n", "0 0 0 / 1\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		running, total, err := parseLoadavg(b)
		if err == nil && (running < 0 || total <= 0 || !bytes.Contains(b, []byte("/"))) {
			t.Errorf("%d/%d", running, total)
		}
		if err != nil && (running != 0 || total != 0) {
			t.Errorf("%d/%d beside the error %v", running, total, err)
		}
	})
}

func FuzzCountList(f *testing.F) {
	for _, text := range []string{"0", "0-3,8", "0-", "3-0", "0-65535,0", ",", "0-18446744073709551615"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, list string) {
		n, err := countList(list)
		if err != nil {
			return
		}
		if n < int64(strings.Count(list, ",")+1) || n > 1<<16 {
			t.Errorf("%q has %d members", list, n)
		}
		if strings.Trim(list, "0123456789-,") != "" {
			t.Errorf("%q is a list", list)
		}
	})
}

func FuzzParsePercent(f *testing.F) {
	for _, text := range []string{"0.00", "100.00", "12.34", "1e2", "-1", ".5", "NaN", "0.1234567890"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := parsePercent(b)
		if err == nil && !(v >= 0 && v < 1.01) || math.Signbit(v) {
			t.Errorf("%q is %v", b, v)
		}
	})
}
