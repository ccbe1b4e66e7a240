package main

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// kernelLimits has the kernel compare the signals with their limits, so that a
// crossing wakes the sampler when it happens and nothing does otherwise. What
// the kernel cannot watch here (no BPF, no timers, not ext4) is left to the
// sampler's pace.
//
// The kernel's word is only believed while it agrees with the samples: memory may
// be plugged in, or counted in ways that the BPF programs do not know.
type kernelLimits struct {
	watch  func([]bpf.Watch) error // bpf.Sensor.Watch
	levels func(*bpf.Levels)       // bpf.Sensor.Levels
	open   func(path string) (*os.File, error)
	log    *slog.Logger

	// stale asks for all watches to be set anew: a filesystem is not what it was.
	stale atomic.Bool

	// Owned by the goroutine that samples.
	thresholds []pressure.Threshold // that the rest is about
	wanted     []bpf.Watch          // by the latest snapshot, without descriptors
	of         []int                // the estimate that each is for
	armed      []bpf.Watch          // in force, without descriptors
	armedOf    []int                // the estimate that each of those that could be opened is for
	watched    []bool               // of each estimate
	drift      []drift              // of each estimate
	ahead      []bool               // of each estimate: see compare
	relied     []bool               // what update returns
	since      time.Time            // for which something has been ahead
	hurry      bool                 // the kernel is to say at once when what is ahead is back
	hurried    time.Time            // when that began last
	level      bpf.Levels
	paths      [2]string // of the filesystems that are watched
	at         time.Time
	logged     []bool                     // watched, as it was logged last
	opening    [2]deadline.Worker[opened] // of nodefs and imagefs
}

// rearmInterval is how often the watches are set anew although nothing is known
// to have changed: the space that a filesystem reserves for root may have.
const rearmInterval = time.Minute

// update keeps the watches in step with the limits, and says of each estimate
// whether the kernel will report when its limit is crossed. If it already has
// reported what the sample does not bear out, there should be another sample after
// again, which is 0 otherwise: two CPUs may know of a task at different times.
func (k *kernelLimits) update(s *probe.Snapshot, estimates []pressure.Estimate, verdicts []pressure.Verdict) (reported []bool, again time.Duration) {
	if !k.knows(estimates) {
		k.begin(estimates)
	}
	again = k.compare(s.Time, estimates, verdicts)
	k.arm(s, estimates)
	for i := range k.relied {
		k.relied[i] = k.watched[i] && !k.ahead[i]
	}
	return k.relied, again
}

// knows says whether the estimates are for the thresholds that there were.
func (k *kernelLimits) knows(estimates []pressure.Estimate) bool {
	return k.watched != nil && slices.EqualFunc(k.thresholds, estimates, func(t pressure.Threshold, e pressure.Estimate) bool {
		return t == e.Threshold
	})
}

// begin forgets what was known about other thresholds. What the kernel watches
// stays in force until it is told anew.
func (k *kernelLimits) begin(estimates []pressure.Estimate) {
	n := len(estimates)
	k.thresholds = make([]pressure.Threshold, n)
	for i := range estimates {
		k.thresholds[i] = estimates[i].Threshold
	}
	k.watched, k.drift, k.ahead, k.relied = make([]bool, n), make([]drift, n), make([]bool, n), make([]bool, n)
	k.armed, k.armedOf = nil, nil
	k.since, k.hurry, k.logged = time.Time{}, false, nil
	k.stale.Store(true)
}

const (
	// hurryInterval bounds how often a figure that dances on the line wakes us.
	hurryInterval = 100 * time.Millisecond
	// againLeast is the time from a sample that did not bear out what the kernel
	// said to the next. It doubles up to againMost, as the two may count
	// differently by some MiB: a figure that sits between them may go under the
	// limit by both, and the kernel would have nothing to report.
	againLeast, againMost = 10 * time.Millisecond, 500 * time.Millisecond
)

// compare finds the estimates of which the kernel says that there is pressure
// and the sample that there is not. Either the figure was below its limit for a
// moment only, as an ext4 filesystem's is while it writes back, or it is not back
// by as much as the kernel waits for. The kernel would not report that it crosses
// again, because it has not reported that it is back. That matters once the
// condition is over: until then a sample is due at the end of its period.
func (k *kernelLimits) compare(now time.Time, estimates []pressure.Estimate, verdicts []pressure.Verdict) (again time.Duration) {
	k.levels(&k.level)
	clear(k.ahead)
	for i, of := range k.armedOf {
		e := &estimates[of]
		k.ahead[of] = k.level.Watches[i].Pressure.On() && e.Headroom >= 0 &&
			verdicts[e.Threshold.Condition()].Status != pressure.True
	}
	if !slices.Contains(k.ahead, true) {
		k.since, k.hurry = time.Time{}, false
		return 0
	}
	if k.since.IsZero() {
		k.since = now
	}
	if !k.hurry && now.Sub(k.hurried) >= hurryInterval {
		k.hurry, k.hurried = true, now
	}
	// As long again as it has been so.
	return min(max(now.Sub(k.since), againLeast), againMost)
}

// arm sets the watches anew if they are to be other ones.
func (k *kernelLimits) arm(s *probe.Snapshot, estimates []pressure.Estimate) {
	due := k.stale.Swap(false) || k.doubtful() || s.Time.Sub(k.at) >= rearmInterval || k.paths != [2]string{s.NodeFs.Path, s.ImageFs.Path}
	k.wanted, k.of = watches(k.wanted[:0], k.of[:0], s, estimates)
	for i, of := range k.of {
		if k.hurry && k.ahead[of] {
			k.wanted[i].Above = k.wanted[i].Below
		}
	}
	if !due && slices.Equal(k.wanted, k.armed) {
		return
	}
	k.at, k.armed, k.paths = s.Time, slices.Clone(k.wanted), [2]string{s.NodeFs.Path, s.ImageFs.Path}
	wanted, of, closeAll := k.openFilesystems(s, k.wanted, k.of, estimates)
	defer closeAll()

	err := k.watch(wanted)
	k.armedOf = of
	clear(k.watched)
	for _, i := range of {
		k.watched[i] = true
	}
	var refused bpf.WatchErrors
	switch {
	case errors.As(err, &refused):
		for _, r := range refused {
			k.watched[of[r.Watch]] = false
		}
	case err != nil:
		clear(k.watched)
		k.armed, k.armedOf = nil, nil
	}
	k.report(errors.Join(err, k.verify(s, wanted, of, estimates)), estimates)
}

// report logs once per change which limits the kernel watches.
func (k *kernelLimits) report(err error, estimates []pressure.Estimate) {
	if k.logged != nil && slices.Equal(k.logged, k.watched) {
		return
	}
	k.logged = slices.Clone(k.watched)
	var watched, polled []string
	for i, e := range estimates {
		if k.watched[i] {
			watched = append(watched, e.Threshold.String())
		} else {
			polled = append(polled, e.Threshold.String())
		}
	}
	attrs := []any{"watched", strings.Join(watched, " "), "polled", strings.Join(polled, " ")}
	if err != nil {
		attrs = append(attrs, "err", err)
	}
	k.log.Info("limits in the kernel", attrs...)
}

// clearAt is where a figure must be again before the kernel reports that it is
// back: above the limit by a tenth of it, but no more than 1 % of the capacity, or
// by the minimum reclaim if that is more. A figure that dances on the line wakes
// nobody.
func clearAt(limit int64, e *pressure.Estimate, capacity int64) int64 {
	return plus(limit, max(min(limit/10, capacity/100), e.Threshold.MinReclaim.Of(capacity)))
}

// plus adds what is not negative. A sum that no figure ever reaches is the highest
// that the kernel takes.
func plus(a, b int64) int64 {
	return min(a, bpf.MaxFigure) + min(b, bpf.MaxFigure-min(a, bpf.MaxFigure))
}

// watches appends to ws what the kernel is to watch, with no descriptors yet, and
// to of the estimate that each is for.
func watches(ws []bpf.Watch, of []int, s *probe.Snapshot, estimates []pressure.Estimate) ([]bpf.Watch, []int) {
	for i := range estimates {
		e := &estimates[i]
		o := s.Signals[e.Signal]
		limit := e.Threshold.Value.Of(o.Capacity)
		if !o.OK || limit <= 0 || len(ws) == bpf.MaxWatches {
			continue
		}
		w := bpf.Watch{Below: min(limit, bpf.MaxFigure), Above: clearAt(limit, e, o.Capacity)}
		switch e.Signal {
		case probe.MemoryAvailable:
			w.Figure, w.Total = bpf.WorkingSet, o.Capacity
		case probe.PIDAvailable:
			w.Figure, w.Total = bpf.PIDs, o.Capacity
		case probe.NodeFsAvailable, probe.ImageFsAvailable:
			// The kernel counts what is free, the limit what is available.
			reserved := filesystemOf(s, e.Signal).Reserved
			w.Figure, w.Below, w.Above = bpf.FreeBytes, plus(w.Below, reserved), plus(w.Above, reserved)
		case probe.NodeFsInodesFree, probe.ImageFsInodesFree:
			w.Figure = bpf.FreeInodes
		default:
			continue
		}
		ws, of = append(ws, w), append(of, i)
	}
	return ws, of
}

func filesystemOf(s *probe.Snapshot, sig probe.Signal) *probe.Filesystem {
	if sig == probe.ImageFsAvailable || sig == probe.ImageFsInodesFree {
		return &s.ImageFs
	}
	return &s.NodeFs
}

// openTimeout is how long a filesystem is waited for that has just answered the
// sample: the verdict waits meanwhile.
const openTimeout = 100 * time.Millisecond

// opened is a directory of a filesystem. One that comes too late is closed when it is
// collected as garbage.
type opened struct {
	file *os.File
	err  error
}

// openDirectory opens a directory as a name of its filesystem, and for nothing else.
func openDirectory(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// openFilesystems gives the watches of filesystems their descriptors, which the
// kernel needs only while they are set, and leaves out those that cannot be opened: one
// that does not answer is asked again after the next sample.
func (k *kernelLimits) openFilesystems(s *probe.Snapshot, ws []bpf.Watch, of []int, estimates []pressure.Estimate) (watches []bpf.Watch, watchesOf []int, closeAll func()) {
	files := map[string]*os.File{}
	for i, w := range ws {
		if w.Figure == bpf.FreeBytes || w.Figure == bpf.FreeInodes {
			fs := filesystemOf(s, estimates[of[i]].Signal)
			file, known := files[fs.Path]
			if !known {
				file = k.openFilesystem(fs.Path, k.worker(s, fs))
				files[fs.Path] = file
			}
			if file == nil {
				continue
			}
			w.FD = int(file.Fd())
		}
		watches, watchesOf = append(watches, w), append(watchesOf, of[i])
	}
	return watches, watchesOf, func() {
		for _, file := range files {
			file.Close() // harmless if it is nil
		}
	}
}

func (k *kernelLimits) worker(s *probe.Snapshot, fs *probe.Filesystem) *deadline.Worker[opened] {
	if fs == &s.ImageFs {
		return &k.opening[1]
	}
	return &k.opening[0]
}

// openFilesystem returns nil if the directory cannot be opened.
func (k *kernelLimits) openFilesystem(path string, worker *deadline.Worker[opened]) *os.File {
	o, err := worker.Do(openTimeout, "open "+path, func() (o opened) {
		o.file, o.err = k.open(path)
		return o
	})
	if err != nil {
		k.stale.Store(true)
		return nil
	}
	if o.err != nil {
		return nil
	}
	return o.file
}
