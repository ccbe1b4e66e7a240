package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

// breakage is a source that fails when one of its files does, and what then is
// absent from the Snapshot.
type breakage struct {
	file   string
	source Source
	lose   func(s *Snapshot, err error)
}

func loseSignal(sig Signal) func(*Snapshot, error) {
	return func(s *Snapshot, err error) { s.Signals[sig] = Observation{Err: err} }
}

func losePressure(r Resource) func(*Snapshot, error) {
	return func(s *Snapshot, err error) { s.Pressure[r] = Stall{Err: err} }
}

func loseMeminfo(s *Snapshot, err error) {
	for _, sig := range []Signal{MemoryAvailable, MemAvailable, SwapAvailable} {
		s.Signals[sig] = Observation{Err: err}
	}
	s.Memory = Memory{}
	s.Swap = Swap{}
}

func loseTasks(s *Snapshot, err error) {
	s.Signals[PIDAvailable] = Observation{Err: err}
	s.Tasks = Tasks{}
}

var breakages = []breakage{
	{file: "proc/meminfo", source: SourceMeminfo, lose: loseMeminfo},
	{file: "sys/fs/cgroup/kubepods.slice/memory.stat", source: SourcePodsCgroup, lose: loseSignal(AllocatableMemoryAvailable)},
	{file: "sys/fs/cgroup/kubepods.slice/memory.current", source: SourcePodsCgroup, lose: loseSignal(AllocatableMemoryAvailable)},
	{file: "sys/fs/cgroup/kubepods.slice/memory.max", source: SourcePodsCgroup, lose: loseSignal(AllocatableMemoryAvailable)},
	{file: "proc/loadavg", source: SourceLoadavg, lose: loseTasks},
	{
		file: "proc/sys/kernel/threads-max", source: SourceTaskLimit,
		// The other limit stands in, as in the kubelet; the error says so.
		lose: func(s *Snapshot, _ error) {
			s.Tasks.Max = 4194304
			s.Signals[PIDAvailable] = observe(4194304-126950, 4194304)
		},
	},
	{file: "proc/sys/kernel/pid_max", source: SourceTaskLimit, lose: func(*Snapshot, error) {}},
	{file: "proc/pressure/cpu", source: SourcePressureCPU, lose: losePressure(CPU)},
	{file: "proc/pressure/memory", source: SourcePressureMemory, lose: losePressure(MemoryResource)},
	{file: "proc/pressure/io", source: SourcePressureIO, lose: losePressure(IO)},
	{file: "proc/vmstat", source: SourceVmstat, lose: func(s *Snapshot, _ error) { s.OOMKills = Count{} }},
	{file: "proc/1/mountinfo", source: SourceMounts, lose: func(*Snapshot, error) {}},
	// What the machine has outlives a read that fails.
	{file: "sys/devices/system/cpu/online", source: SourceCPUs, lose: func(*Snapshot, error) {}},
	{file: hugepages + "hugepages-2048kB/nr_hugepages", source: SourceHugePages, lose: func(*Snapshot, error) {}},
}

func TestBrokenSourceTakesOnlyItsOwnSignals(t *testing.T) {
	for _, b := range breakages {
		bad := map[string]string{
			"empty": "", "blank": "\n", "prose": "not what it was\n", "binary": "\x00\xff\xfe\n",
			"negative": digits.ReplaceAllString(fullMachine[b.file], "-$0"),
			"overflow": digits.ReplaceAllString(fullMachine[b.file], "99999999999999999999"),
			"4 MiB":    strings.Repeat("9", 4<<20) + "\n",
			"cut":      fullMachine[b.file][:len(fullMachine[b.file])/4],
		}
		t.Run(strings.ReplaceAll(b.file, "/", "."), func(t *testing.T) {
			n := fullMachine.boot(t)
			s := n.sampler(t)
			s.Sample()
			for name, text := range bad {
				n.Write(t, b.file, text)
				checkBroken(t, name, n, b, fullSnapshot(), *resample(s))
				n.Write(t, b.file, fullMachine[b.file])
				if d := diff(fullSnapshot(), *resample(s)); d != "" {
					t.Errorf("%s, mended (-want +got):\n%s", name, d)
				}
			}
		})
	}
}

// checkBroken compares got with want, which is what there was before b.
func checkBroken(t *testing.T, name string, n node, b breakage, want, got Snapshot) {
	t.Helper()
	err := got.Errors[b.source]
	if err == nil || !strings.Contains(err.Error(), n.Path(b.file)) {
		t.Errorf("%s: Errors[%s] is %.300v, which does not name %s", name, b.source, err, b.file)
	}
	want.Errors[b.source] = err
	b.lose(&want, err)
	if d := diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%.2000s", name, d)
	}
}

// Here the file was never there, is no file, or can be opened and not read.
func TestUnreadableSourceRecovers(t *testing.T) {
	ways := map[string]func(t *testing.T, path string){
		"absent":    func(*testing.T, string) {},
		"directory": func(t *testing.T, path string) { probetest.Must(t, os.Mkdir(path, 0o755)) },
		"EIO":       func(t *testing.T, path string) { probetest.Must(t, os.Symlink("/proc/self/mem", path)) },
		"loop":      func(t *testing.T, path string) { probetest.Must(t, os.Symlink(path, path)) },
	}
	for _, b := range breakages {
		if b.source >= SourceMachine {
			continue // their tests are beside the functions that read them
		}
		t.Run(strings.ReplaceAll(b.file, "/", "."), func(t *testing.T) {
			for way, spoil := range ways {
				n := fullMachine.boot(t)
				n.Remove(t, b.file)
				spoil(t, n.Path(b.file))
				s := n.sampler(t)
				before := fullSnapshot()
				if b.source == SourceMeminfo { // and not even the capacity was ever known
					before.Capacity.Memory, before.Capacity.Swap, before.Capacity.MemoryOK = 0, 0, false
				}
				checkBroken(t, way, n, b, before, *s.Sample())
				n.Remove(t, b.file)
				n.Write(t, b.file, fullMachine[b.file])
				if d := diff(fullSnapshot(), *s.Sample()); d != "" {
					t.Errorf("%s, mended (-want +got):\n%s", way, d)
				}
			}
		})
	}
}

func TestBothTaskLimitsBroken(t *testing.T) {
	n := fullMachine.with(machine{"proc/sys/kernel/pid_max": "0\n", "proc/sys/kernel/threads-max": "x\n"}).boot(t)
	got := *n.sampler(t).Sample()
	want := fullSnapshot()
	err := got.Errors[SourceTaskLimit]
	probetest.CheckError(t, err, hotfile.ErrZero)
	probetest.CheckError(t, err, hotfile.ErrNumber)
	want.Errors[SourceTaskLimit] = err
	loseTasks(&want, err)
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Sums that do not fit must not come out small or negative: that would be a
// node without any memory in use.
func TestHugeMemoryFails(t *testing.T) {
	n := fullMachine.with(machine{
		"proc/meminfo": replaceField(meminfoText, "AnonPages", "9007199254740991", "Cached", "9007199254740991"),
	}).boot(t)
	snap := n.sampler(t).Sample()
	probetest.CheckError(t, snap.Errors[SourceMemoryCgroup], hotfile.ErrRange)
	if snap.Memory.CgroupOK || snap.Signals[MemoryAvailable].OK {
		t.Errorf("%+v", snap.Memory)
	}
}

// replaceField puts other numbers into lines of meminfo.
func replaceField(text string, fields ...string) string {
	for i := 0; i < len(fields); i += 2 {
		text = regexp.MustCompile(`(?m)^(`+regexp.QuoteMeta(fields[i])+`:\s+)\d+`).ReplaceAllString(text, "${1}"+fields[i+1])
	}
	return text
}

// Where meminfo lacks a part of the root cgroup's account, the kernel's is there.
func TestMeminfoWithoutCgroupAccount(t *testing.T) {
	for _, field := range []string{"AnonPages", "Cached", "Buffers", "SwapCached", "Inactive(file)"} {
		n := fullMachine.with(machine{"proc/meminfo": strings.Replace(meminfoText, "\n"+field+":", "\nOther:", 1)}).boot(t)
		got, want := *n.sampler(t).Sample(), fullSnapshot()
		err := got.Errors[SourceMemoryCgroup]
		if err == nil || !strings.Contains(err.Error(), n.Path("proc/meminfo")+`: no line "`+field+`"`) {
			t.Errorf("%s: %v", field, err)
		}
		want.Errors[SourceMemoryCgroup], want.Signals[MemoryAvailable] = err, Observation{Err: err}
		want.Memory.Usage, want.Memory.InactiveFile, want.Memory.WorkingSet, want.Memory.CgroupOK = 0, 0, 0, false
		if d := diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", field, d)
		}
	}
}

// The pods' cgroup goes when a kubelet is stopped for good, and comes when one
// is installed.
func TestPodsCgroupComesAndGoes(t *testing.T) {
	const pods = "sys/fs/cgroup/kubepods.slice"
	n := fullMachine.without(pods).boot(t)
	s := n.sampler(t)
	for range 2 {
		if o := resample(s).Signals[AllocatableMemoryAvailable]; o != (Observation{}) {
			t.Errorf("no pods: %+v", o)
		}
		for name, text := range fullMachine {
			if strings.HasPrefix(name, pods) {
				n.Write(t, name, text)
			}
		}
		if d := diff(fullSnapshot(), *resample(s)); d != "" {
			t.Errorf("with pods (-want +got):\n%s", d)
		}
		n.Remove(t, pods)
	}
}

// The kernel answers ENODEV on a file of a cgroup that is gone, even if one of
// the same name is there again: only opening it anew helps.
func TestRealCgroupRemovedAndMadeAgain(t *testing.T) {
	root, version := cgroup.Memory("/sys/fs/cgroup")
	if version == cgroup.None {
		t.Skip("no memory controller")
	}
	group := filepath.Join(root, "nodeprobe-test-"+filepath.Base(t.TempDir())+time.Now().Format("150405.000000"))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.Remove(group) })
	if _, err := os.Stat(filepath.Join(group, "memory.stat")); err != nil {
		t.Skip(err) // v2 without +memory in cgroup.subtree_control
	}
	var c memoryCgroup
	c.locate(group, version)
	defer c.close()
	if _, _, err := c.read(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.readLimit(); !errors.Is(err, errNoLimit) {
		t.Errorf("a new cgroup has a limit: %v", err)
	}
	probetest.Must(t, os.Remove(group))
	if _, _, err := c.read(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	probetest.Must(t, os.Mkdir(group, 0o755))
	if _, _, err := c.read(); err != nil {
		t.Errorf("made again: %v", err)
	}
	if _, err := c.readLimit(); !errors.Is(err, errNoLimit) {
		t.Errorf("made again: limit: %v", err)
	}
}

func TestSourceIsLoggedOncePerChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		n := fullMachine.boot(t)
		s := n.sampler(t, func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
				ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
					if a.Key == slog.TimeKey {
						return slog.Attr{}
					}
					return a
				},
			}))
		})
		defer s.Close()
		step := func(name, text string, samples int, want ...string) {
			t.Helper()
			n.Write(t, "proc/loadavg", text)
			log.Reset()
			for range samples {
				s.Sample()
				time.Sleep(time.Second)
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if log.Len() == 0 {
				lines = nil
			}
			if len(lines) != len(want) {
				t.Errorf("%s: logged\n%s", name, log.String())
				return
			}
			for i, w := range want {
				if !strings.Contains(lines[i], w) {
					t.Errorf("%s: line %q does not say %q", name, lines[i], w)
				}
			}
		}
		step("fine", loadavgText, 3)
		step("broken", "x\n", 5, "level=WARN msg=\"source cannot be read\" source=loadavg err=\"read ")
		step("broken otherwise, within a minute", "y\n", 5)
		step("still so", "y\n", 200, `line \"y`)
		step("mended", loadavgText, 5, "level=INFO msg=\"source can be read again\" source=loadavg")
		step("broken again", "x\n", 5, "source cannot be read")
	})
}
