// Package arm has the kernel watch the limits, so that a crossing wakes the sampler when
// it happens and nothing does otherwise. What the kernel cannot watch (no BPF, no timers,
// a filesystem that it does not know) is left to the sampler's pace. The kernel also
// watches whether a filesystem gives up, even one without a limit.
//
// The kernel's figures are relied on only while they agree with the samples: memory may
// be plugged in, or counted in ways that the BPF programs do not know.
package arm

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Config is the configuration of Limits.
type Config struct {
	// Watch puts watches in force, as bpf.Sensor.Watch does.
	Watch func([]bpf.Watch) error
	// Levels reads what the kernel knows about them, as bpf.Sensor.Levels does.
	Levels func(*bpf.Levels)
	// Open opens a directory that names its filesystem; it may hang. Nil stands for
	// open(2) with O_PATH.
	Open func(path string) (*os.File, error)
	// Logger receives a line whenever another set of limits is watched.
	Logger *slog.Logger
}

// Limits keeps the kernel's watches in step with the limits.
type Limits struct {
	cfg     Config
	invalid atomic.Bool

	// Owned by Update.
	plan    plan
	levels  bpf.Levels
	relied  []bool
	logged  *logged // nil before the first line
	opening [numFilesystems]deadline.Worker[opened]
	pods    deadline.Worker[opened] // opens their cgroup

	mu    sync.Mutex // guards disks, and the kernel's watches
	disks [numFilesystems]disk
	seen  bpf.Levels // by GaveUp
}

// disk is a filesystem, and the watch by which it is known whether it gave up.
type disk struct {
	path string // "" if it is not watched
	slot int
}

// logged is what the log says of the limits.
type logged struct{ watched, polled string }

// New returns Limits of which none is watched yet.
func New(cfg Config) *Limits {
	if cfg.Open == nil {
		cfg.Open = openDirectory
	}
	return &Limits{cfg: cfg}
}

// Invalidate makes the next Update set all watches again: a filesystem may no longer be
// what it was. It is safe for concurrent use, and does not block.
func (l *Limits) Invalidate() { l.invalid.Store(true) }

// Update sets the watches that follow from a snapshot and the estimates of all limits,
// those of rules too; settled is as [pressure.Limits.Settled] returns it. relied reports
// for each estimate whether the kernel will send an event when its limit is crossed, or
// before; it is valid until the next call. If the kernel has reported pressure that the
// sample does not show, as two CPUs may learn of a task at different times, the next
// sample is due after again, which is 0 otherwise.
//
// Of more limits than [bpf.MaxWatches] those are watched that a signal can get to next,
// from either side; see plan.nearest.
//
// It allocates nothing unless watches are set, which takes up to 100 ms per filesystem
// that does not answer. It must not be called concurrently.
func (l *Limits) Update(s *probe.Snapshot, estimates []pressure.Estimate, settled []bool) (relied []bool, again time.Duration) {
	l.cfg.Levels(&l.levels)
	due, again := l.plan.step(input{s, estimates, settled, &l.levels, l.invalid.Swap(false)})
	if due {
		l.arm(s)
		// Another filesystem may be in the place of one that gave up. Nothing reports that.
		if l.news(&s.NodeFs) || l.news(&s.ImageFs) {
			again = minAgain
		}
	}
	l.relied = l.relied[:0]
	for i := range l.plan.limits {
		l.relied = append(l.relied, l.plan.limits[i].relied())
	}
	return l.relied, again
}

// arm sets the watches that the plan wants, and compares the kernel's figures with the
// sample.
func (l *Limits) arm(s *probe.Snapshot) {
	watches, disks, closeAll := l.open(s)
	defer closeAll()
	l.mu.Lock()
	err := l.cfg.Watch(watches)
	var refused bpf.WatchErrors
	for i := range disks {
		isThis := func(r bpf.WatchError) bool { return r.Watch == disks[i].slot }
		if err != nil && (!errors.As(err, &refused) || slices.ContainsFunc(refused, isThis)) {
			disks[i] = disk{}
		}
	}
	l.disks = disks
	l.mu.Unlock()
	l.plan.armed(s, err)
	l.cfg.Levels(&l.levels)
	l.log(errors.Join(err, l.plan.verify(s, &l.levels)))
}

// GaveUp reports whether the kernel refuses writes to a filesystem, which the latest
// Update found at a path: its mount says so, or it gave up after an error. That is known
// while the kernel watches the filesystem. It is safe for concurrent use, and allocates
// nothing.
func (l *Limits) GaveUp(path string) (is, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.disks {
		if path == "" || d.path != path {
			continue
		}
		l.cfg.Levels(&l.seen)
		level := &l.seen.Watches[d.slot]
		return level.ReadOnly.On() && !level.Stale.On(), true
	}
	return false, false
}

// news reports whether it is known by now that a sample was wrong about a filesystem.
func (l *Limits) news(fs *probe.Filesystem) bool {
	is, known := l.GaveUp(fs.Path)
	return known && is != fs.GaveUp
}

// log logs once per change which limits the kernel watches.
func (l *Limits) log(err error) {
	var watched, polled []string
	for i := range l.plan.limits {
		if limit := &l.plan.limits[i]; limit.covered() {
			watched = append(watched, limit.threshold.String())
		} else {
			polled = append(polled, limit.threshold.String())
		}
	}
	now := logged{strings.Join(watched, " "), strings.Join(polled, " ")}
	if l.logged != nil && *l.logged == now {
		return
	}
	l.logged = &now
	attrs := []any{"watched", now.watched, "polled", now.polled}
	if err != nil {
		attrs = append(attrs, "err", err)
	}
	l.cfg.Logger.Info("limits in the kernel", attrs...)
}

// openTimeout bounds the opening of a filesystem, which has just answered the sample: the
// verdict waits meanwhile.
const openTimeout = 100 * time.Millisecond

// opened is a directory of a filesystem. One that arrives after the timeout is closed by
// the garbage collector.
type opened struct {
	file *os.File
	err  error
}

func openDirectory(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// open returns the watches that the plan wants and gives each limit its slot. A filesystem
// without a limit gets a watch that is never crossed. Watches of filesystems get
// descriptors, which the kernel needs only while they are set; those whose filesystem
// cannot be opened are left out.
func (l *Limits) open(s *probe.Snapshot) (watches []bpf.Watch, disks [numFilesystems]disk, closeAll func()) {
	files := map[string]*os.File{}
	add := func(w bpf.Watch, path string, worker *deadline.Worker[opened]) (slot int) {
		if worker != nil {
			file, known := files[path]
			if !known {
				file = l.openDirectory(path, worker)
				files[path] = file
			}
			if file == nil {
				return -1
			}
			w.FD = int(file.Fd())
		}
		watches = append(watches, w)
		return len(watches) - 1
	}
	addDisk := func(w bpf.Watch, fs filesystem) (slot int) {
		path := fs.in(s).Path
		if slot = add(w, path, &l.opening[fs]); slot >= 0 && (disks[fs].path == "" || w.Figure == bpf.FreeBytes) {
			disks[fs] = disk{path, slot}
		}
		return slot
	}
	for i := range l.plan.limits {
		limit := &l.plan.limits[i]
		limit.slot = -1
		switch fs, ok := filesystemOf(limit.threshold.Signal); {
		case limit.want == (bpf.Watch{}):
		case ok:
			limit.slot = addDisk(limit.want, fs)
		case limit.want.Figure == bpf.CgroupMemory:
			limit.slot = add(limit.want, s.PodsCgroup, &l.pods)
		default:
			limit.slot = add(limit.want, "", nil)
		}
	}
	for fs := range filesystem(numFilesystems) {
		path := fs.in(s).Path
		if _, known := files[path]; path != "" && !known && len(watches) < bpf.MaxWatches {
			addDisk(bpf.Watch{Figure: bpf.FreeBytes, Below: -bpf.MaxFigure, Above: -bpf.MaxFigure}, fs)
		}
	}
	return watches, disks, func() {
		for _, file := range files {
			file.Close() // harmless if it is nil
		}
	}
}

// openDirectory returns nil if the directory cannot be opened. One that does not answer
// is opened again after the next sample.
func (l *Limits) openDirectory(path string, worker *deadline.Worker[opened]) *os.File {
	o, err := worker.Do(openTimeout, "open "+path, func() (o opened) {
		o.file, o.err = l.cfg.Open(path)
		return o
	})
	if err != nil {
		l.Invalidate()
		return nil
	}
	if o.err != nil {
		return nil
	}
	return o.file
}
