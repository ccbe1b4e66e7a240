package deadline

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// source is a call whose answers, errors and delays a test chooses.
type source struct {
	takes  time.Duration
	answer string
	err    error
	calls  int
}

func (s *source) call() (string, error) {
	s.calls++
	answer, err, takes := s.answer, s.err, s.takes
	time.Sleep(takes)
	return answer, err
}

func TestLatest(t *testing.T) {
	const serves = time.Minute
	wait := Wait{First: 2 * time.Second, Later: 100 * time.Millisecond}
	broken := errors.New("broken")
	type step struct {
		after  time.Duration
		source source
		doubt  bool
		want   string
		err    error
		waits  time.Duration
		calls  int // in all
	}
	fresh := step{source: source{answer: "a"}, want: "a", calls: 1}
	for name, steps := range map[string][]step{
		"an answer serves": {
			fresh,
			{after: serves - 1, source: source{answer: "b"}, want: "a", calls: 1},
			{after: 1, source: source{answer: "b"}, want: "b", calls: 2},
		},
		"the first is waited for": {
			{source: source{answer: "a", takes: time.Second}, want: "a", waits: time.Second, calls: 1},
			{after: serves, source: source{err: broken}, want: "a", err: broken, calls: 2},
		},
		"there is no first": {
			{source: source{takes: time.Hour, answer: "a"}, err: ErrNoAnswer, waits: 2 * time.Second, calls: 1},
			{after: time.Second, err: ErrNoAnswer, calls: 1},                                  // not waited for again
			{after: time.Hour, source: source{err: broken}, want: "a", err: broken, calls: 2}, // late, and old
		},
		"the last good one serves, and a late one counts": {
			fresh,
			{after: serves, source: source{answer: "b", takes: 3 * time.Second}, want: "a", err: ErrNoAnswer, waits: wait.Later, calls: 2},
			{after: time.Second, source: source{answer: "c"}, want: "a", err: ErrNoAnswer, calls: 2},
			{after: 2 * time.Second, source: source{answer: "c"}, want: "b", calls: 2},
			{after: serves, source: source{answer: "c"}, want: "c", calls: 3},
		},
		"a call that failed late": {
			fresh,
			{after: serves, source: source{err: broken, takes: 3 * time.Second}, want: "a", err: ErrNoAnswer, waits: wait.Later, calls: 2},
			{after: 3 * time.Second, source: source{answer: "b"}, want: "b", calls: 3},
		},
		"a call that fails late each time": {
			fresh,
			{after: serves, source: source{err: broken, takes: 3 * time.Second}, want: "a", err: ErrNoAnswer, waits: wait.Later, calls: 2},
			{after: 3 * time.Second, source: source{err: broken, takes: 3 * time.Second}, want: "a", err: broken, waits: wait.Later, calls: 3},
			{after: time.Second, want: "a", err: ErrNoAnswer, calls: 3},
			{after: 3 * time.Second, source: source{answer: "b"}, want: "b", calls: 4},
		},
		"an answer from before the doubt": {
			fresh,
			{after: serves, source: source{answer: "b", takes: 3 * time.Second}, want: "a", err: ErrNoAnswer, waits: wait.Later, calls: 2},
			{after: time.Second, doubt: true, want: "a", err: ErrNoAnswer, calls: 2},
			{after: 3 * time.Second, source: source{answer: "c", takes: time.Hour}, want: "b", err: ErrNoAnswer, waits: wait.First, calls: 3}, // better than a
			{after: time.Hour, source: source{answer: "d"}, want: "d", calls: 4},
		},
		"a doubted answer is worth waiting for, and better than none": {
			fresh,
			{after: 1, doubt: true, source: source{answer: "b", takes: time.Second}, want: "b", waits: time.Second, calls: 2},
			{after: 1, doubt: true, source: source{answer: "c", takes: time.Hour}, want: "b", err: ErrNoAnswer, waits: wait.First, calls: 3},
			{after: time.Hour, want: "c", calls: 4, source: source{answer: "c"}}, // its age is that of the call
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s source
				l := NewLatest("ask", serves, wait, s.call)
				s.calls = 0
				for i, step := range steps {
					time.Sleep(step.after)
					synctest.Wait()
					calls := s.calls
					s = step.source
					s.calls = calls
					if step.doubt {
						l.Doubt(time.Now())
					}
					began := time.Now()
					got, at, err := l.Get()
					if got != step.want || at.IsZero() != (step.want == "") || !errors.Is(err, step.err) || (err == nil) != (step.err == nil) {
						t.Errorf("step %d: %q of %v, %v; want %q, %v", i, got, at, err, step.want, step.err)
					}
					if took := time.Since(began); took != step.waits {
						t.Errorf("step %d: took %s, want %s", i, took, step.waits)
					}
					synctest.Wait()
					if s.calls != step.calls {
						t.Errorf("step %d: %d calls, want %d", i, s.calls, step.calls)
					}
				}
				time.Sleep(2 * time.Hour) // what still hangs ends
			})
		})
	}
}

// A doubt about an older answer than there is by now changes nothing.
func TestLatestDoubtsOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := source{answer: "a"}
		l := NewLatest("ask", time.Minute, Wait{First: time.Second}, s.call)
		before := time.Now()
		time.Sleep(time.Nanosecond)
		for range 2 {
			if got, _, err := l.Get(); got != "a" || err != nil || s.calls != 1 {
				t.Errorf("%q, %v, %d calls", got, err, s.calls)
			}
			l.Doubt(before)
		}
	})
}
