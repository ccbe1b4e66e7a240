//go:build linux && (amd64 || arm64)

package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memoryCgroup makes a cgroup with a memory limit in bytes, of whichever
// version the machine has, and removes it with the test.
func memoryCgroup(t testing.TB, limit int) string {
	t.Helper()
	needRoot(t)
	parent, file, swap := "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"
	if _, err := os.Stat(filepath.Join(parent, file)); err != nil {
		parent, file, swap = "/sys/fs/cgroup", "memory.max", "memory.swap.max"
		// Its children only have the controllers that the root hands down.
		err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
		if err != nil {
			lacking(t, "no memory cgroups: %v", err)
		}
	}
	dir := filepath.Join(parent, fmt.Sprintf("nodeprobe-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		lacking(t, "%v", err)
	}
	t.Cleanup(func() {
		// Busy until the kernel is done with the last process.
		eventually(t, "the cgroup empty", func() bool {
			err := unix.Rmdir(dir)
			return err == nil || !errors.Is(err, unix.EBUSY)
		})
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0); err != nil {
		t.Fatal(err)
	}
	// Swapped out is not killed. Where there is no swap there is no such file.
	_ = os.WriteFile(filepath.Join(dir, swap), []byte("0"), 0)
	return dir
}

// join moves the process into a cgroup.
func join(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// helperOOM takes a name, goes into a cgroup and takes more memory than that
// has. It gives up at 100 MiB.
func helperOOM(args []string) error {
	if err := os.WriteFile("/proc/self/comm", []byte(args[0]), 0); err != nil {
		return err
	}
	if err := join(args[1]); err != nil {
		return err
	}
	var hog [][]byte
	for range 100 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		hog = append(hog, b)
	}
	return fmt.Errorf("still alive with %d MiB", len(hog))
}

// helperThrash goes into a cgroup and reads a file again and again, until its
// standard input ends.
func helperThrash(args []string) error {
	if err := join(args[0]); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	f, err := os.Open(args[1])
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, bufio.NewReader(f), buf); err != nil {
			return err
		}
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestOOMKill(t *testing.T) {
	s := open(t, OOM, Reclaim)
	dir := memoryCgroup(t, 24<<20)
	start := time.Now()
	const comm = "np-oom-victim"
	cmd := helper(t, "oom", comm, dir)
	before := s.Counters()
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("the victim was not killed: %v", err)
	}
	// The Sensor is for everyone; others' victims are not this test's.
	timeout := time.AfterFunc(20*time.Second, func() { _ = s.Close() })
	defer timeout.Stop()
	var e Event
	var seq uint64
	for e.PID != uint32(cmd.Process.Pid) {
		if err := s.ReadEvent(&e); err != nil {
			t.Fatal(err)
		}
		if e.Seq != seq+1 {
			t.Errorf("event %d follows event %d", e.Seq, seq)
		}
		seq = e.Seq
	}
	if e.Kind != OOMKill {
		t.Errorf("Kind %v", e.Kind)
	}
	if e.Name() != comm {
		t.Errorf("Name %q, want %q", e.Name(), comm)
	}
	if want := inode(t, dir); e.CgroupID != want {
		t.Errorf("CgroupID %d, want %d", e.CgroupID, want)
	}
	if e.Scope != ScopeCgroup {
		t.Errorf("Scope %v", e.Scope)
	}
	if e.Time.Before(start) || e.Time.After(time.Now()) {
		t.Errorf("Time %v, not between %v and now", e.Time, start)
	}
	if c := s.Counters(); c.OOMKills <= before.OOMKills || c.Lost != 0 {
		t.Errorf("%d kills counted, %d lost", c.OOMKills-before.OOMKills, c.Lost)
	}
	t.Logf("%+v", e)
}

// The memory of a cgroup is what its files say, with the file cache and without.
func TestCgroupMemory(t *testing.T) {
	s := open(t, Pressure)
	dir := memoryCgroup(t, 24<<20)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	watch(t, s, Watch{Figure: CgroupMemory, FD: fd, Total: 24 << 20, Below: 8 << 20, Above: 16 << 20})
	unix.Close(fd)
	if left := levels(s).Watches[0].Value; left < 23<<20 || left > 24<<20 {
		t.Errorf("%d of 24 MiB are left in an empty cgroup", left)
	}
	_ = helper(t, "oom", "np-oom-victim", dir).Run()
	wantEvent(t, s, Event{Kind: Crossing, On: true, Seq: 1, Limit: 8 << 20})
	wantEvent(t, s, Event{Kind: Crossing, Seq: 2, Limit: 16 << 20})
	eventually(t, "the cgroup removed", func() bool { return unix.Rmdir(dir) == nil })
	wantEvent(t, s, Event{Kind: Stale, On: true, Seq: 1})
}

// File cache that is not in use is no memory in use.
func TestCgroupMemoryWithoutCache(t *testing.T) {
	s := open(t, Pressure)
	defer thrash(t)()
	parent := "/sys/fs/cgroup/memory"
	if _, err := os.Stat(filepath.Join(parent, "memory.stat")); err != nil {
		parent = "/sys/fs/cgroup"
	}
	dir := filepath.Join(parent, fmt.Sprintf("nodeprobe-test-%d", os.Getpid()))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	watch(t, s, Watch{Figure: CgroupMemory, FD: fd, Total: 24 << 20, Below: never, Above: never})
	eventually(t, "cache that fills the cgroup and is not counted", func() bool {
		if _, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err != nil { // it adds up
			t.Fatal(err)
		}
		usage := int64(0)
		for _, file := range []string{"memory.current", "memory.usage_in_bytes"} {
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				usage, _ = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			}
		}
		if err := s.Refresh(); err != nil {
			t.Fatal(err)
		}
		left := levels(s).Watches[0].Value
		return usage > 20<<20 && left > 4<<20 && left < 24<<20
	})
}

// What is no directory of a cgroup with a memory controller is refused.
func TestCgroupMemoryRefused(t *testing.T) {
	s := open(t, Pressure)
	for _, path := range []string{"/", "/proc"} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Watch([]Watch{{Figure: CgroupMemory, FD: fd, Total: 1, Below: never, Above: never}})
		unix.Close(fd)
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestReadEventAllocatesNothing(t *testing.T) {
	s := open(t, OOM)
	dir := memoryCgroup(t, 24<<20)
	const victims = 3
	for range victims {
		_ = helper(t, "oom", "np-oom-victim", dir).Run()
	}
	if n := s.Counters().OOMKills; n < victims {
		t.Fatalf("%d kills of %d", n, victims)
	}
	timeout := time.AfterFunc(20*time.Second, func() { _ = s.Close() })
	defer timeout.Stop()
	var e Event
	// AllocsPerRun calls it once more, to warm up.
	n := testing.AllocsPerRun(victims-1, func() {
		if err := s.ReadEvent(&e); err != nil {
			t.Error(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCgroupReclaim(t *testing.T) {
	s := open(t, Reclaim)
	before := s.Counters()
	stop := thrash(t)
	defer stop()
	eventually(t, "cgroup reclaim", func() bool {
		c := s.Counters()
		return c.CgroupReclaims-before.CgroupReclaims >= 10 && c.CgroupReclaimStall > before.CgroupReclaimStall
	})
	stop()
	c := s.Counters()
	t.Logf("%d reclaims, %v", c.CgroupReclaims-before.CgroupReclaims, c.CgroupReclaimStall-before.CgroupReclaimStall)
}

// thrash starts a process that reads a file of 48 MiB in a cgroup of 24 MiB, and
// returns what ends it.
func thrash(t testing.TB) (stop func()) {
	t.Helper()
	dir := memoryCgroup(t, 24<<20)
	path := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(path, []byte(strings.Repeat("nodeprobe", 48<<20/9)), 0o600); err != nil {
		t.Fatal(err)
	}
	// Pages in the page cache are charged to who brought them there.
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fsync(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	cmd := helper(t, "thrash", dir, path)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var stopped bool
	return func() {
		if stopped {
			return
		}
		stopped = true
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}
