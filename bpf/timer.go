//go:build linux && (amd64 || arm64)

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// timer is the timer in the kernel, and the memory shared with it. kernel.mu guards it.
type timer struct {
	program *ebpf.Program // nil without the signal Pressure, and after close
	config  *ebpf.Variable
	layout  layout
	modules [Btrfs + 1]os.FileInfo // of types, by Filesystem, that were looked at later
	leftOut map[uint32]error       // parts of the program, and why

	// Mapped into this process, and they stay so after close; nil without the signals
	// Tasks and Pressure.
	levels, wants, limit, release *ebpf.Variable
	// totals are those of the watches on PIDs that need no timer; 0 is none.
	totals [MaxWatches]int64

	read nodeprobeWatchLevels // what levels is copied to
	// known is the Seq of the latest event of each kind about each watch.
	known [MaxWatches][Stale - Crossing + 1]uint64
}

// hasTimers reports whether a kernel has bpf_timer.
func hasTimers(types *btf.Spec) bool { return hasHelper(types, "BPF_FUNC_timer_init") }

// hasHelper reports whether programs can call a function of the kernel.
func hasHelper(types *btf.Spec, name string) bool {
	var helpers *btf.Enum
	if err := types.TypeByName("bpf_func_id", &helpers); err != nil {
		return false
	}
	for _, helper := range helpers.Values {
		if helper.Name == name {
			return true
		}
	}
	return false
}

// newTimer returns the timer whose program is in coll.
func newTimer(coll *ebpf.Collection, l *loader) (timer, error) {
	t := timer{
		program: coll.Programs[nodeprobeProgPressure],
		config:  coll.Variables[nodeprobeVarConfig],
		layout:  l.layout,
		leftOut: l.refused,
	}
	t.share(coll)
	// For refresh before the first watch.
	return t, t.configure(nil)
}

// share finds what the programs of the signals Tasks and Pressure have in common.
func (t *timer) share(coll *ebpf.Collection) {
	t.levels, t.wants = coll.Variables[nodeprobeVarLevels], coll.Variables[nodeprobeVarWants]
	t.limit, t.release = coll.Variables[nodeprobeVarPidsLimit], coll.Variables[nodeprobeVarPidsRelease]
}

// configure sets what the kernel watches from the next arm on.
func (t *timer) configure(ws []Watch) error {
	config := nodeprobeWatchConfig{PageSize: uint64(os.Getpagesize()), Cpus: uint64(possibleCPUs()), Known: t.layout.known, Fields: t.layout.offsets}
	for i := range ws {
		config.Watch[i] = ws[i].want()
	}
	if err := t.config.Set(config); err != nil {
		return fmt.Errorf("set thresholds: %w", err)
	}
	return nil
}

// want is the watch as the programs read it.
func (w *Watch) want() nodeprobeWant {
	rate := w.MaxRate
	if rate == 0 {
		rate = MaxRate(w.Figure, possibleCPUs())
	}
	return nodeprobeWant{
		Below: w.Below, Above: w.Above, Total: w.Total, Rate: rate, Figure: uint32(w.Figure), Fd: uint32(w.FD),
	}
}

// possibleCPUs returns how many CPUs the machine may ever have.
func possibleCPUs() int {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return runtime.NumCPU() // without /sys
	}
	return cpus
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
	failed, err := t.arm(in)
	if err != nil {
		return err
	}
	if t.lacksTypes(in) && t.findModules() {
		if failed, err = t.arm(in); err != nil {
			return err
		}
	}
	read := t.get()
	for i := range in {
		if in[i].Figure == 0 {
			continue
		}
		if err := cmp.Or(failed, t.refusal(in[i].Figure, &read.Watch[i])); err != nil {
			refuse(i, err)
		}
	}
	return nil
}

// arm puts watches into force. The program's own failure is the first error.
func (t *timer) arm(ws []Watch) (failed, err error) {
	if err := t.configure(ws); err != nil {
		return nil, err
	}
	return t.run(1), nil
}

// lacksTypes reports whether a watch was refused for want of a filesystem's types.
func (t *timer) lacksTypes(ws []Watch) bool {
	read := t.get()
	for i := range ws {
		if ws[i].Figure != 0 && read.Watch[i].Refused == refusedNoTypes {
			return true
		}
	}
	return false
}

// watchTasks is watch without a timer: the programs that count tasks compare by
// themselves, with the limits in the memory that they share. What was crossed already is
// reported at the next fork or exit.
func (k *kernel) watchTasks(ws []Watch, refuse func(int, error)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.timer
	if k.closed {
		return errWatchClosed
	}
	// Nobody compares while the rest is written.
	if err := errors.Join(t.limit.Set(uint64(0)), t.release.Set(uint64(0))); err != nil {
		return err
	}
	var before [MaxWatches]nodeprobeWant
	if err := t.wants.Get(&before); err != nil {
		return err
	}
	in := append([]Watch(nil), ws...)
	t.totals = [MaxWatches]int64{}
	for i := range in {
		switch {
		case in[i].Figure != PIDs:
			in[i] = Watch{}
		case k.readTotals().Tasks == 0:
			in[i] = Watch{}
			refuse(i, errNoFork)
		}
		t.totals[i] = in[i].Total
	}
	levels := *t.get()
	wants, limit, release := adoptTasks(in, &before, &levels)
	return errors.Join(t.wants.Set(&wants), t.levels.Set(&levels), t.release.Set(release), t.limit.Set(limit))
}

// adoptTasks does what the program does that adopts watches, for those on PIDs: it returns
// them, and at how many tasks to compare, and changes the levels of what is watched no
// longer.
func adoptTasks(ws []Watch, before *[MaxWatches]nodeprobeWant, levels *nodeprobeWatchLevels) (wants [MaxWatches]nodeprobeWant, limit, release uint64) {
	for i := range ws {
		if ws[i].Figure != 0 {
			wants[i] = ws[i].want()
		}
	}
	for i := range wants {
		want, level := &wants[i], &levels.Watch[i]
		if want.Figure != before[i].Figure {
			level.Pressure += level.Pressure & 1
			level.Epoch++
		}
		most, few := max(1, want.Total-want.Below), max(0, want.Total-want.Above)
		switch {
		case want.Figure == 0:
		case Edges(level.Pressure).On():
			release = max(release, uint64(few))
		case limit == 0 || uint64(most) < limit:
			limit = uint64(most)
		}
	}
	return wants, limit, release
}

// errNoFork is why no watch on PIDs can be had yet.
var errNoFork = errors.New("no task was created yet, so their number is not known")

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
			Value:      w.Value,
			Pressure:   Edges(w.Pressure),
			ReadOnly:   Edges(w.ReadOnly),
			Stale:      Edges(w.Stale),
			Filesystem: Filesystem(w.Kind),
			shift:      w.Shift,
			summed:     read.Cpus > 0 && w.Kind != 0,
		}
		if total := k.timer.totals[i]; total > 0 {
			l.Watches[i].Value = total - int64(k.readTotals().Tasks)
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

// refusedNoTypes is REFUSED_NO_TYPES.
const refusedNoTypes = 1

// refusal returns why a watch is not in force, by enum refusal in watch.h; nil if it is.
func (t *timer) refusal(f Figure, level *nodeprobeLevel) error {
	switch level.Refused {
	case 0:
		return nil
	case refusedNoTypes:
		return fmt.Errorf("the kernel shows no types of %v, or others than are known: %w", Filesystem(level.Kind), errors.ErrUnsupported)
	case 2:
		return fmt.Errorf("no NUMA node found by this process's memory cgroup, or too many: %w", errors.ErrUnsupported)
	case 3:
		return fmt.Errorf("file descriptor: %w", unix.EBADF)
	case 4:
		return fmt.Errorf("filesystem is none that can be watched for this: %w", errors.ErrUnsupported)
	case 5:
		return errors.New("filesystem is being unmounted, or is not laid out as the kernel's types say")
	case 6:
		return fmt.Errorf("left out of the program: %w (%w)", t.leftOut[partOf(f)], errors.ErrUnsupported)
	case 7:
		return fmt.Errorf("not the directory of a cgroup that has the memory controller: %w", errors.ErrUnsupported)
	}
	return fmt.Errorf("refused for reason %d", level.Refused)
}
