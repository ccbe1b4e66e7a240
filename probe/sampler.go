package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"github.com/nodeprobe/nodeprobe/probe/hotfile"
)

// Config configures a Sampler: where to read, and how often.
type Config struct {
	// Procfs, Sysfs and Rootfs are where the node's /proc, /sys and / are
	// mounted. In a container these are mounts of the host's.
	Procfs, Sysfs, Rootfs string
	// RootDirectory is a directory of the node: its filesystem is nodefs.
	RootDirectory string
	// ImageDirectories are directories of the node: the filesystem of the first
	// that exists is imagefs. Without any, imagefs is nodefs.
	ImageDirectories []string
	// Interval is the time between two samples if nothing asks for one sooner.
	Interval time.Duration
	// StatfsTimeout is how long a filesystem, or a file that may be on a disk, may take to
	// answer; 0 means 2 s. One that takes longer has failed until it answers in time.
	StatfsTimeout time.Duration
	// DiskPatience is how long a sample waits for one of these that has answered before:
	// then what it answered last serves, and a newer answer within StatfsTimeout gets a
	// sample of its own, as does the end of that. 0 means StatfsTimeout.
	DiskPatience time.Duration

	// Kernel has the counters of the BPF programs; nil without BPF.
	Kernel Kernel
	// GaveUp tells of the filesystem at a path whether the kernel refuses writes to it, if
	// that is known; nil without BPF.
	GaveUp func(path string) (is, known bool)
	// Logger gets one line when a source fails, and one when it works again;
	// nil for none.
	Logger *slog.Logger
	// Registerer gets the metrics, which can be registered once; nil for none.
	Registerer prometheus.Registerer
}

// Kernel is the part of bpf.Sensor that a sample reads.
type Kernel interface{ Counters() bpf.Counters }

// Cause is why a sample is taken.
type Cause uint8

// The causes.
const (
	CauseTick   Cause = iota // the interval is over
	CauseNear                // observe asked for it, as a limit is near
	CauseEvent               // a BPF program reported something
	CauseStall               // tasks stall on a resource
	CauseMounts              // a filesystem was mounted, unmounted, remounted, or turned read-only
	CauseCgroup              // the pods' cgroup ran into a limit
	CauseLimits              // pid_max or threads-max was written to
	CauseView                // a live table is shown
	CauseReload              // the limits or the interval changed
	CauseDisk                // a disk that was not waited for has answered, or failed

	// NumCauses is the length of an array indexed by Cause.
	NumCauses = int(iota)
)

// String returns the name used in metrics.
func (c Cause) String() string {
	return [NumCauses]string{"tick", "near", "event", "stall", "mounts", "cgroup", "limits", "view", "reload", "disk"}[c]
}

// machineInterval is how often the facts that rarely change are re-read. Their files
// are opened anew each time, which costs several times as much as a sample.
const machineInterval = time.Minute

// Sampler reads the node. One goroutine at a time may call Sample; the other
// methods are safe for concurrent use.
type Sampler struct {
	cfg     Config
	metrics *metrics

	memory *memoryReader
	tasks  *taskReader
	stalls *stallReader
	disks  *diskReader
	facts  *factReader
	vmstat hotfile.File

	oomKills    int64
	vmstatTable []hotfile.Key

	wake    chan Cause
	causes  [NumCauses]atomic.Uint64
	remount atomic.Bool            // the next sample looks up the mounts
	images  atomic.Pointer[string] // the latest directory of ImagesAt

	interval atomic.Int64 // a Duration

	current     Snapshot // owned by the goroutine that calls Sample
	machineRead time.Time
	failing     [NumSources]bool // so that a sample without errors need not ask the log

	foreignCgroups, lacksPSI bool // as logged last

	mu      sync.Mutex // guards the rest
	last    Snapshot
	started time.Time
	doubted time.Time // when last was first found too old
}

// validate returns an error that names the first wrong field.
func (c *Config) validate() error {
	type path struct{ name, value string }
	paths := []path{
		{"Procfs", c.Procfs}, {"Sysfs", c.Sysfs}, {"Rootfs", c.Rootfs}, {"RootDirectory", c.RootDirectory},
	}
	for _, dir := range c.ImageDirectories {
		paths = append(paths, path{"ImageDirectories", dir})
	}
	for _, p := range paths {
		if !filepath.IsAbs(p.value) {
			return fmt.Errorf("%s: %q is not an absolute path", p.name, p.value)
		}
	}
	if c.Interval <= 0 {
		return fmt.Errorf("Interval: %s is not positive", c.Interval)
	}
	if c.StatfsTimeout < 0 {
		return fmt.Errorf("StatfsTimeout: %s is negative", c.StatfsTimeout)
	}
	return nil
}

// New makes a Sampler. It opens no file and starts no goroutine; the first
// Sample does. The caller closes it.
func New(cfg Config) (*Sampler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.StatfsTimeout == 0 {
		cfg.StatfsTimeout = defaultStatfsTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = once.Logger(cfg.Logger)
	wait := waits{timeout: cfg.StatfsTimeout, patience: cfg.StatfsTimeout}
	if cfg.DiskPatience > 0 {
		wait.patience = min(wait.patience, cfg.DiskPatience)
	}
	s := &Sampler{
		cfg:    cfg,
		memory: newMemoryReader(cfg.Procfs),
		tasks:  newTaskReader(cfg.Procfs),
		stalls: newStallReader(cfg.Procfs),
		facts:  newFactReader(cfg.Procfs, cfg.Sysfs, cfg.Rootfs, wait),
		disks:  newDiskReader(cfg.Procfs, cfg.Rootfs, cfg.RootDirectory, cfg.ImageDirectories, wait),
		vmstat: hotfile.New(filepath.Join(cfg.Procfs, "vmstat")),
		wake:   make(chan Cause, 1),
	}
	for _, late := range []*lateness{&s.disks.nodefs.late, &s.disks.imagefs.late, &s.disks.mountsLate} {
		late.wake = func() { s.Wake(CauseDisk) }
	}
	s.interval.Store(int64(cfg.Interval))
	s.vmstatTable = []hotfile.Key{{Name: "oom_kill", Value: &s.oomKills}}
	var err error
	if s.metrics, err = newMetrics(cfg.Registerer, s); err != nil {
		return nil, err
	}
	return s, nil
}

// ImagesAt makes the filesystem of dir, an absolute path of the node, imagefs if dir
// exists, and wakes Run: a container runtime has reported where it keeps its images. It
// never blocks, and may be called as often as is convenient.
func (s *Sampler) ImagesAt(dir string) {
	if old := s.images.Swap(&dir); old == nil || *old != dir {
		s.Wake(CauseMounts)
	}
}

// Interval returns the time between two samples if nothing asks for one sooner.
func (s *Sampler) Interval() time.Duration { return time.Duration(s.interval.Load()) }

// SetInterval changes the interval, from the next sample on.
func (s *Sampler) SetInterval(d time.Duration) { s.interval.Store(int64(d)) }

func (c *Config) cgroupfs() string { return filepath.Join(c.Sysfs, "fs/cgroup") }

// Sample reads everything once. It never fails as a whole: what could not be read is
// absent from the Snapshot, with the reason in Snapshot.Errors. The Snapshot belongs to
// the Sampler and is valid until the next Sample; copy it to keep it. In steady state
// Sample allocates nothing.
func (s *Sampler) Sample() *Snapshot {
	snap := &s.current
	snap.Time = time.Now()
	remount := s.remount.Swap(false) || snap.Errors[SourceMounts] != nil
	if dir := s.images.Load(); dir != nil && s.disks.imagesAt(*dir) {
		remount = true
	}
	s.disks.start(snap.Time)
	due := s.machineRead.IsZero() || snap.Time.Sub(s.machineRead) >= machineInterval
	s.facts.start(snap, snap.Time, due)
	if due {
		s.machineRead, remount = snap.Time, true
		s.memory.discover(s.cfg.cgroupfs())
		s.tasks.discover()
		s.noteCgroupRoot(cgroup.CheckRoot(s.memory.root, s.memory.version))
		s.stalls.discover()
	}
	s.memory.read(snap)
	s.tasks.read(snap)
	s.stalls.read(snap)
	s.readVmstat(snap)
	if s.cfg.Kernel != nil {
		snap.Kernel = s.cfg.Kernel.Counters()
	}
	s.facts.finish(snap)
	s.disks.finish(snap, remount, s.cfg.GaveUp)

	// Capacity outlives a read that fails: the node still has its memory.
	if snap.Memory.OK {
		snap.Capacity.Memory, snap.Capacity.Swap, snap.Capacity.MemoryOK = snap.Memory.Total, snap.Swap.Total, true
	}
	if fs := &snap.Signals[NodeFsAvailable]; fs.OK {
		snap.Capacity.EphemeralStorage = fs.Capacity
	}
	snap.Took = time.Since(snap.Time)

	s.note(snap)
	s.metrics.sampleSeconds.Observe(snap.Took.Seconds())
	s.mu.Lock()
	s.last = *snap
	s.mu.Unlock()
	return snap
}

func (s *Sampler) readVmstat(snap *Snapshot) {
	b, err := s.vmstat.Read()
	if err == nil {
		if err = hotfile.ParseTable(b, s.vmstatTable); err != nil {
			err = readError(s.vmstat.Path, err)
		}
	}
	snap.Errors[SourceVmstat] = err
	snap.OOMKills = Count{}
	if err == nil {
		snap.OOMKills = Count{Value: uint64(s.oomKills), OK: true}
	}
}

// note counts the sources that failed and logs each once per change, and likewise that
// the kernel has no PSI.
func (s *Sampler) note(snap *Snapshot) {
	if err := snap.Pressure[MemoryResource].Err; errors.Is(err, errors.ErrUnsupported) != s.lacksPSI {
		if s.lacksPSI = !s.lacksPSI; s.lacksPSI {
			s.cfg.Logger.Info("no pressure stall information", "err", err)
		} else {
			s.cfg.Logger.Info("pressure stall information is available now")
		}
	}
	for i, err := range snap.Errors {
		name := Source(i).String()
		switch {
		case err != nil:
			s.failing[i] = true
			s.metrics.readErrors[i].Inc()
			s.cfg.Logger.Warn("source cannot be read", once.Varying, "source "+name, "source", name, "err", err)
		case s.failing[i]:
			s.failing[i] = false
			s.cfg.Logger.Info("source can be read again", once.Recovery, "source "+name, "source", name)
		}
	}
}

// noteCgroupRoot logs once per change that the cgroups are a container's, not the
// node's. That is no error of a source: no figure of the node is read at their root.
func (s *Sampler) noteCgroupRoot(err error) {
	if foreign := err != nil; foreign != s.foreignCgroups {
		if s.foreignCgroups = foreign; foreign {
			s.cfg.Logger.Warn("cgroups outside of this container are not visible", "err", err)
		}
	}
}

// Wake makes Run take a sample now. It never blocks: several calls before that sample
// begins get one sample, which counts as that of the first cause.
func (s *Sampler) Wake(cause Cause) {
	if cause == CauseMounts {
		s.remount.Store(true)
	}
	select {
	case s.wake <- cause:
	default:
	}
}

// Run samples at once, then at each interval and each Wake, and passes every Snapshot
// to observe, which must not keep the pointer. Observe returns the time until the next
// sample, if that is to come before the interval is over, or 0. Run returns the cause
// of ctx when that ends.
func (s *Sampler) Run(ctx context.Context, observe func(*Snapshot) (next time.Duration)) error {
	s.mu.Lock()
	s.started = time.Now()
	s.mu.Unlock()
	timer := time.NewTimer(s.Interval())
	defer timer.Stop()
	for cause := CauseTick; ; {
		s.causes[cause].Add(1)
		snap := s.Sample()
		next, due := observe(snap), CauseNear
		if interval := s.Interval(); next <= 0 || next >= interval {
			next, due = interval, CauseTick
		}
		// Counted from the beginning of the sample, but a machine that is slow to
		// answer gets a pause.
		timer.Reset(max(next-snap.Took, min(next, minPause)))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			cause = due
		case cause = <-s.wake:
		}
	}
}

// minPause is the shortest time from the end of a sample to the next tick.
const minPause = 100 * time.Millisecond

// Last returns the latest Snapshot, and false before the first one.
func (s *Sampler) Last() (Snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, !s.last.Time.IsZero()
}

// Causes returns how many samples Run has taken, by what asked for them.
func (s *Sampler) Causes() (taken [NumCauses]uint64) {
	for i := range taken {
		taken[i] = s.causes[i].Load()
	}
	return taken
}

var errNoSample = errors.New("no sample yet")

// Healthy returns an error if the sampler is stuck: if the latest sample is older than
// three intervals and two statfs timeouts, by a clock that stops while the machine is
// suspended, and still is at another call at least one statfs timeout later. (Where
// this process or its virtual machine was stopped for a while, the first call comes
// before the sampler had a chance.) It reports whether the sampler is alive, not
// whether it could read everything.
func (s *Sampler) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, limit := time.Now(), 3*s.Interval()+2*s.cfg.StatfsTimeout
	if s.last.Time.IsZero() {
		if s.started.IsZero() || now.Sub(s.started) < limit {
			return errNoSample
		}
		return fmt.Errorf("%w after %s", errNoSample, limit)
	}
	age := now.Sub(s.last.Time)
	if age <= limit {
		return nil
	}
	if !s.doubted.After(s.last.Time) {
		s.doubted = now
	}
	if now.Sub(s.doubted) < s.cfg.StatfsTimeout {
		return nil
	}
	return fmt.Errorf("last sample is %s old; limit is %s", age.Round(time.Second), limit)
}

// Close closes every file. It must not be called during a Sample, and no Sample may
// follow; Last and Healthy still work. A call that hangs ends when the kernel returns.
func (s *Sampler) Close() {
	s.memory.close()
	s.tasks.close()
	s.stalls.close()
	s.vmstat.Close()
}
