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
)

// Snapshot are the CSI volumes in use on a node, as far as they are known. They do
// not change once they were returned.
type Snapshot struct {
	// Known is false until the node has been looked at.
	Known bool
	// InUse are in the order of their names, each once.
	InUse []Volume
	// Err is why there may be more in use; nil if these are all.
	Err error
}

// Config says where to look for volumes.
type Config struct {
	// Procfs and Rootfs are where the node's /proc and / are mounted.
	Procfs, Rootfs string
	// RootDirectory is the directory of the node that holds the volumes.
	RootDirectory string
	// Timeout is how long a look may take; 0 means 2 s.
	Timeout time.Duration

	// Logger gets one line when a volume cannot be told, and one when all can be
	// again; nil for none.
	Logger *slog.Logger
	// Registerer gets the metrics, which can be registered once; nil for none.
	Registerer prometheus.Registerer
}

const (
	// lookInterval is how often the volumes are looked for if nobody asks.
	lookInterval = time.Minute
	// retryPause is the time to the next look after one that failed. It doubles
	// at each further one, up to lookInterval.
	retryPause = time.Second
	// relogInterval is how often another error of the same outage may be logged.
	relogInterval = time.Minute

	defaultTimeout = 2 * time.Second
)

// Sampler finds out which CSI volumes are in use on the node: those that are
// mounted, or mapped as block devices, and not those that should be.
//
// A volume that is left out may be detached while it is written to, so one that was
// known stays so until a look has found everything there is, without it.
//
// A look may hang, as the files that say what is mounted are on the node's own
// disk. So each has a goroutine of its own; one that hangs is left alone until the
// kernel lets go of it, and there is no other meanwhile.
//
// One goroutine at a time may call Sample or Run; the other methods are safe for
// concurrent use.
type Sampler struct {
	cfg  Config
	wake chan struct{}
	// mounts is finder.mounts, and read is readVolume, but in tests.
	mounts func() ([]volumeMount, error)
	read   func(path string) (Volume, bool, error)

	inUse  *prometheus.GaugeVec // without a label: absent until it is set
	errors prometheus.Counter

	// What follows belongs to the goroutine that calls Sample.
	looked   *look
	late     chan *look // where an answer that was given up will come; else nil
	logged   string     // the error that was logged last; "" if none since all could be read
	loggedAt time.Time

	mu   sync.Mutex // guards last
	last Snapshot
}

// look is what one look at the node found. It does not change afterwards.
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
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Sampler{
		cfg: cfg, wake: make(chan struct{}, 1),
		mounts: newFinder(cfg.Procfs, cfg.Rootfs, cfg.RootDirectory).mounts, read: readVolume,
		inUse: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nodeprobe_volumes_in_use",
			Help: "CSI volumes in use on the node. Absent until it has been looked at.",
		}, nil),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_volumes_read_errors_total",
			Help: "Looks for volumes in which one could not be told.",
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

// Wake asks Run for a look now. It never blocks.
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

// Run looks at once, then at each Wake and once a minute, and sooner again after a
// look that failed. It calls changed after each that tells something else than the
// one before. It returns when ctx ends, with its cause.
func (s *Sampler) Run(ctx context.Context, changed func()) error {
	var pause time.Duration
	for {
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
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-s.late: // and by now stale
			s.late = nil
		case <-timer.C:
		}
		timer.Stop()
	}
}

// errSlow says for how long a look was waited for, so that the message stays the
// same while nothing changes.
type errSlow time.Duration

func (e errSlow) Error() string {
	return "find volumes: no answer within " + time.Duration(e).String()
}

// Sample looks for volumes, which takes a timeout at most, and none while an
// earlier look still hangs.
func (s *Sampler) Sample(ctx context.Context) Snapshot {
	if s.late != nil {
		select {
		case <-s.late: // what it tells is stale by now
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

// settle keeps what a look has found; nil is one that did not end.
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

// note logs once per change that a look failed.
func (s *Sampler) note(err error) {
	if err == nil {
		if s.logged != "" {
			s.logged = ""
			s.cfg.Logger.Info("all volumes in use are known again")
		}
		return
	}
	s.errors.Inc()
	text, now := err.Error(), time.Now()
	if text != s.logged && (s.logged == "" || now.Sub(s.loggedAt) >= relogInterval) {
		s.logged, s.loggedAt = text, now
		s.cfg.Logger.Warn("volumes in use cannot be read; keeping those known before", "err", err)
	}
}

// look looks at the node once; before is what the look before found, or nil.
func (s *Sampler) look(before *look) *look {
	var was look
	if before != nil {
		was = *before
	}
	mounts, err := s.mounts()
	if err == nil && (before == nil || lacks(mounts, was.mounts)) {
		// Before Linux 5.8, the table lacks lines at times while others come and go.
		var again []volumeMount
		again, err = s.mounts()
		mounts = sortMounts(append(mounts, again...))
	}
	if err != nil {
		return &look{was.mounts, was.volumes, err}
	}
	if before != nil && was.err == nil && slices.Equal(mounts, was.mounts) {
		return before // so the files say the same, too
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
