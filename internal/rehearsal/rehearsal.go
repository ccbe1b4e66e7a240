// Package rehearsal does once what writing to the API server takes in a hurry, so that
// its pages are in memory, and stay there where memory is locked: a changed status, an
// Event, a Lease, a watch, another connection, and errors of all kinds.
//
// Its writers are those of the agent, made a second time: with connections of their own,
// on which every write is a dry run and requests fail on demand, and with metrics that
// nobody sees. So neither the API server nor the agent's own writers change by it. The
// agent decides what is posted, and whether anything may be sent at all.
package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// stepTimeout bounds each step. The longest, of the API server, takes some four seconds,
// in which it mostly waits.
const stepTimeout = 10 * time.Second

// collectInterval is between two collections of garbage during the steps. One takes a
// millisecond or two of CPU time.
const collectInterval = 100 * time.Millisecond

// Step is a part of a rehearsal.
type Step struct {
	Name string
	Do   func(context.Context) error
	// Always has the step taken also if it has succeeded before: other steps need it.
	Always bool
}

// Rehearsal remembers which steps have succeeded.
type Rehearsal struct {
	mu   sync.Mutex // guards done; held by Run
	done map[string]bool
}

// Run takes the steps that have not succeeded yet, one after the other, and logs how long
// each took. The error names those that failed; the others are taken all the same.
func (r *Rehearsal) Run(ctx context.Context, log *slog.Logger, steps []Step) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = map[string]bool{}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go collect(ctx)
	var errs []error
	for _, s := range steps {
		if r.done[s.Name] && !s.Always {
			continue
		}
		start := time.Now()
		err := s.bounded(ctx)
		log.Debug("rehearsed", "step", s.Name, "took", time.Since(start), "err", err)
		if r.done[s.Name] = err == nil; err != nil {
			errs = append(errs, fmt.Errorf("rehearse %s: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// collect collects garbage again and again until ctx ends. For each function that is under
// way on some stack, a collection looks into the runtime's tables, as does a stack that has
// to grow, and a collection makes stacks shrink.
func collect(ctx context.Context) {
	tick := time.NewTicker(collectInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			runtime.GC()
		}
	}
}

// bounded takes a step, and leaves it alone if it does not end in time: it may wait for a
// disk.
func (s Step) bounded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var worker deadline.Worker[error]
	err, late := worker.Do(stepTimeout+time.Second, s.Name, func() error { return s.Do(ctx) })
	return errors.Join(late, err)
}

// Until waits until something is so. The error is the cause of ctx's end.
func Until(ctx context.Context, so func() bool) error {
	for !so() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// readyTimeout bounds how long Ready waits.
const readyTimeout = 3 * time.Second

// Ready waits until the status is posted for real: until posted returns nil. Where that
// fails, errors need no rehearsal, and an API server that refuses it is not to be asked
// even more often.
func Ready(ctx context.Context, posted func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := Until(ctx, func() bool { return posted() == nil }); err != nil {
		return fmt.Errorf("%w: %w", err, posted())
	}
	return nil
}
