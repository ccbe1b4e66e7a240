package deadline

import (
	"sync"
	"time"
)

// Latest keeps the last good answer of a call that may hang, and asks for a newer one when
// that answer is old. An answer that comes after its deadline counts as well, where
// [Worker] drops it: a disk that is slow each time must not make the answer older and
// older. It is safe for concurrent use.
type Latest[T any] struct {
	what   string
	call   func() (T, error)
	serves time.Duration
	wait   Wait

	mu      sync.Mutex // guards the rest; held while a call is waited for
	worker  Worker[attempt[T]]
	answer  T
	at      time.Time // when the call began that returned answer; zero without one
	doubted time.Time // an answer is in doubt if its call began before
}

// Wait is how long a caller waits for a call.
type Wait struct {
	// First is for the first answer, and for one that is to replace a doubted one.
	First time.Duration
	// Later is for a newer one, while there is one that serves.
	Later time.Duration
}

type attempt[T any] struct {
	answer T
	err    error
}

// NewLatest returns a Latest without an answer. What describes the call in errors; an
// answer serves for that long before the call is made again.
func NewLatest[T any](what string, serves time.Duration, wait Wait, call func() (T, error)) *Latest[T] {
	return &Latest[T]{what: what, call: call, serves: serves, wait: wait}
}

// Get returns the last good answer, and when the call began that returned it. The error is
// why there is no newer one, by the last call that has ended since, or else because there is
// none yet: the answer is usable all the same, unless the time is zero.
func (l *Latest[T]) Get() (answer T, at time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, failed := l.worker.Asked(), error(nil)
	if late, ok, _ := l.worker.Late(); ok {
		failed = l.take(late, asked) // and the next try is now
	}
	now, wait := time.Now(), l.wait.Later
	switch doubted := l.at.Before(l.doubted); {
	case l.at.IsZero(), doubted:
		wait = l.wait.First
	case now.Sub(l.at) < l.serves:
		return l.answer, l.at, nil
	}
	l.worker.Start(now, l.what, func() (a attempt[T]) {
		a.answer, a.err = l.call()
		return a
	})
	asked = l.worker.Asked() // before now if the call hangs
	a, err := l.worker.Await(now, now.Add(wait))
	switch {
	case err == nil:
		err = l.take(a, asked)
	case failed != nil:
		err = failed // a call that is slow to fail says why, too
	}
	return l.answer, l.at, err
}

// take keeps what a call has returned that began at that time.
func (l *Latest[T]) take(a attempt[T], began time.Time) error {
	if a.err == nil {
		l.answer, l.at = a.answer, began
	}
	return a.err
}

// Doubt makes the next Get ask for a newer answer, unless the last call began after t.
func (l *Latest[T]) Doubt(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.After(l.doubted) {
		l.doubted = t
	}
}
