//go:build linux && (amd64 || arm64)

package bpf

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkTick is what the timer costs with all that a node may want watched:
// PIDs, memory in two ways, and four filesystems by bytes and inodes. An operation
// is 100 ticks at the shortest period, if nobody else wants the CPU.
func BenchmarkTick(b *testing.B) {
	s := open(b, Tasks, Pressure)
	d := newDisk(b)
	fd := d.open(unix.O_PATH)
	defer unix.Close(fd)
	ws := []Watch{
		{Figure: PIDs, Total: 1 << 22, Below: never, Above: never},
		{Figure: MemAvailable, Below: 0, Above: 0, MaxRate: maxRate},
		{Figure: WorkingSet, Total: 1 << 50, Below: never, Above: never},
	}
	for range 4 {
		ws = append(ws,
			Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never},
			Watch{Figure: FreeInodes, FD: fd, Below: never, Above: never})
	}
	for b.Loop() {
		before := levels(s).Ticks
		watch(b, s)
		watch(b, s, ws...) // or else it becomes patient
		eventually(b, "ticks", func() bool { return levels(s).Ticks >= before+100 })
	}
	l := levels(s)
	b.ReportMetric(float64(l.TickTime.Nanoseconds())/float64(l.Ticks), "ns/tick")
	b.ReportMetric(float64(l.Lateness.Microseconds()), "max-late-us")
}

// BenchmarkRest is what the timer costs after a minute beside a threshold: a disk has
// rested one MiB above its own.
func BenchmarkRest(b *testing.B) {
	s := open(b, Pressure)
	d := newDisk(b)
	fd := d.open(unix.O_PATH)
	defer unix.Close(fd)
	w := Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never}
	watch(b, s, w)
	below := levels(s).Watches[0].Value - 1<<20
	const rest, span = time.Minute, 10 * time.Second
	for b.Loop() {
		watch(b, s)
		w.Below, w.Above = below, below
		watch(b, s, w)
		time.Sleep(rest)
		before := levels(s).Ticks
		time.Sleep(span)
		b.ReportMetric(float64(levels(s).Ticks-before)/span.Seconds(), "ticks/s")
	}
}

// BenchmarkFar is what the timer costs while no limit is near: of PIDs, memory in three
// ways, and a filesystem of each kind.
func BenchmarkFar(b *testing.B) {
	s := open(b, Tasks, Pressure)
	dir := memoryCgroup(b, 1<<30)
	cgroup, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(cgroup)
	ws := []Watch{
		{Figure: PIDs, Total: 1 << 22, Below: never, Above: never},
		{Figure: MemAvailable, Below: 0, Above: 0},
		{Figure: WorkingSet, Total: 1 << 50, Below: never, Above: never},
		{Figure: CgroupMemory, FD: cgroup, Total: 1 << 30, Below: never, Above: never},
	}
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		fd := newDiskOf(b, kind).open(unix.O_PATH)
		defer unix.Close(fd)
		ws = append(ws, Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never})
	}
	watch(b, s, ws...)
	const span = 10 * time.Second
	for b.Loop() {
		before := levels(s)
		time.Sleep(span)
		l := levels(s)
		ticks := float64(l.Ticks - before.Ticks)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(ticks/span.Seconds(), "ticks/s")
		b.ReportMetric(float64((l.TickTime-before.TickTime).Nanoseconds())/ticks, "ns/tick")
		b.ReportMetric((l.TickTime-before.TickTime).Seconds()*1e3/span.Minutes(), "CPU-ms/min")
	}
}
