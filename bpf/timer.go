//go:build linux && (amd64 || arm64)

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// timer is the timer in the kernel, and the memory shared with it. kernel.mu guards it.
type timer struct {
	program *ebpf.Program // nil without the signal Pressure, and after close
	config  *ebpf.Variable
	levels  *ebpf.Variable // mapped into this process, and stays so after close
	cpus    int            // that the machine may have

	read nodeprobeWatchLevels // what levels is copied to
	// known is the Seq of the latest event of each kind about each watch.
	known [MaxWatches][Stale - Crossing + 1]uint64
}

// hasTimers reports whether a kernel has bpf_timer.
func hasTimers(types *btf.Spec) bool {
	var helpers *btf.Enum
	if err := types.TypeByName("bpf_func_id", &helpers); err != nil {
		return false
	}
	for _, helper := range helpers.Values {
		if helper.Name == "BPF_FUNC_timer_init" {
			return true
		}
	}
	return false
}

// newTimer returns the timer whose program is in coll.
func newTimer(coll *ebpf.Collection) (timer, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return timer{}, fmt.Errorf("count CPUs: %w", err)
	}
	t := timer{
		cpus:    cpus,
		program: coll.Programs[nodeprobeProgPressure],
		config:  coll.Variables[nodeprobeVarConfig],
		levels:  coll.Variables[nodeprobeVarLevels],
	}
	// For refresh before the first watch.
	return t, t.configure(nil)
}

// configure sets what the kernel watches from the next arm on.
func (t *timer) configure(ws []Watch) error {
	config := nodeprobeWatchConfig{PageSize: uint64(os.Getpagesize())}
	for i := range ws {
		w := &ws[i]
		rate := w.MaxRate
		if rate == 0 {
			rate = MaxRate(w.Figure, t.cpus)
		}
		config.Watch[i].Figure = uint32(w.Figure)
		config.Watch[i].Fd = uint32(w.FD)
		config.Watch[i].Total = w.Total
		config.Watch[i].Below = w.Below
		config.Watch[i].Above = w.Above
		config.Watch[i].Rate = rate
	}
	if err := t.config.Set(config); err != nil {
		return fmt.Errorf("set thresholds: %w", err)
	}
	return nil
}

// run runs the program in this process, where it finds the open files of the watches.
func (t *timer) run(rearm uint64) error {
	ret, err := t.program.Run(&ebpf.RunOptions{Context: nodeprobePressureArgs{Rearm: rearm}})
	if err != nil {
		return fmt.Errorf("run program: %w", err)
	}
	if ret != 0 {
		return fmt.Errorf("start timer: %w", unix.Errno(ret))
	}
	return nil
}

// watch puts ws into force, and calls refuse for those that are not. noTasks is
// why the signal Tasks is missing, if it is.
func (k *kernel) watch(ws []Watch, noTasks error, refuse func(int, error)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.timer
	if t.program == nil {
		return errWatchClosed
	}
	in := append([]Watch(nil), ws...)
	for i := range in {
		if in[i].Figure == PIDs && noTasks != nil {
			in[i] = Watch{}
			refuse(i, noTasks)
		}
	}
	if err := t.configure(in); err != nil {
		return err
	}
	failed := t.run(1)
	read := t.get()
	for i := range in {
		if in[i].Figure == 0 {
			continue
		}
		if err := cmp.Or(failed, refusal(read.Watch[i].Refused)); err != nil {
			refuse(i, err)
		}
	}
	return nil
}

// get returns the levels, until it is called again.
func (t *timer) get() *nodeprobeWatchLevels {
	if err := t.levels.Get(&t.read); err != nil {
		// Cannot fail: the sizes agree, and mapped memory can be read.
		panic(err)
	}
	return &t.read
}

func (k *kernel) readLevels(l *Levels) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer.levels == nil {
		*l = Levels{}
		return
	}
	read := k.timer.get()
	l.WorkingSet, l.MemAvailable = read.WorkingSet, read.MemAvailable
	l.Ticks, l.TickTime = read.Ticks, time.Duration(read.TickNs)
	l.Lateness, l.Period = time.Duration(read.LatenessNs), time.Duration(read.PeriodNs)
	for i := range l.Watches {
		w := &read.Watch[i]
		l.Watches[i] = Level{
			Value:    w.Value,
			Pressure: Edges(w.Pressure),
			ReadOnly: Edges(w.ReadOnly),
			Stale:    Edges(w.Stale),
		}
	}
}

func (k *kernel) refresh() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer.program == nil {
		return errWatchClosed
	}
	return k.timer.run(0)
}

// isNews reports whether an event is about a watch still in force, and not a duplicate:
// two CPUs may report the same edge.
func (k *kernel) isNews(e *Event, epoch uint16) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.timer
	if uint16(t.get().Watch[e.Watch].Epoch) != epoch {
		return false
	}
	known := &t.known[e.Watch][e.Kind-Crossing]
	if e.Seq <= *known {
		return false
	}
	*known = e.Seq
	return true
}

// refusal returns the error for a value of enum refusal in watch.h.
func refusal(reason uint64) error {
	switch reason {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("the kernel shows no types of ext4: %w", errors.ErrUnsupported)
	case 2:
		return fmt.Errorf("no NUMA node found by this process's memory cgroup, or too many: %w", errors.ErrUnsupported)
	case 3:
		return fmt.Errorf("file descriptor: %w", unix.EBADF)
	case 4:
		return fmt.Errorf("filesystem is not ext4: %w", errors.ErrUnsupported)
	case 5:
		return errors.New("filesystem is being unmounted")
	}
	return fmt.Errorf("refused for reason %d", reason)
}
