package probe_test

import (
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// The benchmarks read the machine that they run on. What a sample costs is
// mostly what the kernel charges for making up its files, so the figures mean
// something only beside BenchmarkFloor of the same machine.

const nodefsDirectory = "/var/lib"

func newSampler(tb testing.TB) *probe.Sampler {
	tb.Helper()
	s, err := probe.New(probe.Config{
		Procfs: "/proc", Sysfs: "/sys", Rootfs: "/",
		// Two directories, so that there are two statfs calls to pay for.
		RootDirectory: nodefsDirectory, ImageDirectories: []string{"/"},
		Interval: 10 * time.Second,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	s.Sample() // opens the files and reads what is read once a minute
	return s
}

// newEvaluator watches what a kubelet watches by default, and PIDs.
func newEvaluator(tb testing.TB) *pressure.Evaluator {
	tb.Helper()
	thresholds, _, err := pressure.Parse(pressure.Config{
		Hard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
			"imagefs.available": "15%", "imagefs.inodesFree": "5%", "pid.available": "10%",
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return pressure.NewEvaluator(thresholds, 5*time.Minute)
}

// hotFiles are the files that a sample reads every time on this machine.
func hotFiles() []string {
	return []string{
		"/proc/meminfo", "/proc/loadavg", "/proc/vmstat",
		"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max",
		"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io",
	}
}

// floor is the least that reading the node can cost: one pread of each file
// that is already open, and two statfs calls, all on one goroutine and with
// nothing parsed, checked or waited for.
type floor struct {
	fds   []int
	buf   [16 << 10]byte
	paths [2][]byte
	st    unix.Statfs_t
}

func newFloor(tb testing.TB) *floor {
	tb.Helper()
	f := &floor{paths: [2][]byte{[]byte(nodefsDirectory + "\x00"), []byte("/\x00")}}
	for _, path := range hotFiles() {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			tb.Logf("left out: open %s: %v", path, err)
			continue
		}
		tb.Cleanup(func() { unix.Close(fd) })
		f.fds = append(f.fds, fd)
	}
	return f
}

func (f *floor) read() {
	for _, fd := range f.fds {
		unix.Pread(fd, f.buf[:], 0)
	}
	for _, p := range f.paths {
		unix.Syscall(unix.SYS_STATFS, uintptr(unsafe.Pointer(&p[0])), uintptr(unsafe.Pointer(&f.st)), 0)
	}
}

// procfsReader reads the same with prometheus/procfs, as far as that library
// reads it at all: it has neither vmstat nor the memory controller.
type procfsReader struct{ fs procfs.FS }

func newProcfsReader(tb testing.TB) *procfsReader {
	tb.Helper()
	fs, err := procfs.NewFS("/proc")
	if err != nil {
		tb.Fatal(err)
	}
	return &procfsReader{fs}
}

func (p *procfsReader) read() {
	p.fs.Meminfo()
	p.fs.LoadAvg()
	p.fs.SysctlInts("kernel/pid_max")
	p.fs.SysctlInts("kernel/threads-max")
	for _, r := range []string{"cpu", "memory", "io"} {
		p.fs.PSIStatsForResource(r)
	}
	var st unix.Statfs_t
	unix.Statfs(nodefsDirectory, &st)
	unix.Statfs("/", &st)
}

func BenchmarkSample(b *testing.B) {
	s := newSampler(b)
	b.ReportAllocs()
	for b.Loop() {
		s.Sample()
	}
}

func BenchmarkSampleObserve(b *testing.B) {
	s, e := newSampler(b), newEvaluator(b)
	b.ReportAllocs()
	for b.Loop() {
		e.Observe(s.Sample())
	}
}

func BenchmarkFloor(b *testing.B) {
	f := newFloor(b)
	b.ReportAllocs()
	for b.Loop() {
		f.read()
	}
}

func BenchmarkProcfs(b *testing.B) {
	p := newProcfsReader(b)
	b.ReportAllocs()
	for b.Loop() {
		p.read()
	}
}
