package process

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// Memory keeps the pages of this process in memory, so that it goes on at its own pace
// while the kernel drops those of everybody else and reads them again from the disk.
//
// What has been used is locked, and from then on what is used for the first time: program,
// heap, stacks and maps. What was never used is not read in for it (MCL_ONFAULT, Linux
// 4.4), so the program should do once what it will have to do later, see [Memory.Settle].
//
// How much that may be is bounded by what is resident. RLIMIT_MEMLOCK cannot do that: it
// counts address space, of which the Go runtime reserves more than 1 GB, and a program that
// exceeds it is denied memory, which ends a Go program. So memory is locked only where that
// limit does not apply, and where the kernel does not deny memory for another reason: see
// [ErrOvercommit].
type Memory struct {
	limit     int64 // bytes; 0 locks nothing
	log       *slog.Logger
	program   []mapping    // whose page faults are narrow
	rehearsed atomic.Int64 // major faults until then; negative before

	complete, incomplete atomic.Int64 // rehearsals

	mu     sync.Mutex
	locked bool
	bytes  int64 // that were locked when that was looked at last
	reason error // why memory is not locked
}

// MemoryState is what is locked, and why not.
type MemoryState struct {
	Limit  int64 // how many bytes may be locked; 0 locks nothing
	Locked bool
	Bytes  int64 // that are locked, at most a minute ago; of pages that processes share, the proportional part
	// Err is why memory is not locked though it should be, with a remedy. It is nil while
	// the process is starting.
	Err error
	// MajorFaults is how often the process has waited for a page from the disk since it
	// rehearsed.
	MajorFaults int64
}

// NewMemory returns a Memory that locks at most limit bytes; 0 locks nothing. It raises
// RLIMIT_MEMLOCK where it may, for which capabilities are needed that may be dropped after
// that: see [FindPrivileges].
//
// It has the kernel use small pages for this process from now on. Where huge pages are
// always used (Debian, RHEL), khugepaged makes one of 2 MiB wherever a page of the heap is,
// locked or not: 2 MiB of them became 16 within a minute of a shortage.
func NewMemory(limit int64, log *slog.Logger) *Memory {
	m := &Memory{limit: limit, log: log}
	m.rehearsed.Store(-1)
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) // EINVAL where there are no huge pages
	if limit > 0 {
		raiseMemlock()
	}
	return m
}

// ErrLockDenied is wrapped by the error of a process that may not lock its memory.
var ErrLockDenied = errors.New("give it CAP_IPC_LOCK (in a pod: capabilities.add: [IPC_LOCK])" +
	" or an unlimited RLIMIT_MEMLOCK (systemd: LimitMEMLOCK=infinity), or set lockedMemoryLimit to \"0\"")

// LockRemedy splits the error of a [MemoryState] or of [LockAllowed] into the reason and
// what helps, which is "" if the reason says so.
func LockRemedy(err error) (reason, remedy string) {
	for _, known := range []error{ErrLockDenied, ErrOvercommit} {
		if reason, found := strings.CutSuffix(err.Error(), "; "+known.Error()); found {
			return reason, known.Error()
		}
	}
	return err.Error(), ""
}

// Settle is called when starting is over. It returns memory that only starting needed, as
// [Trim] does, locks what remains, and what will be used, and calls rehearse, which is to
// do once what will have to be done later. Major faults are counted from then on.
//
// Without the right to lock memory it returns an error that wraps [ErrLockDenied], where
// that is not safe one that wraps [ErrOvercommit], before Linux 4.4 one that wraps
// [errors.ErrUnsupported]; all are in the state, too. Then memory is trimmed all the same, and rehearse is not called: that would only fetch what was just
// returned.
func (m *Memory) Settle(rehearse func()) error {
	defer func() { m.rehearsed.Store(majorFaults()) }()
	failed := func(what string, err error) {
		if err != nil {
			m.log.Debug(what, "err", err)
		}
	}
	boundHeap()
	program, err := programMappings()
	failed("cannot find the program's mappings", err)
	if m.limit == 0 {
		failed("cannot trim memory", trim(program))
		return nil
	}
	err = LockAllowed()
	if err == nil {
		m.program = program
		failed("cannot narrow page faults", narrowFaults(program))
	}
	failed("cannot trim memory", trim(program))
	if err == nil {
		err = mlockall()
	}
	m.mu.Lock()
	m.locked, m.reason = err == nil, err
	m.mu.Unlock()
	if err == nil {
		rehearse()
		fillHeap()
		m.Enforce()
	}
	return err
}

// Rehearsed counts a rehearsal that has ended, with an error if a step of it failed: what
// that step would have used is not in memory yet.
func (m *Memory) Rehearsed(err error) {
	if err != nil {
		m.incomplete.Add(1)
	} else {
		m.complete.Add(1)
	}
}

// Widen is called when the process has done everything that it does from time to time,
// some minutes after [Memory.Settle], which made the kernel map single pages of the program
// where it would have mapped their surroundings, too. That costs memory of the kernel.
func (m *Memory) Widen() {
	if err := widenFaults(m.program); err != nil {
		m.log.Debug("cannot widen page faults", "err", err)
	}
	m.program = nil
}

func mlockall() error {
	switch err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("lock memory: %w: it needs Linux 4.4", errors.ErrUnsupported)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("lock memory: mlockall: %w", err)
	default:
		return fmt.Errorf("lock memory: mlockall: %w; %w", err, ErrLockDenied)
	}
}

// LockAllowed returns an error that wraps [ErrLockDenied] unless this process may lock
// any amount of memory, now and later, and one that wraps [ErrOvercommit] unless it is safe
// to do so. It raises RLIMIT_MEMLOCK if it may.
func LockAllowed() error {
	raiseMemlock()
	if !memlockUnlimited() {
		if err := tryLock(); err != nil {
			return err
		}
	}
	return overcommits()
}

func tryLock() error {
	// CAP_IPC_LOCK does not count in a user namespace. So it is not looked for but used:
	// to lock more address space than the limit, at which there is no memory.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("read RLIMIT_MEMLOCK: %w", err)
	}
	size := min(limit.Cur, memlockEnough) + uint64(os.Getpagesize())
	reserved, err := unix.Mmap(-1, 0, int(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_LOCKED)
	if err != nil {
		return tryLockError(limit.Cur, err)
	}
	return os.NewSyscallError("munmap", unix.Munmap(reserved))
}

// tryLockError returns what the failure to lock more than RLIMIT_MEMLOCK means.
func tryLockError(limit uint64, err error) error {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("not permitted to lock memory: RLIMIT_MEMLOCK is %d bytes; %w", limit, ErrLockDenied)
	}
	return fmt.Errorf("lock memory: mmap of a page more than RLIMIT_MEMLOCK, which is %d bytes: %w", limit, err)
}

// raiseMemlock removes RLIMIT_MEMLOCK: the hard limit with CAP_SYS_RESOURCE, the soft one
// where the hard one allows it.
func raiseMemlock() {
	if !memlockUnlimited() {
		_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	}
}

// memlockEnough is an RLIMIT_MEMLOCK as good as none: there is less address space than
// twice that, and so none to lock more, or much less use for it.
const memlockEnough = min(1<<46, math.MaxInt>>1)

func memlockUnlimited() bool {
	var limit unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur >= memlockEnough
}

// Enforce looks at how much is locked, and unlocks all of it, for good, if that is more
// than the limit, which it logs. It is to be called about once a minute: reading
// /proc/self/smaps_rollup takes 60 us, and ten times that before [Memory.Widen].
func (m *Memory) Enforce() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.locked {
		return
	}
	locked, err := lockedBytes(smapsRollup)
	if err != nil {
		m.log.Warn("cannot bound locked memory", once.Failure, "locked memory", "err", err)
		return
	}
	m.bytes = locked
	if locked <= m.limit {
		return
	}
	if err := unix.Munlockall(); err != nil { // no kernel does that
		m.log.Warn("cannot unlock memory", "err", err)
		return
	}
	m.locked, m.bytes = false, 0
	m.reason = fmt.Errorf("%d bytes were locked, and the limit is %d bytes: raise lockedMemoryLimit, and the"+
		" memory limit of the cgroup to a third more than that, and restart nodeprobe", locked, m.limit)
	m.log.Warn("memory is no longer locked", "err", m.reason)
}

// State returns what was locked when [Memory.Enforce] was called last. It reads no file.
func (m *Memory) State() MemoryState {
	m.mu.Lock()
	s := MemoryState{Limit: m.limit, Locked: m.locked, Bytes: m.bytes, Err: m.reason}
	m.mu.Unlock()
	if before := m.rehearsed.Load(); before >= 0 {
		s.MajorFaults = majorFaults() - before
	}
	return s
}

// majorFaults returns how many page faults of this process have waited for I/O.
func majorFaults() int64 {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return int64(usage.Majflt) //nolint:unconvert // an int32 on some machines
}

const smapsRollup = "/proc/self/smaps_rollup" // Linux 4.14

// lockedBytes returns how much memory of this process is locked, from a file like
// smapsRollup, and where that cannot be read, how much is resident, which is not less.
func lockedBytes(rollup string) (int64, error) {
	text, err := os.ReadFile(rollup)
	if err == nil {
		var locked int64
		if locked, err = parseLocked(text); err == nil {
			return locked, nil
		}
	}
	if resident, ok := ResidentBytes(); ok {
		return resident, nil
	}
	return 0, fmt.Errorf("read locked memory: %w", err)
}

// parseLocked returns the value of the second of these lines, in bytes, or of the first if
// that is less:
//
//	Rss:               16728 kB
//	Locked:            14080 kB
//
// Before Linux 5.0, what is locked is counted again for each locked mapping that
// follows, and there may be thousands: see [narrowFaults].
func parseLocked(rollup []byte) (int64, error) {
	resident := int64(math.MaxInt64)
	for line := range bytes.Lines(rollup) {
		name, value, _ := strings.Cut(string(bytes.TrimSpace(line)), ":")
		if name != "Rss" && name != "Locked" {
			continue
		}
		kilobytes, unit := strings.CutSuffix(value, " kB")
		n, err := strconv.ParseInt(strings.TrimSpace(kilobytes), 10, 53)
		if err != nil || !unit || n < 0 {
			return 0, fmt.Errorf("%q in smaps_rollup", bytes.TrimSpace(line))
		}
		if name == "Locked" {
			return min(n<<10, resident), nil
		}
		resident = n << 10
	}
	return 0, errors.New("no line \"Locked:\" in smaps_rollup")
}
