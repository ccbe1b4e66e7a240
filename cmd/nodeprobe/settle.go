package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
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
)

// settler gives the memory back that only starting needed, and keeps the rest: it locks
// that, and has everything done once that may have to be done in a hurry.
type settler struct {
	memory   *process.Memory
	rehearse func(context.Context)
	log      *slog.Logger

	reconnects chan struct{}
}

func newSettler(memory *process.Memory, rehearse func(context.Context), log *slog.Logger) *settler {
	return &settler{memory: memory, rehearse: rehearse, log: log, reconnects: make(chan struct{}, 1)}
}

// reconnected is called when connections were dropped. It does not block.
func (s *settler) reconnected() {
	select {
	case s.reconnects <- struct{}{}:
	default:
	}
}

// Run settles, and bounds what is locked, until ctx ends.
func (s *settler) Run(ctx context.Context) error {
	select {
	case <-time.After(settleAfter):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := s.memory.Settle(func() { s.rehearse(ctx) }); err != nil {
		s.log.Warn("memory is not locked: when the node is short of it, nodeprobe waits for the disk", "err", err)
	}
	if state := s.memory.State(); state.Locked {
		s.log.Info("memory is locked", "bytes", state.Bytes, "limit", state.Limit)
	}

	widen := time.NewTimer(widenAfter)
	trim := time.NewTimer(trimAfter)
	trim.Stop()
	enforce := time.NewTicker(enforceInterval)
	defer enforce.Stop()
	for {
		select {
		case <-ctx.Done():
			widen.Stop()
			trim.Stop()
			return context.Cause(ctx)
		case <-s.reconnects:
			trim.Reset(trimAfter)
		case <-trim.C:
			if s.memory.State().Locked {
				continue
			}
			if err := process.Trim(); err != nil {
				s.log.Debug("cannot release memory", "err", err)
			}
		case <-widen.C:
			s.memory.Widen()
		case <-enforce.C:
			s.memory.Enforce()
		}
	}
}
