package probe

import (
	"sync/atomic"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// waits is how long a sample waits for what may be on a disk.
type waits struct {
	timeout  time.Duration // for the first answer; a call that takes longer has failed
	patience time.Duration // for a newer answer than there is
}

// most returns how long a call is waited for.
func (w waits) most(known bool) time.Duration {
	if known {
		return w.patience
	}
	return w.timeout
}

// failed reports whether a call that began then has taken too long.
func (w waits) failed(asked time.Time) bool { return time.Since(asked) >= w.timeout }

// lateness is about a call that a sample has gone on without: memory and PIDs must not wait
// for a disk. What was known before serves until the answer is there, and that gets a
// sample of its own.
type lateness struct {
	wake func() // asks for that sample; may be nil

	pending bool        // owned by the sampler
	woken   time.Time   // likewise: when a wake was last wanted
	wanted  atomic.Bool // the answer is to wake the sampler
}

// lateInterval is the least time between two samples for the sake of late answers: each of
// these asks again.
const lateInterval = time.Second

// answered is called by the goroutine of the call.
func (l *lateness) answered() {
	if l.wanted.Swap(false) && l.wake != nil {
		l.wake()
	}
}

func (l *lateness) end() {
	l.pending = false
	l.wanted.Store(false)
}

// giveUp goes on without the answer, unless it is there after all.
func giveUp[T any](l *lateness, w *deadline.Worker[T], now time.Time) (answer T, ok bool) {
	l.pending = true
	if now.Sub(l.woken) < lateInterval {
		return answer, false
	}
	l.woken = now
	l.wanted.Store(true)
	return takeLate(l, w) // it may have come before that
}

// takeLate returns the answer of a call that was given up.
func takeLate[T any](l *lateness, w *deadline.Worker[T]) (answer T, ok bool) {
	if !l.pending {
		return answer, false
	}
	if answer, ok = w.Late(); ok {
		l.end()
	}
	return answer, ok
}
