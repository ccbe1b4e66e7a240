// Package notify wakes the sampler from user space: by PSI triggers, the mount table,
// the sysctls that limit tasks, and the memory events of the pods' cgroup. Each is a
// hint that costs nothing while nothing happens, and that the next sample confirms or
// not; a source that a machine lacks costs just its hints.
//
// Stalls need Linux 4.20 with CONFIG_PSI, and psi=1 on the command line of kernels that
// have it off by default (RHEL). Without it their figures are absent, which is no error.
package notify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// Cause is what a Notifier reports.
type Cause uint8

// The causes. The first three are in the order of probe.Resource.
const (
	CPUStall    Cause = iota // tasks stall on the CPU
	MemoryStall              // tasks stall on memory
	IOStall                  // tasks stall on a disk
	Mounts                   // something was mounted, unmounted or remounted
	Cgroup                   // all pods reached their memory limit, or the OOM killer killed in one
	Limits                   // pid_max or threads-max was written to

	// NumCauses is the length of an array indexed by Cause.
	NumCauses = int(iota)
)

// String returns the name used in logs and metrics.
func (c Cause) String() string {
	return [NumCauses]string{"cpu_stall", "memory_stall", "io_stall", "mounts", "cgroup", "limits"}[c]
}

// Config configures a Notifier.
type Config struct {
	// Procfs and Sysfs are where the node's /proc and /sys are mounted.
	Procfs, Sysfs string
	// Stalls are the PSI triggers to set; nil means DefaultStallTriggers.
	Stalls []StallTrigger
	// Alive is called by Run with the time within which it will be called again, unless
	// Run is stuck; 0 stands for however long, as while it waits in the kernel. Optional.
	Alive func(within time.Duration)
	// Logger gets one line when a source is lost or missing, and one when it works
	// again; nil for none.
	Logger *slog.Logger
}

// Source is the state of one source of notifications.
type Source struct {
	Name  string
	Cause Cause
	// Active reports whether the kernel wakes us, and Detail by which file and on
	// which condition.
	Active bool
	Detail string
	// Err is why the source is not active, Remedy what to do about it.
	Err    error
	Remedy string
}

// Notifier waits for the kernel to report that a sample is due. Every source is
// optional; see Sources.
//
// Run blocks one thread in poll(2). The Go runtime's poller cannot take its place,
// neither directly (it does not ask for POLLPRI) nor through an epoll descriptor
// within its own: polling one of these files consumes its event, so the outer epoll
// would swallow what the inner one was to report.
//
// Refresh and Sources may be called from any goroutine.
type Notifier struct {
	alive  func(within time.Duration)
	logger *slog.Logger

	// poll is unix.Poll; tests replace it.
	poll func(fds []unix.PollFd, timeoutMillis int) (int, error)

	mu sync.Mutex
	// wakeFD is the eventfd that ends a poll; -1 while Run does not run. It is
	// closed under the lock, so that nobody writes to a descriptor that has been
	// reused.
	wakeFD  int
	watches []*watch       // written under the lock by Run, by Sources while there is no Run
	stalls  []StallTrigger // to be set in place of those that are; nil for no change

	procfs string
}

// watch is a source and its state.
type watch struct {
	source source
	fd     int // -1 while closed
	detail string
	err    error

	// The source is not polled before quiet. Nothing is lost by that: the kernel
	// keeps the event.
	quiet time.Time
	gap   time.Duration
}

// source is a file that poll(2) reports on.
type source interface {
	name() string
	cause() Cause
	// events are those to poll for.
	events() int16
	// open returns a descriptor to poll, and the Detail to show.
	open() (fd int, detail string, err error)
	// heard is called when poll reported something. It makes the descriptor
	// ready to report the next event, and reports whether this one deserves a
	// sample. After an error the descriptor is useless.
	heard(fd int, revents int16) (bool, error)
	// stale reports whether open would find something else by now.
	stale(fd int) bool
	// remedy returns what the operator can do about an error.
	remedy(err error) string
}

const (
	// minGap is the time between two reports of one source. Mounts come by the
	// hundred when pods start, and one sample covers them all.
	minGap = 500 * time.Millisecond
	// maxGap is how far the gap grows while a source reports nothing that deserves
	// a sample. The next tick would not be later.
	maxGap = 10 * time.Second
	// maxHandling is how long it may take to open all sources, or to handle what they
	// reported.
	maxHandling = 10 * time.Second
)

// New makes a Notifier. It opens nothing and starts no goroutine.
func New(cfg Config) (*Notifier, error) {
	for _, c := range []struct{ name, value string }{{"Procfs", cfg.Procfs}, {"Sysfs", cfg.Sysfs}} {
		if !filepath.IsAbs(c.value) {
			return nil, fmt.Errorf("%s: %q is not an absolute path", c.name, c.value)
		}
	}
	if cfg.Stalls == nil {
		cfg.Stalls = DefaultStallTriggers()
	}
	if cfg.Alive == nil {
		cfg.Alive = func(time.Duration) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Notifier{alive: cfg.Alive, logger: once.Logger(cfg.Logger), poll: unix.Poll, wakeFD: -1, procfs: cfg.Procfs, stalls: cfg.Stalls}
	for i, t := range cfg.Stalls {
		if err := t.validate(); err != nil {
			return nil, fmt.Errorf("stalls[%d]: %w", i, err)
		}
	}
	n.adoptStalls()
	n.add(&mountsSource{procfs: cfg.Procfs})
	n.add(&limitsSource{procfs: cfg.Procfs})
	cgroupfs := filepath.Join(cfg.Sysfs, "fs/cgroup")
	n.add(&cgroupSource{cgroupfs: cgroupfs, file: "memory.events.local"})
	n.add(&cgroupSource{cgroupfs: cgroupfs, file: "memory.events", only: "oom"})
	return n, nil
}

func (n *Notifier) add(s source) { n.watches = append(n.watches, newWatch(s)) }

func newWatch(s source) *watch { return &watch{source: s, fd: -1, gap: minGap} }

var errRunning = errors.New("already running")

// Run opens the sources that exist and calls notify, from this goroutine, for each
// event: at once, then at most twice a second per source, and always once after the
// last event of a series. It returns the cause of ctx when that ends, an error if
// poll(2) fails, and an error at once if Run is running already. A source that fails
// is no reason to return; without any, Run just waits. It closes what it opened.
func (n *Notifier) Run(ctx context.Context, notify func(Cause)) error {
	n.alive(maxHandling)
	if err := n.start(); err != nil {
		return err
	}
	defer n.finish()
	defer context.AfterFunc(ctx, n.Refresh)()

	fds := make([]unix.PollFd, 1+len(n.watches))
	for ctx.Err() == nil {
		timeout := n.prepare(fds, time.Now())
		n.alive(0)
		_, err := n.poll(fds, timeout)
		n.alive(maxHandling)
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return fmt.Errorf("wait for notifications: %w", err)
		}
		now := time.Now()
		for i, w := range n.watches {
			if revents := fds[1+i].Revents; revents != 0 && n.hear(w, revents, now) {
				notify(w.source.cause())
			}
		}
		if fds[0].Revents != 0 {
			n.lookAgain()
			fds = slices.Grow(fds[:1], len(n.watches))[:1+len(n.watches)]
		}
	}
	return context.Cause(ctx)
}

func (n *Notifier) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wakeFD >= 0 {
		return fmt.Errorf("run notifier: %w", errRunning)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("make eventfd: %w", err)
	}
	n.wakeFD = fd
	n.adoptStalls()
	n.openMissing()
	return nil
}

func (n *Notifier) finish() {
	n.mu.Lock()
	defer n.mu.Unlock()
	unix.Close(n.wakeFD)
	n.wakeFD = -1
	n.closeAll()
}

// prepare sets what to poll and returns for how long: for ever, unless the quiet of
// a source ends.
func (n *Notifier) prepare(fds []unix.PollFd, now time.Time) (timeoutMillis int) {
	fds[0] = unix.PollFd{Fd: int32(n.wakeFD), Events: unix.POLLIN}
	timeout := time.Duration(math.MaxInt64)
	for i, w := range n.watches {
		p := &fds[1+i]
		*p = unix.PollFd{Fd: int32(w.fd), Events: w.source.events()}
		if wait := w.quiet.Sub(now); wait > 0 && w.fd >= 0 {
			p.Fd = -1 // poll skips it
			timeout = min(timeout, wait)
		}
	}
	if timeout == math.MaxInt64 {
		return -1
	}
	return int((timeout + time.Millisecond - 1) / time.Millisecond)
}

// hear takes the event from w and reports whether it deserves a sample.
func (n *Notifier) hear(w *watch, revents int16, now time.Time) bool {
	worth, err := w.source.heard(w.fd, revents)
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		w.close()
		w.err = err
		n.log(w)
		return false
	}
	if worth {
		w.gap = minGap
	} else {
		w.gap = min(2*w.gap, maxGap)
	}
	w.quiet = now.Add(w.gap)
	return worth
}

// Refresh makes Run look again for sources that were missing, and for a cgroup that
// was recreated. Call it once a minute. It does not block.
func (n *Notifier) Refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wakeFD >= 0 {
		// Cannot fail: it would take 2^64 requests before they are read.
		_, _ = unix.Write(n.wakeFD, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// SetStalls replaces Config.Stalls; nil means DefaultStallTriggers. A trigger that stays
// is not set anew. It does not block.
func (n *Notifier) SetStalls(triggers []StallTrigger) {
	if triggers == nil {
		triggers = DefaultStallTriggers()
	}
	n.mu.Lock()
	n.stalls = triggers
	n.mu.Unlock()
	n.Refresh()
}

// adoptStalls makes the sources of the triggers that are to be set, and closes those of
// others. The caller holds the lock, or nobody else knows of n.
func (n *Notifier) adoptStalls() {
	if n.stalls == nil {
		return
	}
	var watches []*watch
	for _, t := range n.stalls {
		i := slices.IndexFunc(n.watches, func(w *watch) bool { s, ok := w.source.(*stallSource); return ok && s.trigger == t })
		if i >= 0 {
			watches = append(watches, n.watches[i])
		} else {
			watches = append(watches, newWatch(&stallSource{trigger: t, procfs: n.procfs}))
		}
	}
	for _, w := range n.watches {
		if _, ok := w.source.(*stallSource); !ok {
			watches = append(watches, w)
		} else if !slices.Contains(watches, w) {
			w.close()
		}
	}
	n.watches, n.stalls = watches, nil
}

// lookAgain answers Refresh.
func (n *Notifier) lookAgain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	var count [8]byte
	_, _ = unix.Read(n.wakeFD, count[:]) // only resets it
	n.adoptStalls()
	for _, w := range n.watches {
		if w.fd >= 0 && w.source.stale(w.fd) {
			w.close()
		}
	}
	n.openMissing()
}

// Sources returns the state of every source, in a fixed order. While Run does not run,
// it opens each for a moment to find out.
func (n *Notifier) Sources() []Source {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wakeFD < 0 {
		n.adoptStalls()
		n.openMissing()
		defer n.closeAll()
	}
	sources := make([]Source, len(n.watches))
	for i, w := range n.watches {
		sources[i] = Source{
			Name: w.source.name(), Cause: w.source.cause(),
			Active: w.fd >= 0, Detail: w.detail, Err: w.err,
		}
		if w.err != nil {
			sources[i].Remedy = w.source.remedy(w.err)
		}
	}
	return sources
}

// openMissing tries to open what is not open. The caller holds the lock.
func (n *Notifier) openMissing() {
	for _, w := range n.watches {
		if w.fd >= 0 {
			continue
		}
		fd, detail, err := w.source.open()
		if w.err = err; err == nil {
			w.fd, w.detail, w.quiet, w.gap = fd, detail, time.Time{}, minGap
		}
		n.log(w)
	}
}

func (n *Notifier) closeAll() {
	for _, w := range n.watches {
		w.close()
	}
}

func (w *watch) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
	w.fd, w.detail = -1, ""
}

// log logs once per change that a source fails, or works again. The level is Info: a
// machine without PSI or pods has nothing to fix.
func (n *Notifier) log(w *watch) {
	name := w.source.name()
	key := "notifications from " + name
	if w.err != nil {
		n.logger.Info("no notifications from source", once.Failure, key, "source", name, "err", w.err, "remedy", w.source.remedy(w.err))
		return
	}
	n.logger.Info("notifications from source again", once.Recovery, key, "source", name, "detail", w.detail)
}
