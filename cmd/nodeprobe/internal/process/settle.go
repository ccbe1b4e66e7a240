package process

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// settleAfter is how long after the first sample starting is over: programs are
	// attached, the Node is registered, and everything was done once.
	settleAfter = 5 * time.Second
	// trimAfter is how long after the last call that failed memory is trimmed again:
	// errors take other paths through the program, and each new connection is a TLS
	// handshake. While the API server is away, calls fail more often than that.
	trimAfter = time.Minute
	// widenAfter is when everything has been done once that is done from time to time: the
	// longest is the period of the Node's status, 5 minutes by default.
	widenAfter = 10 * time.Minute
	// enforceInterval is how often the bound on locked memory is enforced.
	enforceInterval = time.Minute
	// readyInterval is how often, at most, a rehearsal that waits for it looks at readiness,
	// and readySpread what is added at random: of all the nodes that an API server finds
	// waiting when it starts, each rehearses at another time within a minute.
	readyInterval, readySpread = 10 * time.Second, 50 * time.Second
)

// pauses are how long to wait, at least, after each rehearsal of which a step failed. After
// the fifth there is none: an API server that refuses dry runs will go on to do so.
var pauses = []time.Duration{readyInterval, 10 * time.Minute, time.Hour, 6 * time.Hour}

// SettlerConfig is what a [Settler] is made from. Every field is required.
type SettlerConfig struct {
	Memory *Memory
	// Rehearse does once what may have to be done in a hurry. Called again, it does what
	// failed.
	Rehearse func(context.Context) error
	// Ready returns why that would fail again, or nil. It must not block.
	Ready  func() error
	Logger *slog.Logger
}

// Settler gives the memory back that only starting needed, and keeps the rest: it locks
// that, and has everything done once that may have to be done in a hurry. What an API
// server that is away keeps from that is done once it is back.
type Settler struct {
	cfg        SettlerConfig
	memory     lockable
	trim       func() error // for memory that is not locked
	random     func(below time.Duration) time.Duration
	reconnects chan struct{}
}

// lockable is a [Memory].
type lockable interface {
	Settle(rehearse func()) error
	Rehearsed(error)
	Widen()
	Enforce()
	State() MemoryState
}

// NewSettler makes a Settler. It starts no goroutine.
func NewSettler(cfg SettlerConfig) *Settler {
	return &Settler{cfg: cfg, memory: cfg.Memory, trim: Trim, random: rand.N[time.Duration], reconnects: make(chan struct{}, 1)}
}

// Reconnected is to be called when connections were dropped. It does not block.
func (s *Settler) Reconnected() {
	select {
	case s.reconnects <- struct{}{}:
	default:
	}
}

// Run settles, and bounds what is locked, until ctx ends, and returns the cause. It is to
// be called when the first sample is taken.
func (s *Settler) Run(ctx context.Context) error {
	select {
	case <-time.After(settleAfter):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	again, widen, trim := time.NewTimer(0), time.NewTimer(0), time.NewTimer(0)
	again.Stop()
	widen.Stop()
	trim.Stop()
	left := pauses
	if s.settle(ctx) == nil {
		widen.Reset(widenAfter)
	} else { // much is still to be used for the first time
		again.Reset(left[0])
	}
	enforce := time.Tick(enforceInterval)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.reconnects:
			trim.Reset(trimAfter)
		case <-trim.C:
			if s.memory.State().Locked {
				continue
			}
			if err := s.trim(); err != nil {
				s.cfg.Logger.Debug("cannot release memory", "err", err)
			}
		case <-again.C:
			locked := s.memory.State().Locked
			if locked && s.cfg.Ready() != nil {
				again.Reset(readyInterval + s.random(readySpread))
				continue
			}
			widen.Reset(widenAfter)
			if locked && s.rehearseAgain(ctx) != nil {
				if left = left[1:]; len(left) > 0 {
					again.Reset(left[0])
				}
			}
		case <-widen.C:
			s.memory.Widen()
		case <-enforce:
			s.memory.Enforce()
		}
	}
}

// settle locks memory. The error is why something was not rehearsed that should be locked.
func (s *Settler) settle(ctx context.Context) (incomplete error) {
	err := s.memory.Settle(func() {
		incomplete = s.cfg.Rehearse(ctx)
		s.memory.Rehearsed(incomplete)
	})
	if err != nil {
		s.cfg.Logger.Warn("memory is not locked: when the node is short of it, nodeprobe waits for the disk", "err", err)
	}
	if state := s.memory.State(); state.Locked {
		s.cfg.Logger.Info("memory is locked", "bytes", state.Bytes, "limit", state.Limit)
	}
	if incomplete != nil && ctx.Err() == nil {
		s.cfg.Logger.Info("not everything is rehearsed", "err", incomplete)
	}
	return incomplete
}

// rehearseAgain rehearses what failed.
func (s *Settler) rehearseAgain(ctx context.Context) error {
	start := time.Now()
	err := s.cfg.Rehearse(ctx)
	took := time.Since(start)
	s.memory.Rehearsed(err)
	s.memory.Enforce()
	switch {
	case err == nil:
		s.cfg.Logger.Info("rehearsed", "took", took, "bytes", s.memory.State().Bytes)
	case ctx.Err() == nil:
		s.cfg.Logger.Info("not everything is rehearsed", "took", took, "err", err)
	}
	return err
}
