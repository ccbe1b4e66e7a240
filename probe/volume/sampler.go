package volume

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// Snapshot is what is known of the CSI volumes in use on a node. It does not change
// once it was returned.
type Snapshot struct {
	// Known is false until the first look has succeeded.
	Known bool
	// InUse are the volumes, sorted by their names, without duplicates.
	InUse []Volume
	// Err is why more may be in use; nil if InUse is complete.
	Err error
}

// Config configures a Sampler.
type Config struct {
	// Procfs and Rootfs are where the node's /proc and / are mounted.
	Procfs, Rootfs string
	// RootDirectory is the directory of the node that holds the volumes.
	RootDirectory string
	// Timeout is how long a look may take; 0 means 2 s.
	Timeout time.Duration

	// Alive is called by Run with the time within which it will be called again, unless
	// Run is stuck; 0 stands for however long. A disk that hangs does not matter.
	// Optional.
	Alive func(within time.Duration)
	// Logger gets one line when a look fails, and one when all volumes are known
	// again; nil for none.
	Logger *slog.Logger
	// Registerer gets the metrics, which can be registered once; nil for none.
	Registerer prometheus.Registerer
}

const (
	// lookInterval is the time between two looks that nothing asked for.
	lookInterval = time.Minute
	// retryPause is the pause after a look that failed. It doubles with each failure,
	// up to lookInterval.
	retryPause = time.Second

	// slack is how long what Run does may take besides a look.
	slack = 10 * time.Second

	defaultTimeout = 2 * time.Second
)

// Sampler finds the CSI volumes in use on the node by its mount table and the files
// that a kubelet writes beside the mounts.
//
// A volume that is left out may be detached while it is written to, so a volume once
// known stays in use until a look has read everything and did not find it.
//
// A look may hang, as those files are on the node's own disk. So each runs in a
// goroutine; one that hangs is left alone until the kernel returns, and no other starts
// meanwhile.
//
// One goroutine at a time may call Sample or Run; the other methods are safe for
// concurrent use.
type Sampler struct {
	cfg  Config
	wake chan struct{}
	// mounts is finder.mounts, and read is readVolume; tests replace them.
	mounts func() ([]volumeMount, error)
	read   func(path string) (Volume, bool, error)

	inUse  *prometheus.GaugeVec // without a label: absent until it is set
	errors prometheus.Counter

	// What follows belongs to the goroutine that calls Sample.
	looked *look
	late   chan *look // the answer of a look that timed out; else nil

	mu   sync.Mutex // guards last
	last Snapshot
}

// look is the result of one look at the node. It does not change afterwards.
type look struct {
	mounts  []volumeMount
	volumes []Volume
	err     error
}

// New makes a Sampler. It opens nothing and starts no goroutine.
func New(cfg Config) (*Sampler, error) {
	for _, c := range []struct{ name, value string }{{"Procfs", cfg.Procfs}, {"Rootfs", cfg.Rootfs}, {"RootDirectory", cfg.RootDirectory}} {
		if !filepath.IsAbs(c.value) {
			return nil, fmt.Errorf("%s: %q is not an absolute path", c.name, c.value)
		}
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("Timeout: %s is negative", cfg.Timeout)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Alive == nil {
		cfg.Alive = func(time.Duration) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = once.Logger(cfg.Logger)
	s := &Sampler{
		cfg: cfg, wake: make(chan struct{}, 1),
		mounts: newFinder(cfg.Procfs, cfg.Rootfs, cfg.RootDirectory).mounts, read: readVolume,
		inUse: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodeprobe_volumes_in_use",
			Help: "CSI volumes in use on the node. Absent until it has been looked at.",
		}, nil),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_volumes_read_errors_total",
			Help: "Looks for volumes that could not read everything.",
		}),
	}
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{s.inUse, s.errors} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
	}
	return s, nil
}

// Wake makes Run look now. It never blocks.
func (s *Sampler) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Last returns what is known at present.
func (s *Sampler) Last() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Run looks at once, then at each Wake and once a minute, and sooner after a look that
// failed. It calls changed after each look whose result differs from the one before. It
// returns the cause of ctx when that ends.
func (s *Sampler) Run(ctx context.Context, changed func()) error {
	var pause time.Duration
	for {
		s.cfg.Alive(s.cfg.Timeout + slack)
		before := s.Last()
		now := s.Sample(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if now.Known != before.Known || (now.Err == nil) != (before.Err == nil) || !slices.Equal(now.InUse, before.InUse) {
			changed()
		}
		pause = min(max(2*pause, retryPause), lookInterval)
		if now.Err == nil {
			pause = 0
		}
		timer := time.NewTimer(cmp.Or(pause, lookInterval))
		s.cfg.Alive(0)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-s.late: // out of date by now
			s.late = nil
		case <-timer.C:
		}
		timer.Stop()
	}
}

// errSlow is the timeout that a look exceeded. It names no time of day, so that the
// message stays the same while nothing changes.
type errSlow time.Duration

func (e errSlow) Error() string {
	return "find volumes: no answer within " + time.Duration(e).String()
}

// Sample looks for volumes and waits for Config.Timeout at most, and not at all while
// an earlier look hangs. It returns what was known before if it has no answer in time
// or ctx ends.
func (s *Sampler) Sample(ctx context.Context) Snapshot {
	if s.late != nil {
		select {
		case <-s.late: // out of date by now
			s.late = nil
		default:
			return s.settle(nil, errSlow(s.cfg.Timeout))
		}
	}
	answer := make(chan *look, 1)
	go func(before *look) { answer <- s.look(before) }(s.looked)
	timer := time.NewTimer(s.cfg.Timeout)
	defer timer.Stop()
	select {
	case found := <-answer:
		return s.settle(found, found.err)
	case <-timer.C:
		s.late = answer
		return s.settle(nil, errSlow(s.cfg.Timeout))
	case <-ctx.Done():
		s.late = answer
		return s.Last()
	}
}

// settle stores the result of a look; nil is one that timed out.
func (s *Sampler) settle(found *look, err error) Snapshot {
	s.note(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.Err = err
	if found != nil {
		s.looked = found
		s.last.Known, s.last.InUse = true, found.volumes
		s.inUse.WithLabelValues().Set(float64(len(found.volumes)))
	}
	return s.last
}

// note counts a look that failed, and logs it once per change.
func (s *Sampler) note(err error) {
	const key = "volumes in use"
	if err != nil {
		s.errors.Inc()
		s.cfg.Logger.Warn("volumes in use cannot be read; keeping those known before", once.Varying, key, "err", err)
		return
	}
	s.cfg.Logger.Info("all volumes in use are known again", once.Recovery, key)
}

// look looks at the node once; before is the result of the previous look, or nil.
func (s *Sampler) look(before *look) *look {
	var was look
	if before != nil {
		was = *before
	}
	mounts, err := s.mounts()
	if err == nil && (before == nil || lacks(mounts, was.mounts)) {
		// Before Linux 5.8, the table may lack lines while others come and go.
		var again []volumeMount
		again, err = s.mounts()
		mounts = sortMounts(append(mounts, again...))
	}
	if err != nil {
		return &look{was.mounts, was.volumes, err}
	}
	if before != nil && was.err == nil && slices.Equal(mounts, was.mounts) {
		return before // the files cannot have changed either
	}
	found := &look{mounts: mounts}
	failed := 0
	seen := map[string]bool{}
	for _, m := range mounts {
		if seen[m.data] {
			continue
		}
		seen[m.data] = true
		v, ok, err := s.read(m.data)
		switch {
		case err != nil:
			found.err = cmp.Or(found.err, err)
			failed++
		case ok:
			found.volumes = append(found.volumes, v)
		}
	}
	if found.err != nil {
		found.volumes = append(found.volumes, was.volumes...)
	}
	if failed > 1 {
		found.err = fmt.Errorf("%w, and so in %d more", found.err, failed-1)
	}
	found.volumes = sortVolumes(found.volumes)
	return found
}
