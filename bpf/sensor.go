// Package bpf counts in the kernel what /proc does not tell, or tells too late:
// forks, OOM kills, the time that tasks lose to reclaiming memory, and block I/O
// errors. And it has the kernel compare with thresholds what is left of PIDs,
// memory and ext4 filesystems: see [Sensor.Watch].
//
// It does so with small programs on BTF tracepoints, and one that is called by a
// timer. That sleeps as long as no level can reach its threshold meanwhile,
// between half a millisecond and a second. User space is only woken by an OOM kill and
// by a level that crosses a threshold ([Sensor.ReadEvent]); all else it finds in
// memory that it shares with the kernel ([Sensor.Counters], [Sensor.Levels]).
// What an event says is a hint to look, not the evidence.
//
// What it takes is Linux 5.8 on amd64 or arm64 (5.15 for Watch), built with
// CONFIG_DEBUG_INFO_BTF, and CAP_BPF with CAP_PERFMON. Everything here is
// optional to the daemon, so what a kernel or a container withholds costs just
// the signals concerned: see [Sensor.Hooks].
package bpf

import (
	"errors"
	"os"
	"sync"
	"time"
)

// ErrDisabled is the Err of every Hook if Options.Disabled is set.
var ErrDisabled = errors.New("turned off by configuration")

// Options says how to open a Sensor. The zero value is what a daemon wants.
type Options struct {
	// Disabled keeps Open from making any bpf(2) call. The Sensor then has all
	// its methods and no signal.
	Disabled bool
	// BTF is the file to take the kernel's types from, "" for
	// /sys/kernel/btf/vmlinux. It must describe the running kernel, and it
	// cannot replace the BTF that the kernel itself must have to attach
	// programs by.
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
	// close makes the second Close a repetition of the first.
	close func() error
}

// Open loads and attaches the programs, each signal by itself, and returns what
// came of it: it cannot fail, but there may be nothing attached. The caller must
// Close the Sensor.
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

// refuseAll records one reason for all programs.
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

// Hooks returns one entry per program, ordered by signal. The caller must not
// change it. It stays as Open left it, also after Close.
func (s *Sensor) Hooks() []Hook { return s.hooks }

// Counters returns the counters as they are now. It costs no system call and
// allocates nothing. After Close they stand still.
//
// The signal Tasks is missing from Has until the first task is created, as
// Counters.Tasks is not known before.
func (s *Sensor) Counters() Counters {
	c := s.kernel.counters()
	c.Has = s.has
	if c.Tasks == 0 {
		c.Has &^= 1 << Tasks
	}
	return c
}

// ReadEvent waits for the next event and stores it in e. It returns an error
// that wraps os.ErrClosed once the Sensor is closed, and only then if no signal
// gives events. After any other error the caller may go on. It allocates nothing.
func (s *Sensor) ReadEvent(e *Event) error {
	if !s.kernel.hasEvents() {
		<-s.closed
		return os.ErrClosed
	}
	return s.kernel.readEvent(e)
}

// ProgramStats is the kernel's account of what one program costs.
type ProgramStats struct {
	// Signal and Name are those of the Hook.
	Signal Signal
	Name   string
	// Runs counts the runs, RunTime is how long they took together.
	Runs    uint64
	RunTime time.Duration
	// Missed counts events for which the program could not run, as it was
	// already running on that CPU (Linux 5.12).
	Missed uint64
}

// Stats returns the cost of each attached program, in the order of Hooks. The
// kernel only keeps that account while the sysctl kernel.bpf_stats_enabled is 1
// or another program asks for it (Linux 5.8); Stats returns nil as long as it
// never has since Open, and after Close.
func (s *Sensor) Stats() []ProgramStats { return s.kernel.stats() }

// Close detaches and unloads the programs, and ends ReadEvent. Closing a second
// time does nothing and returns the same.
func (s *Sensor) Close() error { return s.close() }
