//go:build linux && (amd64 || arm64)

package bpf

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// field returns a number from a file of lines like "name: number" or "name number".
func field(t testing.TB, path, name string) int64 {
	t.Helper()
	for line := range strings.Lines(readAll(t, path)) {
		f := strings.Fields(line)
		if strings.TrimSuffix(f[0], ":") == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", name, path)
	return 0
}

// kubeletWorkingSet computes what the kubelet does, from the root memory cgroup.
func kubeletWorkingSet(t testing.TB) int64 {
	t.Helper()
	const v1 = "/sys/fs/cgroup/memory/"
	if _, err := os.Stat(v1); err == nil {
		usage, err := strconv.ParseInt(strings.TrimSpace(readAll(t, v1+"memory.usage_in_bytes")), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return usage - field(t, v1+"memory.stat", "total_inactive_file")
	}
	const v2 = "/sys/fs/cgroup/memory.stat"
	if _, err := os.Stat(v2); err != nil {
		lacking(t, "no memory cgroups: %v", err)
	}
	return field(t, v2, "anon") + field(t, v2, "file") - field(t, v2, "inactive_file")
}

// The kernel side's figures of memory are those of /proc, but for an offset:
// memory that comes and goes moves both alike.
func TestMemoryAgreesWithProc(t *testing.T) {
	s := open(t, Pressure)
	for name, figure := range map[string]struct {
		kernel func(*Levels) int64
		proc   func() int64
		hog    func(testing.TB, int) func()
	}{
		"MemAvailable": {
			func(l *Levels) int64 { return l.MemAvailable },
			func() int64 { return field(t, "/proc/meminfo", "MemAvailable") * 1024 },
			hogBlocks,
		},
		"WorkingSet": {
			func(l *Levels) int64 { return l.WorkingSet },
			func() int64 {
				meminfo := func(name string) int64 { return field(t, "/proc/meminfo", name) * 1024 }
				return meminfo("AnonPages") + meminfo("Cached") + meminfo("Buffers") + meminfo("SwapCached") - meminfo("Inactive(file)")
			},
			hog,
		},
	} {
		t.Run(name, func(t *testing.T) {
			const step, steps, tolerance = 52 << 20, 6, 8 << 20
			var offsets, figures []int64
			sample := func() {
				// The machine does other things too: of several measurements the
				// best is that during which /proc changed least.
				best, least := int64(0), int64(-1)
				for range 20 {
					before := figure.proc()
					if err := s.Refresh(); err != nil {
						t.Fatal(err)
					}
					l := levels(s)
					after := figure.proc()
					if change := max(after-before, before-after); least < 0 || change < least {
						best, least = figure.kernel(l)-after, change
						figures = append(figures, figure.kernel(l))
					}
				}
				offsets = append(offsets, best)
			}
			for range 5 {
				var release []func()
				for range steps {
					release = append(release, figure.hog(t, step))
					sample()
				}
				for _, f := range release {
					f()
					sample()
				}
			}
			slices.Sort(offsets)
			slices.Sort(figures)
			median := offsets[len(offsets)/2]
			near := 0
			for _, o := range offsets {
				if max(o-median, median-o) <= tolerance {
					near++
				}
			}
			const kib = 1024
			t.Logf("moved by %d MiB; offset of %d samples: median %d KiB, from %+d to %+d KiB of that, 5th to 95th percentile %+d to %+d KiB",
				(figures[len(figures)-1]-figures[0])>>20, len(offsets), median/kib,
				(offsets[0]-median)/kib, (offsets[len(offsets)-1]-median)/kib,
				(offsets[len(offsets)/20]-median)/kib, (offsets[len(offsets)-1-len(offsets)/20]-median)/kib)
			if near < len(offsets)*8/10 {
				t.Errorf("only %d of %d samples are within %d MiB of the median", near, len(offsets), tolerance>>20)
			}
		})
	}
}

// The kubelet's figure is the same once the kernel has added up its statistics of
// cgroups, which it puts off for up to two seconds.
func TestWorkingSetIsTheKubelets(t *testing.T) {
	s := open(t, Pressure)
	const tolerance = 8 << 20
	var differences []int64
	for _, size := range []int{0, 300 << 20, 0} {
		release := hog(t, max(size, 1))
		eventually(t, "the kubelet's figure near ours", func() bool {
			if err := s.Refresh(); err != nil {
				t.Fatal(err)
			}
			d := levels(s).WorkingSet - kubeletWorkingSet(t)
			differences = append(differences, d>>10)
			return max(d, -d) <= tolerance
		})
		release()
	}
	t.Logf("differences %v KiB", differences)
}
