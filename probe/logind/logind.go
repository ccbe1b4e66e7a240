// Package logind delays a shutdown of the machine until the API server knows about it,
// through an inhibitor lock of systemd-logind. The cluster then need not wait for the
// node's Lease to expire.
package logind

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// Config is the configuration of an Inhibitor. All fields but Alive are required.
type Config struct {
	// Address is that of the system bus, as SystemBus returns it.
	Address string
	// Who names the holder of the lock in systemd-inhibit(1).
	Who string
	// GracePeriod bounds the delay. logind's InhibitDelayMaxSec, 5 s unless configured,
	// bounds it as well.
	GracePeriod time.Duration
	// Begin is called when a shutdown begins. It returns nil once the API server knows,
	// or when there is nothing to report, and an error if ctx, which ends after
	// GracePeriod, ends before that. The shutdown proceeds in either case.
	Begin func(ctx context.Context) error
	// Cancel is called when a shutdown that Begin was called for was cancelled. It must
	// not block.
	Cancel func()
	// Alive is called by Run with the time within which it will be called again, unless
	// Run is stuck; 0 stands for however long. A bus that does not answer does not matter.
	// Optional.
	Alive  func(within time.Duration)
	Logger *slog.Logger
}

// Inhibitor delays shutdowns while Run runs.
type Inhibitor struct {
	cfg     Config
	connect func(context.Context) (bus, error)

	// Owned by Run.
	lock  io.Closer // logind waits as long as it is open; nil while not held
	begun bool      // Begin was called, and Cancel was not called since
}

// bus is a connection to logind.
type bus interface {
	// inhibit takes a lock that delays shutdowns until it is closed. The error wraps
	// errInProgress if a shutdown has begun already.
	inhibit(ctx context.Context) (io.Closer, error)
	// preparing reports whether a shutdown has begun.
	preparing(ctx context.Context) (bool, error)
	// changes delivers a value after each change of what preparing reports. It is closed
	// when the connection is lost.
	changes() <-chan struct{}
	close()
}

var (
	errInProgress = errors.New("a shutdown is in progress")
	errLost       = errors.New("connection is lost")
)

// New returns an Inhibitor. It does not connect yet.
func New(cfg Config) *Inhibitor {
	if cfg.Alive == nil {
		cfg.Alive = func(time.Duration) {}
	}
	cfg.Logger = once.Logger(cfg.Logger)
	return &Inhibitor{cfg: cfg, connect: func(ctx context.Context) (bus, error) { return dial(ctx, cfg.Address, cfg.Who) }}
}

const (
	retryInterval = 10 * time.Second
	callTimeout   = 5 * time.Second // of connecting, too
	// slack is how long Run may take from one wait to the next besides calls and Begin.
	slack = 10 * time.Second
)

// onceKey names the connection to logind where its failures are logged.
const onceKey = "systemd-logind"

// Run delays shutdowns until ctx ends, and returns its cause. If there is no bus, or no
// logind, it retries every 10 s and logs each error once.
func (i *Inhibitor) Run(ctx context.Context) error {
	for {
		err := i.listen(ctx)
		i.release()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		i.cfg.Logger.Warn("shutdowns of the machine are not delayed", once.Failure, onceKey, "err", err)
		i.cfg.Alive(0)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
}

// listen uses one connection until it is lost or ctx ends.
func (i *Inhibitor) listen(ctx context.Context) error {
	i.cfg.Alive(2*callTimeout + slack) // connecting and subscribing
	bus, err := i.connect(ctx)
	if err != nil {
		return err
	}
	defer bus.close()
	for {
		i.cfg.Alive(2*callTimeout + i.cfg.GracePeriod + slack)
		// Read after each signal, which anybody can send, and before the first: a shutdown
		// may have begun, or been cancelled, while there was no connection.
		if err := i.check(ctx, bus); err != nil {
			return err
		}
		i.cfg.Logger.Info("systemd-logind answers again", once.Recovery, onceKey)
		i.cfg.Alive(0)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case _, ok := <-bus.changes():
			if !ok {
				return errLost
			}
		}
	}
}

// check acts on a shutdown that has begun or was cancelled since the last check.
func (i *Inhibitor) check(ctx context.Context, bus bus) error {
	preparing, err := i.preparing(ctx, bus)
	if err != nil {
		return err
	}
	if preparing {
		if !i.begun {
			i.begun = true
			i.begin(ctx)
		}
		i.release()
		return nil
	}
	if i.begun {
		i.begun = false
		i.cfg.Logger.Info("shutdown was cancelled")
		i.cfg.Cancel()
	}
	if i.lock == nil {
		return i.inhibit(ctx, bus)
	}
	return nil
}

// begin calls Begin, for as long as the grace period.
func (i *Inhibitor) begin(ctx context.Context) {
	i.cfg.Logger.Info("machine is shutting down")
	ctx, stop := context.WithTimeout(ctx, i.cfg.GracePeriod)
	defer stop()
	if err := i.cfg.Begin(ctx); err != nil {
		i.cfg.Logger.Warn("shutdown proceeds before the API server knows", "err", err)
	}
}

// inhibit takes the lock, unless a shutdown is in progress: logind hands out none then.
func (i *Inhibitor) inhibit(ctx context.Context, bus bus) error {
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	lock, err := bus.inhibit(ctx)
	if errors.Is(err, errInProgress) {
		return nil
	}
	if err != nil {
		return err
	}
	i.lock = lock
	i.cfg.Logger.Info("delaying shutdown until the API server knows", "gracePeriod", i.cfg.GracePeriod)
	return nil
}

func (i *Inhibitor) preparing(ctx context.Context, bus bus) (bool, error) {
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	return bus.preparing(ctx)
}

func (i *Inhibitor) release() {
	if i.lock != nil {
		i.lock.Close()
		i.lock = nil
	}
}
