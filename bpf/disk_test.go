//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// disk is a filesystem on a loop device.
type disk struct {
	t       testing.TB
	fstype  string
	dir     string
	backing *os.File
	loop    int    // the device's descriptor
	device  string // its path
	mounted bool
}

// mkfs has the commands that make each filesystem. Nothing is left to be done in the
// background later.
func mkfs() map[string][]string {
	ext4 := func(options ...string) []string {
		return append([]string{"mkfs.ext4", "-q", "-F", "-N", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"}, options...)
	}
	return map[string][]string{
		"ext4":              ext4("-b", "4096"),
		"ext4 1 KiB blocks": ext4("-b", "1024"),
		"ext4 2 KiB blocks": ext4("-b", "2048"),
		"ext4 bigalloc":     ext4("-b", "4096", "-O", "bigalloc", "-C", "65536"),
		"ext4 bigalloc 1 K": ext4("-b", "1024", "-O", "bigalloc", "-C", "16384"),
		"ext4 no journal":   ext4("-b", "4096", "-O", "^has_journal"),
		"xfs":               {"mkfs.xfs", "-q", "-f", "-K"},
		"xfs 1 KiB blocks":  {"mkfs.xfs", "-q", "-f", "-K", "-b", "size=1024"},
		"btrfs":             {"mkfs.btrfs", "-q", "-f", "-K"},
	}
}

func newDisk(t testing.TB) *disk { return newDiskOf(t, "ext4") }

func newDiskOf(t testing.TB, kind string) *disk {
	t.Helper()
	needRoot(t)
	fstype, _, _ := strings.Cut(kind, " ")
	// The others take none smaller. What nobody writes takes no memory.
	size := int64(320 << 20)
	if fstype == "ext4" {
		size = 64 << 20
	}
	backing := sparseFile(t, size+(1<<20), size)
	args := append(mkfs()[kind], fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), backing.Fd()))
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		lacking(t, "%v: %v: %s (apt-get install e2fsprogs xfsprogs btrfs-progs)", cmd, err, out)
	}
	loop := loopDevice(t, backing)
	device, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", loop))
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{t: t, fstype: fstype, dir: t.TempDir(), backing: backing, loop: loop, device: device}
	d.mount(0, map[string]string{"ext4": "errors=remount-ro"}[fstype])
	t.Cleanup(func() {
		if d.mounted {
			d.unmount(unix.MNT_DETACH)
		}
	})
	return d
}

func (d *disk) mount(flags uintptr, options string) {
	d.t.Helper()
	if err := unix.Mount(d.device, d.dir, d.fstype, flags, options); err != nil {
		d.t.Fatalf("mount %s: %v", d.device, err)
	}
	d.mounted = true
}

func (d *disk) unmount(flags int) {
	d.t.Helper()
	if err := unix.Unmount(d.dir, flags); err != nil {
		d.t.Fatalf("unmount %s: %v", d.device, err)
	}
	d.mounted = false
}

// open opens the root directory.
func (d *disk) open(flags int) int {
	d.t.Helper()
	fd, err := unix.Open(d.dir, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	return fd
}

// watch watches free bytes and inodes, never under pressure.
func (d *disk) watch(s *Sensor) {
	d.t.Helper()
	fd := d.open(unix.O_PATH)
	defer unix.Close(fd)
	watch(d.t, s,
		Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never},
		Watch{Figure: FreeInodes, FD: fd, Below: never, Above: never})
}

func (d *disk) statfs() unix.Statfs_t {
	d.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		d.t.Fatal(err)
	}
	return st
}

func (d *disk) remove(names ...string) {
	d.t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil {
			d.t.Fatal(err)
		}
	}
}

// touch makes n empty files, and returns their names.
func (d *disk) touch(n int) []string {
	d.t.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("file", i)
		if err := os.WriteFile(filepath.Join(d.dir, names[i]), nil, 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
	return names
}

// fallocate gives a file its blocks without writing to them.
func (d *disk) fallocate(name string, size int64) {
	d.t.Helper()
	f, err := os.Create(filepath.Join(d.dir, name))
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		d.t.Fatal(err)
	}
}

// write writes a file, whose blocks are only reserved at first.
func (d *disk) write(name string, size int) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), make([]byte, size), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// What the kernel reads is what statfs tells, with what the CPUs have not added to its
// counters yet; and by no more than that it differs where that is not known.
func TestDiskAgreesWithStatfs(t *testing.T) {
	s := open(t, Pressure)
	for kind := range mkfs() {
		if kind == "btrfs" {
			continue // has a figure of its own
		}
		t.Run(kind, func(t *testing.T) {
			d := newDiskOf(t, kind)
			d.watch(s)
			check := func(what string) {
				t.Helper()
				cpus := int64(possibleCPUs())
				eventually(t, what+": the same as statfs", func() bool { // the kernel works on in the background
					if err := s.Refresh(); err != nil {
						t.Fatal(err)
					}
					st, l := d.statfs(), levels(s)
					bytes := l.Watches[0].Value - int64(st.Bfree)*st.Bsize
					inodes := l.Watches[1].Value - int64(st.Ffree)
					t.Logf("%s: %+d KiB, %+d inodes", what, bytes/1024, inodes)
					return max(bytes, -bytes) <= l.Watches[0].Lag(FreeBytes, cpus) && max(inodes, -inodes) <= l.Watches[1].Lag(FreeInodes, cpus)
				})
			}
			check("empty")
			d.fallocate("a", 20<<20)
			check("fallocate")
			d.write("b", 10<<20)
			check("write")
			d.remove("a", "b")
			check("remove")
			names := d.touch(500)
			check("files")
			d.remove(names...)
			check("no files")
			watch(t, s)
		})
	}
}

// On a machine of more CPUs than there is room for, what they hold back is not summed.
func TestPartsOfTooManyCPUs(t *testing.T) {
	const maxCPUs = 512 // MAX_CPUS in percpu.h
	types, err := kernelTypes("", btf.NewCache())
	if err != nil {
		lacking(t, "%v", err)
	}
	cpus := uint64(possibleCPUs())
	summed := map[uint64]uint64{maxCPUs + 1: 0, cpus: 0}
	if hasHelper(types, "BPF_FUNC_map_lookup_percpu_elem") {
		summed[cpus] = cpus
	}
	for cpus, want := range summed {
		s := open(t, Pressure)
		var config nodeprobeWatchConfig
		tm := &s.kernel.timer
		if err := tm.config.Get(&config); err != nil {
			t.Fatal(err)
		}
		config.Cpus = cpus
		if err := errors.Join(tm.config.Set(config), tm.run(0)); err != nil {
			t.Fatal(err)
		}
		if got := tm.get().Cpus; got != want {
			t.Errorf("%d CPUs: %d are summed, want %d", cpus, got, want)
		}
		s.Close()
	}
}

func TestDiskCrosses(t *testing.T) {
	s := open(t, Pressure)
	for _, kind := range []string{"ext4", "xfs"} {
		d := newDiskOf(t, kind)
		fd := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
		defer unix.Close(fd)
		for name, tt := range map[string]struct {
			figure Figure
			margin int64
			down   func() (up func())
		}{
			"fallocate": {FreeBytes, 15 << 20, func() func() { d.fallocate("big", 30<<20); return func() { d.remove("big") } }},
			"write":     {FreeBytes, 15 << 20, func() func() { d.write("big", 30<<20); return func() { d.remove("big") } }},
			"inodes":    {FreeInodes, 500, func() func() { names := d.touch(1000); return func() { d.remove(names...) } }},
		} {
			if kind == "xfs" && name == "inodes" {
				continue // its free space is inodes
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				on, off := crossings(t, s, Watch{Figure: tt.figure, FD: fd}, tt.margin, tt.down)
				t.Logf("down by %d too many, up by %d", on.Limit-on.Value, off.Value-off.Limit)
			})
		}
		watch(t, s)
	}
}

// Of a btrfs the figure moves with what statfs tells, once that does: at a commit.
func TestHintMoves(t *testing.T) {
	s := open(t, Pressure)
	d := newDiskOf(t, "btrfs")
	fd := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
	defer unix.Close(fd)
	look := func() (kernel, told int64) {
		t.Helper()
		if err := errors.Join(unix.Syncfs(fd), s.Refresh()); err != nil {
			t.Fatal(err)
		}
		st := d.statfs()
		return levels(s).Watches[0].Value, int64(st.Bavail) * st.Bsize
	}
	watch(t, s, Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never})
	kernel, told := look()
	d.fallocate("big", 30<<20)
	nowKernel, nowTold := look()
	if fell, by := kernel-nowKernel, told-nowTold; by < 20<<20 || max(fell-by, by-fell) > 5<<20 {
		t.Errorf("fell by %d, statfs by %d", fell, by)
	}
	if l := levels(s).Watches[0]; !l.IsHint() || l.ReadOnly.On() {
		t.Errorf("%+v", l)
	}
	var refused WatchErrors
	if err := s.Watch([]Watch{{Figure: FreeInodes, FD: fd}}); !errors.As(err, &refused) {
		t.Errorf("inodes: %v", err)
	}
	d.mount(unix.MS_REMOUNT|unix.MS_RDONLY, "")
	watch(t, s, Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never})
	if l := levels(s).Watches[0]; !l.ReadOnly.On() {
		t.Errorf("%+v", l)
	}
}

// A watch does not keep a filesystem from being unmounted, and ends with it.
func TestUnmountMakesStale(t *testing.T) {
	s := open(t, Pressure)
	d := newDisk(t)
	d.watch(s)
	before := levels(s).Watches[0].Value
	d.unmount(0)
	wantEvent(t, s, Event{Kind: Stale, Watch: 0, Seq: 1, On: true})
	wantEvent(t, s, Event{Kind: Stale, Watch: 1, Seq: 1, On: true})
	l := levels(s)
	if w := l.Watches[0]; !w.Stale.On() || w.Value != before || w.ReadOnly != 0 || w.Pressure != 0 {
		t.Errorf("%+v, value was %d", w, before)
	}
	eventually(t, "further ticks", func() bool { return levels(s).Ticks > l.Ticks+1 })
	if e := event(t, s, 0); e != nil {
		t.Errorf("%+v", e)
	}
	// Mounted again it is another one, until that is watched.
	d.mount(0, "")
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	if !levels(s).Watches[0].Stale.On() {
		t.Error("no longer stale")
	}
	d.watch(s)
	if w := levels(s).Watches[0]; w.Stale != 2 || w.Value == 0 {
		t.Errorf("%+v", w)
	}
}

// Unmounted lazily, a filesystem lives on while a process has one of its files open.
func TestLazyUnmount(t *testing.T) {
	s := open(t, Pressure)
	d := newDisk(t)
	d.watch(s)
	fd := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
	closed := false
	defer func() {
		if !closed {
			unix.Close(fd)
		}
	}()
	if err := unix.Unmount(d.dir, 0); err != unix.EBUSY {
		t.Fatalf("unmount with an open file: %v", err)
	}
	d.unmount(unix.MNT_DETACH)
	before := levels(s).Watches[0].Value
	file, err := unix.Openat(fd, "big", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(file, 0, 0, 20<<20); err != nil {
		t.Fatal(err)
	}
	unix.Close(file)
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	if w := levels(s).Watches[0]; w.Stale != 0 || w.Value > before-(10<<20) {
		t.Errorf("%+v, value was %d", w, before)
	}
	unix.Close(fd)
	closed = true
	wantEvent(t, s, Event{Kind: Stale, Watch: 0, Seq: 1, On: true})
}

// The memory of what is gone is used again, and by the like: no watch may take
// another filesystem for its own.
func TestStaleStaysStale(t *testing.T) {
	s := open(t, Pressure)
	first := newDisk(t)
	first.watch(s)
	first.unmount(0)
	wantEvent(t, s, Event{Kind: Stale, Watch: 0, Seq: 1, On: true})
	before := levels(s).Watches[0]
	for range 10 {
		d := newDisk(t)
		d.write("big", 20<<20)
		if err := s.Refresh(); err != nil {
			t.Fatal(err)
		}
		d.unmount(0)
	}
	if after := levels(s).Watches[0]; after != before {
		t.Errorf("%+v, before %+v", after, before)
	}
}
