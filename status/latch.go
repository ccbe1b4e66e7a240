package status

import (
	"context"
	"sync"
)

// latch is shut or open. The zero latch is shut.
type latch struct {
	mu     sync.Mutex
	shuts  int           // how often it was shut
	opened chan struct{} // closed while it is open; nil if nobody has waited or opened yet
}

// wait waits until the latch is open, or returns the cause of ctx's end.
func (l *latch) wait(ctx context.Context) error {
	opened := l.channel()
	select {
	case <-opened:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-opened:
		return nil
	default:
		return context.Cause(ctx)
	}
}

// turn returns what open needs to know that the latch was not shut meanwhile.
func (l *latch) turn() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shuts
}

// open opens the latch, unless it was shut since turn.
func (l *latch) open(turn int) {
	opened := l.channel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shuts != turn {
		return
	}
	select {
	case <-opened:
	default:
		close(opened)
	}
}

func (l *latch) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shuts++
	select {
	case <-l.opened: // one that is nil is shut
		l.opened = nil
	default:
	}
}

func (l *latch) channel() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened == nil {
		l.opened = make(chan struct{})
	}
	return l.opened
}
