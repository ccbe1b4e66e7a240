package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// MaxWatches is the largest number of watches at a time.
const MaxWatches = 16

// Figure is what a Watch compares with its thresholds. Less is always worse.
type Figure uint8

// The figures. The kernel's counters lag by what each CPU has not added yet: up to 125
// pages of memory, as in /proc, and 32 blocks or inodes, or twice as many as there are
// CPUs, which statfs(2) adds up, and so does the kernel's watch since Linux 5.19 on up to
// 512 CPUs. Without that FreeBytes of ext4 may be off by 256 MiB on a machine of 128 CPUs.
const (
	// PIDs is Watch.Total less the PIDs allocated in the initial PID namespace,
	// zombies included. The fork that crosses the threshold reports it.
	PIDs Figure = iota + 1
	// WorkingSet is Watch.Total less Levels.WorkingSet, in bytes: with MemTotal
	// for Total, what the kubelet calls memory.available.
	WorkingSet
	// MemAvailable is Levels.MemAvailable, in bytes.
	MemAvailable
	// FreeBytes is what an ext4 or xfs filesystem has free, in bytes: f_bfree of
	// statfs(2), so including what is reserved for root. Of a btrfs it is a hint, see
	// Level.IsHint.
	FreeBytes
	// FreeInodes is how many inodes an ext4 or xfs filesystem has free: f_ffree.
	FreeInodes
	// CgroupMemory is Watch.Total less what a cgroup and those below it use, without
	// their inactive file cache, in bytes: with the limit of the cgroup of all pods
	// for Total, what the kubelet calls allocatableMemory.available. Usage is exact;
	// the cache is as of the latest time that the kernel added it up, which it does
	// every two seconds, and whenever somebody reads memory.stat.
	CgroupMemory
)

// String returns the name used in errors and logs.
func (f Figure) String() string {
	switch f {
	case PIDs:
		return "pids"
	case WorkingSet:
		return "working_set"
	case MemAvailable:
		return "mem_available"
	case FreeBytes:
		return "free_bytes"
	case FreeInodes:
		return "free_inodes"
	case CgroupMemory:
		return "cgroup_memory"
	}
	return fmt.Sprintf("figure(%d)", uint8(f))
}

// OfFilesystem reports whether the figure is about a filesystem.
func (f Figure) OfFilesystem() bool { return f == FreeBytes || f == FreeInodes }

// hasFile reports whether a file says what the figure is about.
func (f Figure) hasFile() bool { return f.OfFilesystem() || f == CgroupMemory }

// hasTotal reports whether the figure is what is left of Watch.Total.
func (f Figure) hasTotal() bool { return f == PIDs || f == WorkingSet || f == CgroupMemory }

// Watch is a figure for the kernel to compare with thresholds.
type Watch struct {
	Figure Figure
	// FD is any open file of the filesystem, or the cgroup's directory, also one opened
	// with O_PATH. It is used only during Sensor.Watch: a Watch does not keep the
	// filesystem from being unmounted, nor the cgroup from being removed, but becomes
	// stale then.
	FD int
	// Total is the capacity, for PIDs, WorkingSet and CgroupMemory.
	Total int64
	// Pressure begins when the figure falls below Below, and ends when it is
	// back at Above, which must not be less. Neither may be further from 0 than
	// MaxFigure, nor may Total.
	Below, Above int64
	// MaxRate is the fastest that the figure is expected to fall, per second. The
	// kernel notices a crossing within a quarter of a millisecond if the fall is no
	// faster, else within a second, or 200 ms if it watches a filesystem (fallocate(2) is
	// faster than any rate). The higher it is, the more often the timer ticks near a
	// threshold. 0 means what the function [MaxRate] returns for as many CPUs as the
	// machine may ever have, which can be far more than it has.
	//
	// A figure that rests beside its threshold is looked at less often: every quarter
	// of a millisecond for 1.5 seconds, every 10 ms after nine, ten times a second after
	// half a minute. A fall that lasts longer than such a sleep is seen coming, and its
	// crossing noticed as if there was no sleep; any other one when that is over. A
	// figure that goes on moving there has 500,000 ticks, about two minutes, before the
	// timer takes no notice of that any more.
	MaxRate uint64
}

// MaxFigure is larger than any figure. Like maxRate it keeps the arithmetic in the
// kernel from overflowing.
const MaxFigure = 1 << 62

const maxRate = 1 << 43

// MaxRate returns the fastest that a figure may fall per second on a machine of so many
// CPUs: 4 GiB of memory for each of them, a million new files, and of a disk 64 GiB. No
// disk writes as much, but files of a few GiB are made in one system call, which is so
// noticed the sooner the nearer the limit is: 1 GiB above it after 16 ms.
func MaxRate(f Figure, cpus int) uint64 {
	switch f {
	case WorkingSet, MemAvailable, CgroupMemory:
		return min(4<<30*uint64(max(cpus, 1)), maxRate)
	case FreeBytes:
		return 64 << 30
	}
	return 1_000_000
}

// validate checks what can be checked without a kernel.
func (w *Watch) validate() error {
	switch {
	case w.Figure < PIDs || w.Figure > CgroupMemory:
		return errors.New("unknown figure")
	case max(w.Below, w.Above, w.Total) > MaxFigure || min(w.Below, w.Above) < -MaxFigure:
		return fmt.Errorf("pressure between %d and %d of %d: more than %d", w.Below, w.Above, w.Total, int64(MaxFigure))
	case w.Above < w.Below:
		return fmt.Errorf("pressure ends at %d, before it begins at %d", w.Above, w.Below)
	case w.Figure.hasTotal() && w.Total <= 0:
		return fmt.Errorf("total is %d", w.Total)
	case w.Figure.hasFile() && w.FD < 0:
		return fmt.Errorf("file descriptor is %d", w.FD)
	case w.MaxRate > maxRate:
		return fmt.Errorf("rate %d is more than %d", w.MaxRate, uint64(maxRate))
	}
	return nil
}

// Watch replaces all earlier watches by ws. Event.Watch and Levels.Watches are indexed
// like ws. Without watches the timer stops.
//
// A Watch with the same figure and filesystem, or cgroup, as the earlier one at its index
// keeps that one's state: if its new thresholds change that, there is an event. The others
// start as not under pressure, with an event at once if they are; events of the watches
// that they replace are no longer delivered.
//
// An error of type [WatchErrors] names the watches that this kernel or filesystem does
// not support, which the caller has to poll; the others are in force. Any other error
// means that ws is invalid or the Sensor closed (it then wraps os.ErrClosed), and
// changes nothing.
func (s *Sensor) Watch(ws []Watch) error {
	if len(ws) > MaxWatches {
		return fmt.Errorf("watch: %d watches, at most %d", len(ws), MaxWatches)
	}
	for i := range ws {
		if err := ws[i].validate(); err != nil {
			return fmt.Errorf("watch %d (%v): %w", i, ws[i].Figure, err)
		}
	}
	var refused WatchErrors
	refuse := func(i int, err error) {
		refused = append(refused, WatchError{Watch: i, Figure: ws[i].Figure, Err: err})
	}
	if err := s.lacks(Pressure); err != nil {
		// PIDs need no timer.
		noTasks := s.lacks(Tasks)
		for i := range ws {
			if ws[i].Figure != PIDs || noTasks != nil {
				refuse(i, err)
			}
		}
		if noTasks == nil {
			if err := s.kernel.watchTasks(ws, refuse); err != nil {
				return fmt.Errorf("watch: %w", err)
			}
		}
	} else if err := s.kernel.watch(ws, s.lacks(Tasks), refuse); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	if refused != nil {
		return refused
	}
	return nil
}

// lacks returns why a signal is not attached, nil if it is.
func (s *Sensor) lacks(signal Signal) error {
	for _, h := range s.hooks {
		if h.Signal == signal && h.Err != nil {
			return fmt.Errorf("%s: %w", h.Name, h.Err)
		}
	}
	return nil
}

// WatchError is why one Watch is not in force.
type WatchError struct {
	// Watch is its index.
	Watch  int
	Figure Figure
	// Err wraps errors.ErrUnsupported for what this kernel or filesystem lacks,
	// or the Err of a Hook.
	Err error
}

func (e WatchError) Error() string { return fmt.Sprintf("watch %d (%v): %v", e.Watch, e.Figure, e.Err) }

// Unwrap returns Err.
func (e WatchError) Unwrap() error { return e.Err }

// WatchErrors has an entry for each Watch that is not in force.
type WatchErrors []WatchError

func (e WatchErrors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "; ")
}

// Unwrap returns the entries.
func (e WatchErrors) Unwrap() []error {
	errs := make([]error, len(e))
	for i := range e {
		errs[i] = e[i]
	}
	return errs
}

// Edges counts how often a condition began or ended: it holds if the count is odd. The
// count never falls. Event.Seq of an edge is the new count, so if Levels is ahead of the
// latest Event, events are still to be read, or were lost.
type Edges uint64

// On reports whether the condition holds now.
func (e Edges) On() bool { return e&1 == 1 }

// Level is what the kernel knows about a Watch.
type Level struct {
	// Value is the figure at the latest tick.
	Value int64
	// Pressure is whether the figure is under pressure by its thresholds.
	Pressure Edges
	// ReadOnly is whether the filesystem refuses writes, by mount option or after
	// errors.
	ReadOnly Edges
	// Stale is whether the filesystem was unmounted, or the cgroup removed. The other
	// fields keep their last values. Watch it anew.
	Stale Edges
	// Filesystem is its kind, 0 for figures that are about none.
	Filesystem Filesystem
	shift      uint32 // how much of the figure a block or cluster is: 2 to the power of it
	summed     bool   // with what the CPUs have not added to the kernel's counters yet
}

// Levels is what the kernel measured, for each Watch and as a whole.
type Levels struct {
	// WorkingSet is the memory of anonymous pages and of files, except inactive file
	// cache, in bytes: what the kubelet computes from the root memory cgroup.
	WorkingSet int64
	// MemAvailable is computed like MemAvailable of /proc/meminfo, in bytes. Where the
	// kernel counts memory there that its zones do not have yet, it differs by that.
	MemAvailable int64

	// Ticks counts the runs of the timer, TickTime is how long they took together.
	// Lateness is the longest delay of any.
	Ticks    uint64
	TickTime time.Duration
	Lateness time.Duration
	// Period is how long the timer sleeps at present; 0 if nothing is watched.
	Period time.Duration

	Watches [MaxWatches]Level
}

// Levels stores the levels as of the latest tick in l. It makes no system call and
// allocates nothing. Without the signal Pressure they are zero, but for watches on PIDs.
func (s *Sensor) Levels(l *Levels) { s.kernel.readLevels(l) }

// Refresh measures everything now, as a tick does. It also works without watches, to
// find by how much the figures of memory differ from those in /proc.
func (s *Sensor) Refresh() error {
	if err := s.lacks(Pressure); err != nil {
		return fmt.Errorf("refresh levels: %w", err)
	}
	if err := s.kernel.refresh(); err != nil {
		return fmt.Errorf("refresh levels: %w", err)
	}
	return nil
}

// errWatchClosed is the error of Watch and Refresh after Close.
var errWatchClosed = fmt.Errorf("sensor: %w", os.ErrClosed)
