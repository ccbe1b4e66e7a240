// Package deadline limits how long a caller waits for a call that may never return: one
// that opens a file on a disk that hangs, or calls statfs(2) on a filesystem whose
// server is dead. Nothing can interrupt such a call, so it runs in a goroutine.
package deadline

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ErrNoAnswer is wrapped by the error about a call that did not return in time.
var ErrNoAnswer = errors.New("no answer")

// Worker makes one call at a time. A call that hangs is left alone until the kernel
// returns, and no other starts meanwhile: so it costs one goroutine and one thread per
// Worker, however often Start is called. Nothing has to be closed.
//
// The zero Worker is ready to use, by one goroutine at a time.
type Worker[T any] struct {
	what   string
	call   func() T
	asked  time.Time     // when the call began; zero while none is under way
	within time.Duration // how long it may take; 0 until Await gives up, or Within
	answer chan T
	run    func() // made once: a go statement that calls it allocates nothing
	// answered is called after each answer; nil for nobody.
	answered func()
	timer    *time.Timer
	at       atomic.Pointer[string]
}

// Start begins a call at the time now, unless an earlier one still hangs. What describes
// it in errors. The late answer of an earlier call is out of date, and dropped.
func (w *Worker[T]) Start(now time.Time, what string, call func() T) {
	if w.answer == nil {
		w.answer = make(chan T, 1)
		w.run = func() {
			w.answer <- w.call()
			if w.answered != nil {
				w.answered()
			}
		}
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

// OnAnswer has f called whenever an answer is there, by the goroutine of the call. It must
// come before the first Start.
func (w *Worker[T]) OnAnswer(f func()) { w.answered = f }

// Asked returns when the call began that has no answer yet; zero if none is under way.
func (w *Worker[T]) Asked() time.Time { return w.asked }

// Late returns the answer of a call that Await has given up on, if it is there by now. It
// is for those who take an answer that is a little old.
func (w *Worker[T]) Late() (answer T, ok bool) {
	select {
	case answer = <-w.answer:
		w.asked = time.Time{}
		return answer, true
	default:
		return answer, false
	}
}

// At replaces the description of the call in errors. The call may use it to name the
// step that it has reached.
func (w *Worker[T]) At(what string) { w.at.Store(&what) }

// Within sets how long the call under way may take, which errors name. Without it, that is
// how long the first Await waits.
func (w *Worker[T]) Within(d time.Duration) { w.within = d }

// Await returns the answer of the call that Start began at now, and waits for it until
// the deadline. It does not wait for a call that began earlier. The error wraps
// ErrNoAnswer.
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
		case answer = <-w.answer: // this goroutine was late, not the call
		default:
			return answer, w.late(deadline)
		}
	}
	w.asked = time.Time{}
	return answer, nil
}

// late returns an error that names when the call began, not how long ago that was, so
// that the message stays the same while nothing changes.
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

// Do makes a call and waits for the answer until the timeout, and not at all while an
// earlier call hangs.
func (w *Worker[T]) Do(timeout time.Duration, what string, call func() T) (T, error) {
	now := time.Now()
	w.Start(now, what, call)
	return w.Await(now, now.Add(timeout))
}
