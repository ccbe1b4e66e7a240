// Package deadline bounds how long anybody waits for a call that may never return:
// one that opens a file on a disk that hangs, or asks a filesystem whose server is
// dead. Nothing can interrupt such a call, so a goroutine of its own makes it.
package deadline

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ErrNoAnswer is wrapped by the error about a call that has not returned in time.
var ErrNoAnswer = errors.New("no answer")

// Worker makes one call at a time. A call that hangs is left alone until the kernel
// lets go of it, and there is no other meanwhile: so what hangs costs one goroutine
// and one thread per Worker, however often it is asked. Nothing has to be closed.
//
// The zero Worker is ready to use, by one goroutine at a time.
type Worker[T any] struct {
	what   string
	call   func() T
	asked  time.Time     // when the call began; zero while none is under way
	within time.Duration // how long it was waited for; 0 while it is not given up
	answer chan T
	run    func() // made once: a go statement that calls it allocates nothing
	timer  *time.Timer
	at     atomic.Pointer[string]
}

// Start makes a call, unless an earlier one still hangs. What is for error messages.
// The answer to an earlier call that comes late is out of date, and dropped.
func (w *Worker[T]) Start(now time.Time, what string, call func() T) {
	if w.answer == nil {
		w.answer = make(chan T, 1)
		w.run = func() { w.answer <- w.call() }
		w.timer = time.NewTimer(0)
		w.timer.Stop()
	}
	if !w.asked.IsZero() {
		select {
		case <-w.answer:
		default:
			return
		}
	}
	w.asked, w.within, w.what, w.call = now, 0, what, call
	w.at.Store(nil)
	go w.run()
}

// At replaces what the error says. The call may use it to say what it has come to.
func (w *Worker[T]) At(what string) { w.at.Store(&what) }

// Await returns the answer to the call that Start was asked for at now, and waits for
// it until the deadline. It does not wait for a call that began earlier.
func (w *Worker[T]) Await(now, deadline time.Time) (answer T, err error) {
	select {
	case answer = <-w.answer:
		w.asked = time.Time{}
		return answer, nil
	default:
	}
	if w.asked.Before(now) {
		return answer, w.late(deadline)
	}
	w.timer.Reset(time.Until(deadline))
	defer w.timer.Stop()
	select {
	case answer = <-w.answer:
	case <-w.timer.C:
		select {
		case answer = <-w.answer: // it was us who were late
		default:
			return answer, w.late(deadline)
		}
	}
	w.asked = time.Time{}
	return answer, nil
}

// late says when the call began, not how long ago that was, so that the message stays
// the same while nothing changes.
func (w *Worker[T]) late(deadline time.Time) error {
	if w.within == 0 {
		w.within = max(deadline.Sub(w.asked), 1)
	}
	what := w.what
	if at := w.at.Load(); at != nil {
		what = *at
	}
	return fmt.Errorf("%s: %w within %s, asked at %s", what, ErrNoAnswer, w.within, w.asked.Format(time.TimeOnly))
}

// Do makes a call and waits for the answer, but not longer than the timeout, and not
// at all while an earlier call hangs.
func (w *Worker[T]) Do(timeout time.Duration, what string, call func() T) (T, error) {
	now := time.Now()
	w.Start(now, what, call)
	return w.Await(now, now.Add(timeout))
}
