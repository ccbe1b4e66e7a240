package probe

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// waits is how long a sample waits for what may be on a disk.
type waits struct {
	timeout  time.Duration // for the first answer; a call that takes longer has failed
	patience time.Duration // for a newer answer than there is
}

// lateness is about a call that a sample has gone on without: memory and PIDs must not wait
// for a disk. What was known before serves until the answer is there, or has failed to come
// in time; that gets a sample of its own.
type lateness struct {
	wake func() // asks for that sample; nil where nothing is in a hurry

	pending bool         // owned by the sampler
	woken   time.Time    // likewise: when a wake was last wanted
	over    *time.Timer  // likewise: wakes the sampler when the call has failed
	wanted  atomic.Int64 // the call whose answer is to wake the sampler: when it began; 0 for none
}

// lateInterval is the least time between two samples for the sake of late answers: each of
// these asks again.
const lateInterval = time.Second

// answered is called by the goroutine of the call that began then.
func (l *lateness) answered(asked time.Time) {
	if l.wanted.CompareAndSwap(asked.UnixNano(), 0) {
		l.wake()
	}
}

func (l *lateness) end() {
	l.pending = false
	l.wanted.Store(0)
	if l.over != nil {
		l.over.Stop()
	}
}

// await waits for the answer of the call under way. It is not ok if the sample goes on with
// what was known before. The error is that the call has failed to answer in time.
func await[T any](l *lateness, w *deadline.Worker[T], now time.Time, wait waits, known bool) (answer T, ok bool, err error) {
	w.Within(wait.timeout)
	if !known {
		wait.patience = wait.timeout
	}
	answer, err = w.Await(now, now.Add(wait.patience))
	left := wait.timeout - time.Since(w.Asked())
	if err == nil || !known || left <= 0 {
		l.end()
		return answer, true, err
	}
	l.pending = true
	if l.wake == nil {
		return answer, false, nil
	}
	if l.over == nil {
		l.over = time.AfterFunc(left, l.wake)
	} else {
		l.over.Reset(left)
	}
	if now.Sub(l.woken) < lateInterval {
		return answer, false, nil
	}
	l.woken = now
	l.wanted.Store(w.Asked().UnixNano())
	return takeLate(l, w) // it may have come before that
}

// takeLate returns the answer of a call that was given up, if it is there, or that it did
// not come in time.
func takeLate[T any](l *lateness, w *deadline.Worker[T]) (answer T, ok bool, err error) {
	if !l.pending {
		return answer, false, nil
	}
	if answer, ok, err = w.Late(); ok {
		l.end()
	}
	return answer, ok, err
}

// late returns the error of a source that had that one before, and now has no answer in
// time either: it is late for as long, and for the same reason, until one came in time.
func late(before, err error) error {
	if errors.Is(before, deadline.ErrNoAnswer) {
		return before
	}
	return err
}
