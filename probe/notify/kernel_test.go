package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
	"github.com/nodeprobe/nodeprobe/probe/mount"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The tests of this file are about what the running kernel does.

// ear runs a Notifier and keeps what it hears.
type ear struct {
	t     *testing.T
	n     *Notifier
	heard chan Cause
}

func listen(t *testing.T, cfg Config) *ear {
	t.Helper()
	e := &ear{t, newTestNotifier(t, cfg), make(chan Cause, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ready := make(chan struct{})
	poll := e.n.poll
	e.n.poll = func(fds []unix.PollFd, timeout int) (int, error) {
		select {
		case <-ready:
		default:
			close(ready)
		}
		return poll(fds, timeout)
	}
	go func() { done <- e.n.Run(ctx, func(c Cause) { e.heard <- c }) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	return e
}

// expect waits until until is true of what was heard of.
func (e *ear) expect(want Cause, until func() bool) {
	e.t.Helper()
	hung := time.After(time.Minute) // for a readable failure, not a promise
	for {
		select {
		case got := <-e.heard:
			if got == want && until() {
				return
			}
		case <-hung:
			e.t.Fatalf("not notified of %s; sources: %+v", want, e.n.Sources())
		}
	}
}

func (e *ear) source(name string) Source {
	e.t.Helper()
	for _, s := range e.n.Sources() {
		if s.Name == name {
			return s
		}
	}
	e.t.Fatalf("no source %s", name)
	return Source{}
}

// hasCapability tells whether this process has a capability, by its number.
func hasCapability(t *testing.T, number int) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	probetest.Must(t, err)
	_, rest, _ := strings.Cut(string(b), "CapEff:\t")
	text, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(text, 16, 64)
	probetest.Must(t, err)
	return set&(1<<number) != 0
}

func TestStallWindow(t *testing.T) {
	if os.Geteuid() != 0 {
		probetest.Lacking(t, "triggers need root before Linux 6.5")
	}
	n := newTestNotifier(t, Config{Procfs: "/proc", Sysfs: "/sys", Stalls: []StallTrigger{
		{Resource: probe.MemoryResource, Share: 0.05},
		{Resource: probe.MemoryResource, Full: true, Share: 1},
		{Resource: probe.IO, Share: 1e-9},
		{Resource: probe.CPU, Share: 0.9},
	}})
	window := "2s"
	if hasCapability(t, unix.CAP_SYS_RESOURCE) {
		window = "500ms"
	}
	want := []string{
		"/proc/pressure/memory, some 5% of " + window, "/proc/pressure/memory, full 100% of " + window,
		"/proc/pressure/io, some 1e-07% of " + window, "/proc/pressure/cpu, some 90% of " + window,
	}
	var got []string
	for _, s := range n.Sources()[:4] {
		if !s.Active {
			probetest.Lacking(t, "%s: %v", s.Name, s.Err)
		}
		got = append(got, s.Detail)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}

// A container gets the host's /proc read-only, and its own not.
func TestStallReadOnlyProc(t *testing.T) {
	procfs := filepath.Join(t.TempDir(), "proc")
	probetest.InMountNamespace(t, func(string) error {
		if err := errors.Join(
			os.Mkdir(procfs, 0o700),
			unix.Mount("/proc", procfs, "", unix.MS_BIND, ""),
			unix.Mount("", procfs, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		); err != nil {
			return err
		}
		s := stallSource{trigger: StallTrigger{Resource: probe.MemoryResource, Share: 0.05}, procfs: procfs}
		if _, _, err := s.openIn(procfs); !errors.Is(err, unix.EROFS) {
			t.Errorf("read-only /proc: got %v, want EROFS", err)
		}
		fd, detail, err := s.open()
		if err != nil {
			return err
		}
		if !strings.HasPrefix(detail, "/proc/pressure/memory") {
			t.Errorf("got %q, want the other /proc", detail)
		}
		return unix.Close(fd)
	})
}

// TestNotifierMemoryStall makes a stall for real.
func TestNotifierMemoryStall(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	group := probetest.NewCgroup(t, "nodeprobe-test-stall")
	e := listen(t, Config{
		Procfs: "/proc", Sysfs: "/sys",
		Stalls: []StallTrigger{{Resource: probe.MemoryResource, Share: 0.01}},
	})
	source := e.source("pressure_memory_some")
	if !source.Active {
		probetest.Lacking(t, "%v", source.Err)
	}
	if !group.V2 {
		// Without swap, only file cache can be reclaimed and missed again.
		group.Write(t, "memory.limit_in_bytes", "64M")
	} else {
		group.Write(t, "memory.high", "16M") // above it, the kernel makes tasks wait
	}
	start := time.Now()
	group.Start(t, "stall")
	e.expect(MemoryStall, func() bool { return true })
	t.Logf("%s: first POLLPRI %s after the hog was started", source.Detail, time.Since(start).Round(time.Millisecond))
}

func TestNotifierMounts(t *testing.T) {
	dir := t.TempDir()
	point := filepath.Join(dir, "mnt")
	probetest.Must(t, os.Mkdir(point, 0o700))
	probetest.InMountNamespace(t, func(procfs string) error {
		e := listen(t, Config{Procfs: procfs, Sysfs: "/sys", Stalls: []StallTrigger{}})
		find := func() mount.Info {
			t.Helper()
			m, err := mount.Find(procfs, "/", filepath.Join(point, "below"))
			if err != nil {
				t.Error(err)
			}
			return m
		}
		under := find()
		for _, step := range []struct {
			do  func() error
			see func(mount.Info) bool
		}{
			{
				func() error { return unix.Mount("none", point, "tmpfs", 0, "") },
				func(m mount.Info) bool { _, ro := m.ReadOnly(); return m.MountPoint == point && !ro },
			},
			{
				func() error { return unix.Mount("", point, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
				func(m mount.Info) bool {
					option, ro := m.ReadOnly()
					return m.MountPoint == point && ro && option == "ro"
				},
			},
			{
				func() error { return unix.Unmount(point, 0) },
				func(m mount.Info) bool { return m == under },
			},
		} {
			if err := step.do(); err != nil {
				return err
			}
			e.expect(Mounts, func() bool { return step.see(find()) })
		}

		// A storm: whatever is left out, the last change is not.
		for i := range 200 {
			if err := errors.Join(unix.Mount("none", point, "tmpfs", 0, ""), unix.Unmount(point, 0)); err != nil {
				return fmt.Errorf("mount %d: %w", i, err)
			}
		}
		if err := unix.Mount("last", point, "tmpfs", 0, ""); err != nil {
			return err
		}
		notified := 0
		e.expect(Mounts, func() bool { notified++; return find().Source == "last" })
		t.Logf("notified %d times of 401 changes", notified)
		return nil
	})
}

func TestNotifierLeavesNothing(t *testing.T) {
	n := newTestNotifier(t, Config{Procfs: "/proc", Sysfs: "/sys"})
	n.Refresh() // before Run: nothing to ask
	before, goroutines := openFiles(t), runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		running, done := make(chan struct{}), make(chan error)
		n.poll = func(fds []unix.PollFd, timeout int) (int, error) {
			if running != nil {
				close(running)
				running = nil
			}
			return unix.Poll(fds, timeout)
		}
		started := running
		go func() { done <- n.Run(ctx, func(Cause) {}) }()
		<-started
		if err := n.Run(ctx, func(Cause) {}); !errors.Is(err, errRunning) {
			t.Errorf("second Run: got %v, want %v", err, errRunning)
		}
		go n.Refresh()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		n.Refresh()
		n.Sources()
	}
	if diff := cmp.Diff(before, openFiles(t)); diff != "" {
		t.Errorf("open files (-before +after):\n%s", diff)
	}
	for runtime.NumGoroutine() > goroutines { // those that have nothing left to do but end
		runtime.Gosched()
	}
}

// openFiles returns what our descriptors are open on.
func openFiles(t *testing.T) map[string]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	probetest.Must(t, err)
	files := map[string]string{}
	for _, entry := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil {
			files[entry.Name()] = target
		}
	}
	return files
}

// A write to a limit is heard of, though it be the same value as before.
func TestNotifierHearsOfTaskLimits(t *testing.T) {
	for _, name := range []string{"pid_max", "threads-max"} {
		path := filepath.Join("/proc/sys/kernel", name)
		now, err := os.ReadFile(path)
		probetest.Must(t, err)
		open, err := os.Open(path) // as the sampler has it, which keeps the inode
		probetest.Must(t, err)
		defer open.Close()
		e := listen(t, Config{Procfs: "/proc", Sysfs: "/sys", Stalls: []StallTrigger{}})
		if err := os.WriteFile(path, now, 0); err != nil {
			probetest.Lacking(t, "%v", err)
		}
		e.expect(Limits, func() bool { return true })
	}
}

func TestHog(t *testing.T) { probetest.Hog(t) }
