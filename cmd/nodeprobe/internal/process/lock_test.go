package process

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

func TestParseLocked(t *testing.T) {
	const header = "00400000-7ffe864de000 ---p 00000000 00:00 0                              [rollup]\nRss:               16728 kB\n"
	for _, test := range []struct {
		name, rollup string
		want         int64
		err          string
	}{
		{"locked", header + "SwapPss:               0 kB\nLocked:            16560 kB\n", 16560 << 10, ""},
		{"more than is resident, before Linux 5.0", header + "Locked:         61234567 kB\n", 16728 << 10, ""},
		{"nothing locked", header + "Locked:                0 kB\n", 0, ""},
		{"last line without end", "Locked: 4 kB", 4 << 10, ""},
		{"no line", header, 0, "no line \"Locked:\""},
		{"another unit", "Locked: 4 MB\n", 0, `"Locked: 4 MB"`},
		{"no unit", "Locked: 4\n", 0, `"Locked: 4"`},
		{"negative", "Locked: -4 kB\n", 0, `"Locked: -4 kB"`},
		{"beyond an int64 of bytes", "Locked: 9007199254740992 kB\n", 0, "9007199254740992"},
		{"empty", "", 0, "no line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseLocked([]byte(test.rollup))
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %d, %v; want %d, %q", got, err, test.want, test.err)
			}
		})
	}
}

// What cannot be read, or understood, is no reason to leave locked memory unbounded.
func TestLockedBytesFallback(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "smaps_rollup")
	if err := os.WriteFile(garbage, []byte("Locked: much\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"none": filepath.Join(t.TempDir(), "none"), "a directory": t.TempDir(), "garbage": garbage} {
		if got, err := lockedBytes(file); err != nil || got < 1<<20 {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}

// A bound that cannot be enforced is logged once.
func TestNothingToReadFrom(t *testing.T) {
	if !alone(t, unix.CAP_IPC_LOCK) {
		return
	}
	var log testtree.Log
	m := NewMemory(1<<30, once.Logger(slog.New(slog.NewTextHandler(&log, nil))))
	if err := m.Settle(func() {}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		m.Enforce()
	}
	if !m.State().Locked || strings.Count(log.String(), "cannot bound locked memory") != 1 {
		t.Errorf("%+v, log: %s", m.State(), &log)
	}
}

func TestNoHugePages(t *testing.T) {
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0) })
	NewMemory(0, slog.New(slog.DiscardHandler))
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	// Since Linux 5.0. A kernel without huge pages says 0 as well.
	if bytes.Contains(status, []byte("THP_enabled:\t1")) {
		t.Error("the kernel may use huge pages")
	}
}

// Without a limit, nothing is locked or rehearsed, and the metrics are not there.
func TestNothingToLock(t *testing.T) {
	m := NewMemory(0, slog.New(slog.DiscardHandler))
	if err := m.Settle(func() { t.Error("rehearsed") }); err != nil {
		t.Error(err)
	}
	m.Enforce()
	m.Widen()
	if s := m.State(); s != (MemoryState{MajorFaults: s.MajorFaults}) {
		t.Errorf("%+v", s)
	}
	got := gather(t, m)
	if got["nodeprobe_locked_bytes"] != nil || got["nodeprobe_rehearsals_total"] != nil || got["nodeprobe_major_faults_total"] == nil {
		t.Errorf("metrics: %v", got)
	}
}

// Both results are there before the first rehearsal: what rises from 0 can be alerted on.
func TestRehearsed(t *testing.T) {
	m := NewMemory(1<<30, slog.New(slog.DiscardHandler))
	check := func(success, incomplete float64) {
		t.Helper()
		got := map[string]float64{}
		for _, metric := range gather(t, m)["nodeprobe_rehearsals_total"].GetMetric() {
			got[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
		}
		if want := map[string]float64{"success": success, "incomplete": incomplete}; !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check(0, 0)
	m.Rehearsed(errors.New("no connection"))
	check(0, 1)
	m.Rehearsed(nil)
	check(1, 1)
}

// What is locked stays so while the heap grows and shrinks and threads are added, by a
// process that has CAP_IPC_LOCK and nothing else, and less RLIMIT_MEMLOCK than one thread
// needs.
func TestLocked(t *testing.T) {
	if !alone(t, unix.CAP_IPC_LOCK) {
		return
	}
	limitMemlock(t, 64<<10)
	var log testtree.Log
	m := NewMemory(1<<30, slog.New(slog.NewTextHandler(&log, nil)))
	rehearsed := false
	if err := m.Settle(func() { rehearsed = true }); err != nil || !rehearsed {
		t.Fatalf("rehearsed: %v, %v", rehearsed, err)
	}
	before := m.State()
	if !before.Locked || before.Bytes < 1<<20 || before.Err != nil {
		t.Errorf("after the lock: %+v", before)
	}
	large := make([]byte, 64<<20)
	for i := range large {
		large[i] = 1
	}
	if err := KeepThreads(30); err != nil {
		t.Error(err)
	}
	m.Enforce()
	if s := m.State(); !s.Locked || s.Bytes < int64(len(large)) {
		t.Errorf("with a heap of 64 MiB: %+v", s)
	}
	if got := gather(t, m)["nodeprobe_locked_bytes"].GetMetric()[0].GetGauge().GetValue(); got < float64(len(large)) {
		t.Errorf("nodeprobe_locked_bytes is %v", got)
	}
	full := m.State().Bytes // with the race detector, its shadow stays
	runtime.KeepAlive(large)
	debug.FreeOSMemory()
	debug.FreeOSMemory() // of what was still in use when the first began
	m.Enforce()
	if s := m.State(); !s.Locked || s.Bytes > full-32<<20 {
		t.Errorf("after 64 MiB of garbage were given back: %+v, before that: %d bytes", s, full)
	}
	m.Widen()
	if log.String() != "" {
		t.Errorf("logged: %s", &log)
	}
}

// A process without the right says what helps, and goes on as it was.
func TestLockDenied(t *testing.T) {
	if !alone(t) {
		return
	}
	limitMemlock(t, 64<<10)
	m := NewMemory(1<<30, slog.New(slog.DiscardHandler))
	err := m.Settle(func() { t.Error("rehearsed") })
	if !errors.Is(err, ErrLockDenied) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK is 65536 bytes; give it CAP_IPC_LOCK") {
		t.Errorf("got %v", err)
	}
	m.Enforce()
	m.Widen()
	if s := m.State(); s.Locked || s.Bytes != 0 || !errors.Is(s.Err, ErrLockDenied) {
		t.Errorf("state: %+v", s)
	}
	if got := gather(t, m)["nodeprobe_locked_bytes"].GetMetric()[0].GetGauge().GetValue(); got != 0 {
		t.Errorf("nodeprobe_locked_bytes is %v", got)
	}
	if n, err := lockedBytes(smapsRollup); err != nil || n != 0 {
		t.Errorf("%d bytes are locked, %v", n, err)
	}
	if large := make([]byte, 64<<20); len(large) != cap(large) {
		t.Error("no heap")
	}
}

// A limit beyond all address space is as good as none.
func TestLargeMemlock(t *testing.T) {
	if permitted, err := permittedCapabilities(); err != nil || !capSysResource.in(permitted) {
		t.Skip("needs CAP_SYS_RESOURCE")
	}
	if !alone(t, unix.CAP_SYS_RESOURCE) {
		return
	}
	runtime.LockOSThread()
	limitMemlock(t, 1<<60)
	if err := setCapabilities(0, 0); err != nil { // or it would be removed
		t.Fatal(err)
	}
	if err := LockAllowed(); errors.Is(err, ErrLockDenied) {
		t.Error(err)
	}
}

// The right is missing only if the kernel says so.
func TestTryLockError(t *testing.T) {
	for errno, denied := range map[syscall.Errno]bool{unix.EAGAIN: true, unix.EPERM: true, unix.ENOMEM: false} {
		err := tryLockError(65536, errno)
		if errors.Is(err, ErrLockDenied) != denied || !strings.Contains(err.Error(), "65536 bytes") || !denied && !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// More than the limit is unlocked once, and for good.
func TestLockLimit(t *testing.T) {
	if !alone(t, unix.CAP_IPC_LOCK) {
		return
	}
	const limit = 128 << 20
	var log testtree.Log
	m := NewMemory(limit, slog.New(slog.NewTextHandler(&log, nil)))
	if err := m.Settle(func() {}); err != nil || !m.State().Locked {
		t.Fatalf("not locked: %v", err)
	}
	large := make([]byte, limit)
	for i := range large {
		large[i] = 1
	}
	for range 2 {
		m.Enforce()
		s := m.State()
		if s.Locked || s.Bytes != 0 || s.Err == nil || !strings.Contains(s.Err.Error(), "the limit is 134217728 bytes: raise lockedMemoryLimit") {
			t.Errorf("state: %+v", s)
		}
	}
	if n, err := lockedBytes(smapsRollup); err != nil || n != 0 {
		t.Errorf("%d bytes are locked, %v", n, err)
	}
	another := make([]byte, 8<<20) // is not locked either
	for i := range another {
		another[i] = 1
	}
	if n, err := lockedBytes(smapsRollup); err != nil || n != 0 {
		t.Errorf("%d new bytes are locked, %v", n, err)
	}
	runtime.KeepAlive(large)
	runtime.KeepAlive(another)
	if strings.Count(log.String(), "memory is no longer locked") != 1 {
		t.Errorf("log: %s", &log)
	}
}

// A page that is read from the disk is counted, unless that was in the rehearsal.
func TestMajorFaults(t *testing.T) {
	once := func() {
		path := filepath.Join(t.TempDir(), "file")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
			t.Fatal(err)
		}
		data, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(data)
		if data[4096] != 0 {
			t.Error("not what was written")
		}
	}
	fault := func() {
		before := majorFaults()
		for range 20 { // the kernel may keep pages that are on their way to a list
			if once(); majorFaults() > before {
				return
			}
		}
		t.Skip(t.TempDir() + " is not on a disk")
	}
	m := NewMemory(0, slog.New(slog.DiscardHandler))
	if fault(); m.State().MajorFaults != 0 {
		t.Errorf("%d before the rehearsal", m.State().MajorFaults)
	}
	m.rehearsed.Store(majorFaults())
	before := m.State().MajorFaults
	if fault(); m.State().MajorFaults <= before {
		t.Error("not counted")
	}
}

// The capability is kept only where RLIMIT_MEMLOCK applies, and memory is to be locked.
func TestKeepIPCLock(t *testing.T) {
	if !alone(t, unix.CAP_IPC_LOCK) {
		return
	}
	limitMemlock(t, 64<<10)
	for lock, want := range map[bool]bool{true: true, false: false} {
		p, err := FindPrivileges(func() error { return nil }, lock)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(p.String(), "CAP_IPC_LOCK (to keep its memory locked)"); got != want {
			t.Errorf("lock %v: kept %s", lock, p)
		}
	}
}

// alone reports whether this is a process of its own for the test, with no capability but
// those that are given. If it is not, alone runs that, and its result is this test's.
func alone(t *testing.T, caps ...uintptr) bool {
	t.Helper()
	const variable = "NODEPROBE_TEST_ALONE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	permitted, err := permittedCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	if need := uint64(1<<unix.CAP_SETPCAP | 1<<unix.CAP_IPC_LOCK); permitted&need != need && os.Getenv("NODEPROBE_REQUIRE") != "1" {
		t.Skip("needs CAP_SETPCAP and CAP_IPC_LOCK")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	var out []byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends, without these capabilities
		for c := uintptr(0); unix.Prctl(unix.PR_CAPBSET_READ, c, 0, 0, 0) == nil; c++ {
			if !slices.Contains(caps, c) {
				if err = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
					return
				}
			}
		}
		out, err = cmd.CombinedOutput()
	}()
	<-done
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	return false
}

// limitMemlock lowers RLIMIT_MEMLOCK, which needs no right.
func limitMemlock(t *testing.T, bytes uint64) {
	t.Helper()
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: bytes}); err != nil {
		t.Fatal(err)
	}
}
