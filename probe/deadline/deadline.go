// Package deadline limits how long a caller waits for a call that may never return: one
// that opens a file on a disk that hangs, or calls statfs(2) on a filesystem whose
// server is dead. Nothing can interrupt such a call, so it runs in a goroutine.
package deadline

import (
	"cmp"
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
	within time.Duration // how long it may take; 0 for any time
	waited time.Duration // how long Await has waited for it; 0 until that gives up
	answer chan *reply[T]
	// reply is what comes over answer. It is no longer needed once it has been taken, and no
	// other call begins before. It is not on the stack of a call: a goroutine begins with a
	// small one, and to grow it costs as much as statfs(2).
	reply reply[T]
	run   func() // made once: a go statement that calls it allocates nothing
	// answered is called after each answer; nil for nobody.
	answered func(asked time.Time)
	timer    *time.Timer
	at       atomic.Pointer[string]
}

// reply is an answer, and when it came.
type reply[T any] struct {
	answer T
	at     time.Time
}

// Start begins a call at the time now, unless an earlier one still hangs. What describes
// it in errors. The late answer of an earlier call is out of date, and dropped.
func (w *Worker[T]) Start(now time.Time, what string, call func() T) {
	if w.answer == nil {
		w.answer = make(chan *reply[T], 1)
		w.run = func() {
			asked := w.asked
			w.reply.answer = w.call()
			w.reply.at = time.Now()
			w.answer <- &w.reply
			if w.answered != nil {
				w.answered(asked)
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
	w.asked, w.within, w.waited, w.what, w.call = now, 0, 0, what, call
	w.at.Store(nil)
	go w.run()
}

// OnAnswer has f called whenever an answer is there, with the time when the call began: by
// the goroutine of that call, so another may have begun since. It must come before the
// first Start.
func (w *Worker[T]) OnAnswer(f func(asked time.Time)) { w.answered = f }

// Asked returns when the call began that has no answer yet; zero if none is under way.
func (w *Worker[T]) Asked() time.Time { return w.asked }

// Late returns the answer of a call that Await has given up on, if it is there by now. It
// is for those who take an answer that is a little old. The error wraps ErrNoAnswer: it
// took longer than Within allows.
func (w *Worker[T]) Late() (answer T, there bool, err error) {
	select {
	case r := <-w.answer:
		answer, err = w.take(r)
		return answer, true, err
	default:
		return answer, false, nil
	}
}

// take ends the call under way by its reply.
func (w *Worker[T]) take(r *reply[T]) (answer T, err error) {
	if w.within > 0 && r.at.Sub(w.asked) >= w.within {
		err = w.late()
	}
	w.asked = time.Time{}
	return r.answer, err
}

// At replaces the description of the call in errors. The call may use it to name the
// step that it has reached.
func (w *Worker[T]) At(what string) { w.at.Store(&what) }

// Within sets how long the call under way may take: an answer that took longer is an
// error, whenever it is found. Without it any answer counts, and errors name how long the
// first Await has waited.
func (w *Worker[T]) Within(d time.Duration) { w.within = d }

// Await returns the answer of the call that Start began at now, and waits for it until
// the deadline. It does not wait for a call that began earlier. The error wraps
// ErrNoAnswer.
func (w *Worker[T]) Await(now, deadline time.Time) (answer T, err error) {
	select {
	case r := <-w.answer:
		return w.take(r)
	default:
	}
	wait := deadline.Sub(w.asked)
	if w.asked.Before(now) {
		return answer, w.gaveUp(wait)
	}
	w.timer.Reset(time.Until(deadline))
	defer w.timer.Stop()
	select {
	case r := <-w.answer:
		return w.take(r)
	case <-w.timer.C:
	}
	select {
	case r := <-w.answer: // this goroutine was late, not the call
		return w.take(r)
	default:
		return answer, w.gaveUp(wait)
	}
}

// gaveUp returns the error of a call that Await has waited for until it had taken that long.
func (w *Worker[T]) gaveUp(wait time.Duration) error {
	if w.waited == 0 {
		w.waited = max(wait, 1)
	}
	return w.late()
}

// late returns an error that names when the call began, not how long ago that was, so
// that the message stays the same while nothing changes.
func (w *Worker[T]) late() error {
	what := w.what
	if at := w.at.Load(); at != nil {
		what = *at
	}
	return fmt.Errorf("%s: %w within %s, asked at %s", what, ErrNoAnswer, cmp.Or(w.within, w.waited), w.asked.Format(time.TimeOnly))
}

// Do makes a call and waits for the answer until the timeout, and not at all while an
// earlier call hangs.
func (w *Worker[T]) Do(timeout time.Duration, what string, call func() T) (T, error) {
	now := time.Now()
	w.Start(now, what, call)
	return w.Await(now, now.Add(timeout))
}
