package probe

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// figures are what a reader found, by name.
type figures map[string]float64

// oracle reads a node with prometheus/procfs, and what that does not read in the
// plainest way there is.
func oracle(t *testing.T, proc, sys string) figures {
	t.Helper()
	fs, err := procfs.NewFS(proc)
	probetest.Must(t, err)
	f := figures{}
	mem, err := fs.Meminfo()
	probetest.Must(t, err)
	for name, p := range map[string]*uint64{
		"MemTotal": mem.MemTotalBytes, "MemFree": mem.MemFreeBytes, "MemAvailable": mem.MemAvailableBytes,
		"SwapTotal": mem.SwapTotalBytes, "SwapFree": mem.SwapFreeBytes,
	} {
		if p != nil {
			f[name] = float64(*p)
		}
	}
	for i := range NumResources {
		name := Resource(i).String()
		psi, err := fs.PSIStatsForResource(name)
		if err != nil {
			t.Logf("left out: %v", err)
			continue
		}
		for kind, l := range map[string]*procfs.PSILine{"some": psi.Some, "full": psi.Full} {
			if l != nil {
				f[name+kind+"10"], f[name+kind+"60"], f[name+kind+"300"] = l.Avg10, l.Avg60, l.Avg300
				f[name+kind+"total"] = float64(l.Total)
			}
		}
	}
	for name, file := range map[string]string{"pid_max": "kernel/pid_max", "threads-max": "kernel/threads-max"} {
		n, err := fs.SysctlInts(file)
		probetest.Must(t, err)
		f[name] = float64(n[0])
	}
	f["TasksMax"] = min(f["pid_max"], f["threads-max"])
	delete(f, "pid_max")
	delete(f, "threads-max")
	b, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	probetest.Must(t, err)
	f["Tasks"] = number(t, strings.Split(strings.Fields(string(b))[3], "/")[1])
	table(t, f, filepath.Join(proc, "vmstat"), "oom_kill")
	switch dir, version := cgroup.Memory(filepath.Join(sys, "fs/cgroup")); version {
	case cgroup.V1:
		table(t, f, filepath.Join(dir, "memory.stat"), "total_inactive_file")
		f["inactive_file"] = f["total_inactive_file"]
		delete(f, "total_inactive_file")
		b, err := os.ReadFile(filepath.Join(dir, "memory.usage_in_bytes"))
		probetest.Must(t, err)
		f["usage"] = number(t, strings.TrimSpace(string(b)))
	case cgroup.V2:
		table(t, f, filepath.Join(dir, "memory.stat"), "anon", "file", "inactive_file")
		f["usage"] = f["anon"] + f["file"]
		delete(f, "anon")
		delete(f, "file")
	}
	if usage, ok := f["usage"]; ok {
		f["workingset"] = usage - f["inactive_file"]
	}
	return f
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	probetest.Must(t, err)
	return float64(n)
}

// table adds the lines of that name.
func table(t *testing.T, f figures, path string, names ...string) {
	t.Helper()
	b, err := os.ReadFile(path)
	probetest.Must(t, err)
	for line := range strings.Lines(string(b)) {
		for _, name := range names {
			if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
				f[name] = number(t, value)
			}
		}
	}
}

// ours is what a snapshot says, in the oracle's units.
func ours(s *Snapshot) figures {
	f := figures{}
	if s.Memory.OK {
		f["MemTotal"], f["MemFree"], f["MemAvailable"] = float64(s.Memory.Total), float64(s.Memory.Free), float64(s.Memory.Available)
	}
	if s.Swap.OK {
		f["SwapTotal"], f["SwapFree"] = float64(s.Swap.Total), float64(s.Swap.Free)
	}
	for i, stall := range s.Pressure {
		name := Resource(i).String()
		line := func(kind string, l *StallLine) {
			for window, share := range map[string]float64{"10": l.Avg10, "60": l.Avg60, "300": l.Avg300} {
				f[name+kind+window] = math.Round(share*1e4) / 1e2 // percent, as the file has it
			}
			f[name+kind+"total"] = float64(l.Total / time.Microsecond)
		}
		if stall.OK {
			line("some", &stall.Some)
		}
		if stall.FullOK {
			line("full", &stall.Full)
		}
	}
	if s.Tasks.OK {
		f["Tasks"], f["TasksMax"] = float64(s.Tasks.Total), float64(s.Tasks.Max)
	}
	if s.OOMKills.OK {
		f["oom_kill"] = float64(s.OOMKills.Value)
	}
	if s.Memory.CgroupOK {
		f["usage"], f["inactive_file"] = float64(s.Memory.Usage), float64(s.Memory.InactiveFile)
		f["workingset"] = float64(s.Memory.WorkingSet)
	}
	return f
}

func TestOracleAgreesOnFixtures(t *testing.T) {
	for name, m := range map[string]machine{
		"v2": fullMachine, "v1": fullMachine.v1(),
		"cpu without full": fullMachine.with(machine{"proc/pressure/cpu": strings.SplitAfter(stallText, "\n")[0]}),
	} {
		n := m.boot(t)
		if d := cmp.Diff(oracle(t, n.Path("proc"), n.Path("sys")), ours(n.sampler(t).Sample())); d != "" {
			t.Errorf("%s (-procfs +ours):\n%s", name, d)
		}
	}
}

// apart is how far two accounts of the same may lie from each other. The kubelet
// takes the root cgroup's from memory.stat, and we from meminfo: each is kept per
// CPU, and added up at other times.
var apart = map[string]float64{"usage": 1 << 20, "inactive_file": 1 << 20, "workingset": 1 << 20}

// On a real machine the figures move. A figure is right if it lies between what
// the oracle reads before and after; as it may have been elsewhere in between,
// it gets some chances.
func TestOracleAgreesOnThisMachine(t *testing.T) {
	s, err := New(realConfig())
	probetest.Must(t, err)
	defer s.Close()
	wrong := map[string]string{}
	for try := range 200 {
		before := oracle(t, "/proc", "/sys")
		got := ours(s.Sample())
		after := oracle(t, "/proc", "/sys")
		if try == 0 {
			if d := cmp.Diff(names(before), names(got)); d != "" {
				t.Fatalf("different figures (-procfs +ours):\n%s", d)
			}
			for name := range got {
				wrong[name] = "not read"
			}
		}
		for name := range wrong {
			low, high := min(before[name], after[name])-apart[name], max(before[name], after[name])+apart[name]
			if v := got[name]; v >= low && v <= high {
				delete(wrong, name)
			} else {
				wrong[name] = strconv.FormatFloat(v, 'f', -1, 64) + " is not between " +
					strconv.FormatFloat(low, 'f', -1, 64) + " and " + strconv.FormatFloat(high, 'f', -1, 64)
			}
		}
		if len(wrong) == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	for name, how := range wrong {
		t.Errorf("%s: %s", name, how)
	}
}

func names(f figures) map[string]bool {
	m := map[string]bool{}
	for name := range f {
		m[name] = true
	}
	return m
}

// sysinfo(2) counts the same tasks, in 16 bits.
func TestTasksAgreeWithSysinfo(t *testing.T) {
	s, err := New(realConfig())
	probetest.Must(t, err)
	defer s.Close()
	var before, after unix.Sysinfo_t
	for range 200 {
		probetest.Must(t, unix.Sysinfo(&before))
		total := uint16(s.Sample().Tasks.Total)
		probetest.Must(t, unix.Sysinfo(&after))
		if total >= min(before.Procs, after.Procs) && total <= max(before.Procs, after.Procs) {
			return
		}
	}
	t.Errorf("loadavg counts %d tasks, sysinfo %d", s.Sample().Tasks.Total, after.Procs)
}
