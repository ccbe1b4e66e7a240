// Package bpf counts in the kernel what /proc does not show, or shows too late: forks,
// OOM kills, the time that tasks lose to reclaiming memory, and block I/O errors. And it
// makes the kernel compare with thresholds what is left of PIDs, memory and
// filesystems: see [Sensor.Watch].
//
// It does so with small programs on BTF tracepoints, and one that a timer runs. The
// timer sleeps as long as no level can reach its threshold meanwhile, between a quarter
// of a millisecond and a second: DELAYS.md has how late what is noticed, by filesystem and
// limit. Only an OOM kill, or a level that crosses a threshold, wakes
// user space ([Sensor.ReadEvent]); everything else is in memory that it shares with the
// kernel ([Sensor.Counters], [Sensor.Levels]). An event is a hint to look, not the
// evidence.
//
// # Kernels
//
// The programs are for amd64 and arm64, and need a kernel built with
// CONFIG_DEBUG_INFO_BTF, and CAP_BPF with CAP_PERFMON, or root. Everything here is
// optional to the daemon: each signal is attached by itself, and what a kernel or a
// container lacks costs only the signals concerned (see [Sensor.Hooks]).
//
//	signal    hook                                  Linux   without it
//	Tasks     tp_btf/task_newtask,                  5.8     no count of tasks, forks and exits;
//	          tp_btf/sched_process_free                     no watch on PIDs
//	OOM       tp_btf/mark_victim                    5.8     no OOM kills. Before 6.9 the kernel passes
//	                                                        a thread ID: events lack Comm and CgroupID
//	Reclaim   tp_btf/mm_vmscan_direct_reclaim_*,    5.8     no reclaim counters, and OOM kills have
//	          tp_btf/mm_vmscan_memcg_reclaim_*              no Scope (the latter need CONFIG_MEMCG)
//	BlockIO   tp_btf/block_rq_error                 5.18    tp_btf/block_rq_complete instead, which
//	                                                        runs for each request (5.8)
//	Pressure  bpf_timer/tick                        5.15    no watches but those on PIDs: other limits
//	                                                        are noticed at the next sample
//
// Of what the timer compares, memory, PIDs and filesystems stand alone: what the verifier
// refuses is left out, and costs the watches that need it.
//
//	filesystem  watched                               if the kernel shows the types of
//	ext4        bytes, inodes, whether it gave up     ext4_sb_info, journal_s
//	xfs         bytes, inodes, whether it was shut    xfs_mount
//	            down
//	btrfs       bytes, as a hint; whether it was      btrfs_fs_info, btrfs_space_info
//	            forced read-only
//	others      nothing
//
// The types of a filesystem are in its module, where it is one. They are looked up when a
// watch wants them, so the module may be loaded at any time.
//
// Before 5.11 the programs' memory counts towards RLIMIT_MEMLOCK, which Open raises if it
// may. The programs run in tests on Linux 6.18 (amd64, cgroup v1 beside v2), and under qemu
// on Debian's 6.1 and 6.12 (amd64 and arm64, cgroup v2) and 5.10 (amd64), where limits of
// PIDs alone are watched. 5.15 has not been run. What they look for is checked in every test
// run against the types of those and more, from 5.10 to 7.2: KERNELS.md has what works where.
package bpf

import (
	"errors"
	"os"
	"sync"
	"time"
)

// ErrDisabled is the Err of every Hook if Options.Disabled is set.
var ErrDisabled = errors.New("turned off by configuration")

// Options configures a Sensor. The zero value suits a daemon.
type Options struct {
	// Disabled keeps Open from making any bpf(2) call. The Sensor then works, but
	// has no signals.
	Disabled bool
	// BTF is the file with the kernel's types, "" for /sys/kernel/btf/vmlinux. It
	// must describe the running kernel, and cannot replace the kernel's own BTF,
	// which attaching programs needs.
	BTF string
}

// Sensor is the set of programs that are attached to the running kernel. They
// run until Close or the end of the process, whichever comes first; nothing is
// pinned.
//
// Its methods may be called from several goroutines, ReadEvent from one at a
// time.
type Sensor struct {
	hooks  []Hook
	has    SignalSet
	kernel kernel

	closed chan struct{}
	// close makes a second Close return what the first did.
	close func() error
}

// Open loads and attaches the programs, each signal by itself. It cannot fail, but
// possibly nothing is attached: see [Sensor.Hooks]. The caller must Close the Sensor.
//
// It takes about 30 ms, and decoding the kernel's BTF leaves 4 MiB of
// garbage: a daemon that counts its memory calls debug.FreeOSMemory once
// afterwards.
func Open(opts Options) *Sensor {
	s := newSensor()
	if opts.Disabled {
		s.refuseAll(ErrDisabled, "allow BPF in the configuration (bpf: auto)")
		return s
	}
	s.load(opts)
	return s
}

// newSensor returns a Sensor with no program loaded.
func newSensor() *Sensor {
	s := &Sensor{closed: make(chan struct{})}
	s.close = sync.OnceValue(func() error {
		close(s.closed)
		return s.kernel.close()
	})
	return s
}

// refuseAll records one reason why no program is attached.
func (s *Sensor) refuseAll(err error, remedy string) {
	for _, p := range programs() {
		s.refuse(p, err, remedy)
	}
}

func (s *Sensor) refuse(p program, err error, remedy string) {
	hook := p.hook()
	hook.Err, hook.Remedy = err, remedy
	s.hooks = append(s.hooks, hook)
}

// Hooks returns one entry per program, ordered by signal, as Open left them, also after
// Close. The caller must not change it.
func (s *Sensor) Hooks() []Hook { return s.hooks }

// Counters returns the present counters. It makes no system call and allocates nothing.
// After Close they no longer change.
//
// The signal Tasks is missing from Has until a task is created, as Counters.Tasks is not
// known before: Open creates a thread for that.
func (s *Sensor) Counters() Counters {
	c := s.kernel.counters()
	c.Has = s.has
	if c.Tasks == 0 {
		c.Has &^= 1 << Tasks
	}
	return c
}

// ReadEvent waits for the next event and stores it in e. It returns an error that wraps
// os.ErrClosed once the Sensor is closed; if no attached signal has events, it returns
// only then. After any other error the caller may call it again. It allocates nothing.
func (s *Sensor) ReadEvent(e *Event) error {
	if !s.kernel.hasEvents() {
		<-s.closed
		return os.ErrClosed
	}
	return s.kernel.readEvent(e)
}

// ProgramStats is the kernel's account of the cost of one program.
type ProgramStats struct {
	// Signal and Name are those of the Hook.
	Signal Signal
	Name   string
	// Runs counts the runs, RunTime is how long they took together.
	Runs    uint64
	RunTime time.Duration
	// Missed counts the events for which the program did not run, as it was
	// running on that CPU already (Linux 5.12).
	Missed uint64
}

// Stats returns the cost of each attached program, in the order of Hooks. The kernel
// keeps that account only while the sysctl kernel.bpf_stats_enabled is 1 or another
// program asks for it (Linux 5.8). Stats returns nil if it never did since Open, and
// after Close.
func (s *Sensor) Stats() []ProgramStats { return s.kernel.stats() }

// Close detaches and unloads the programs, and ends ReadEvent. A second Close does
// nothing and returns the same.
func (s *Sensor) Close() error { return s.close() }
