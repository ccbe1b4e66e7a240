//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// kernel is what Open loaded into the kernel.
type kernel struct {
	collections []*ebpf.Collection
	events      *ringbuf.Reader
	record      ringbuf.Record
	// totals is mapped into this process, and stays so after close.
	totals *ebpf.Variable

	// mu guards what follows.
	mu       sync.Mutex
	attached []attached // none after close
	closed   bool
	read     nodeprobeTotals // what totals is copied to
	timer    timer
}

// attached is an attached program.
type attached struct {
	program
	kernel *ebpf.Program
	link   link.Link
}

func (s *Sensor) load(opts Options) {
	spec, err := loadNodeprobe()
	if err != nil {
		s.refuseAll(err, "this is a bug in nodeprobe; run without BPF (bpf: off)")
		return
	}
	s.loadSpec(opts, spec)
}

// loadSpec is load with the programs as an argument, for tests to modify.
func (s *Sensor) loadSpec(opts Options, spec *ebpf.CollectionSpec) {
	env := readEnvironment()
	env.memlock = raiseMemlock()
	cache := btf.NewCache()
	types, err := kernelTypes(opts.BTF, cache)
	if err != nil {
		s.refuseAll(err, env.remedyNoTypes(opts.BTF))
		return
	}
	l := &loader{
		spec: spec,
		maps: make(map[string]*ebpf.Map),
		opts: ebpf.CollectionOptions{Cache: cache, Programs: ebpf.ProgramOptions{KernelTypes: types}},
	}
	all := []*btf.Spec{types}
	if opts.BTF == "" {
		all = filesystemTypes(types, cache)
	}
	l.layout = findLayout(all...)
	for signal := range Signal(NumSignals) {
		s.attach(l, signal, env)
	}
}

// attach loads and attaches the programs of one signal, all of them or none.
func (s *Sensor) attach(l *loader, signal Signal, env environment) {
	progs, missing := l.choose(signal)
	var err error
	var remedy string
	if missing != nil {
		err = fmt.Errorf("no %s in kernel %s: %w", missing.hook().Name, env.release, errors.ErrUnsupported)
		remedy = "needs " + missing.needs + "; the other signals do not depend on it"
	} else if err = s.kernel.attach(l, progs); err != nil {
		err, remedy = env.explain(err)
	}
	if err != nil {
		for _, p := range progs {
			s.refuse(p, err, remedy)
		}
		return
	}
	for _, p := range progs {
		hook := p.hook()
		hook.Attached = true
		s.hooks = append(s.hooks, hook)
	}
	s.has = s.has.With(signal)
}

// attach loads progs and attaches them. If one cannot be, none is.
func (k *kernel) attach(l *loader, progs []program) (err error) {
	coll, err := l.loadMost(progs)
	if err != nil {
		return err
	}
	var done []attached
	var events *ringbuf.Reader
	defer func() {
		if err == nil {
			return
		}
		for _, a := range done {
			a.link.Close()
		}
		if events != nil {
			events.Close()
		}
		coll.Close()
	}()

	// Before the programs that fill it, which belong to several signals.
	if ring := coll.Maps[nodeprobeMapEvents]; ring != nil && k.events == nil {
		if events, err = ringbuf.NewReader(ring); err != nil {
			return fmt.Errorf("open ring buffer: %w", err)
		}
	}
	tm := k.timer
	for _, p := range progs {
		if p.timer != "" {
			if tm, err = newTimer(coll, l); err != nil {
				return err
			}
			continue
		}
		prog := coll.Programs[p.name]
		ln, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return fmt.Errorf("attach tp_btf/%s: %w", p.name, err)
		}
		done = append(done, attached{program: p, kernel: prog, link: ln})
	}

	k.timer = tm
	k.attached = append(k.attached, done...)
	k.collections = append(k.collections, coll)
	if events != nil {
		k.events = events
	}
	// Every signal counts in the same struct, see loader.maps.
	if k.totals == nil {
		k.totals = coll.Variables[nodeprobeVarCounters]
	}
	if progs[0].signal == Tasks {
		k.timer.share(coll)
		k.countTasks()
	}
	l.keep(coll)
	return nil
}

// countTasks creates a thread: the programs know how many tasks there are from the first
// one on that is created, and a node may be idle. A new thread takes a goroutine more
// than there are idle ones, as each stays on its own.
func (k *kernel) countTasks() {
	const most = 1000
	done := make(chan struct{})
	defer close(done)
	for n := 0; k.readTotals().Tasks == 0 && n < most; n++ {
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			close(started)
			<-done
		}()
		<-started
	}
}

func (k *kernel) counters() Counters {
	if k.totals == nil {
		return Counters{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.readTotals()
	return Counters{
		Tasks:              t.Tasks,
		Forks:              t.Forks,
		Exits:              t.Exits,
		OOMKills:           t.OomKills,
		DirectReclaims:     t.DirectReclaims,
		DirectReclaimStall: time.Duration(t.DirectReclaimNs),
		CgroupReclaims:     t.CgroupReclaims,
		CgroupReclaimStall: time.Duration(t.CgroupReclaimNs),
		BlockErrors:        t.BlockErrors,
		Lost:               t.Lost,
	}
}

// readTotals returns the counters, until it is called again. The caller holds the lock.
func (k *kernel) readTotals() *nodeprobeTotals {
	if err := k.totals.Get(&k.read); err != nil {
		// Cannot fail: the sizes agree, and mapped memory can be read.
		panic(err)
	}
	return &k.read
}

func (k *kernel) readEvent(e *Event) error {
	for {
		switch err := k.events.ReadInto(&k.record); {
		case errors.Is(err, ringbuf.ErrFlushed): // a rehearsal
			continue
		case err != nil:
			return fmt.Errorf("read event: %w", err)
		}
		var monotonic unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic); err != nil {
			return fmt.Errorf("read monotonic clock: %w", err)
		}
		var read Event
		epoch, err := read.decode(k.record.RawSample, time.Now(), monotonic.Nano())
		if err != nil {
			return err
		}
		if read.Kind == OOMKill || k.isNews(&read, epoch) {
			*e = read
			return nil
		}
	}
}

// flush makes readEvent look for events.
func (k *kernel) flush() error { return k.events.Flush() }

// hasEvents reports whether some program is attached that fills the ring buffer.
func (k *kernel) hasEvents() bool { return k.events != nil }

func (k *kernel) stats() []ProgramStats {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ran bool
	stats := make([]ProgramStats, 0, len(k.attached))
	for _, a := range k.attached {
		st, err := a.kernel.Stats()
		if err != nil {
			continue // Before Linux 5.8.
		}
		ran = ran || st.RunCount > 0
		stats = append(stats, ProgramStats{
			Signal:  a.signal,
			Name:    a.hook().Name,
			Runs:    st.RunCount,
			RunTime: st.Runtime,
			Missed:  st.RecursionMisses,
		})
	}
	if !ran {
		return nil
	}
	return stats
}

func (k *kernel) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, a := range k.attached {
		if err := a.link.Close(); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", a.hook().Name, err))
		}
	}
	k.attached = nil
	k.closed = true
	k.timer.program = nil
	if k.events != nil {
		if err := k.events.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close ring buffer: %w", err))
		}
	}
	for _, coll := range k.collections {
		coll.Close()
	}
	return errors.Join(errs...)
}
