package deadline

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnswerInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Worker[int]
		for want := range 3 {
			got, err := w.Do(time.Second, "count", func() int { time.Sleep(time.Second - 1); return want })
			if got != want || err != nil {
				t.Errorf("%d, %v; want %d", got, err, want)
			}
		}
	})
}

// Whatever hangs is called once, waited for once, and called again when it is back.
func TestHungCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Worker[string]
		var calls atomic.Int32
		gate := make(chan struct{})
		call := func() string { calls.Add(1); <-gate; return "answer" }
		start := time.Now()
		var text string
		for range 5 {
			_, err := w.Do(2*time.Second, "read /etc/file", call)
			if !errors.Is(err, ErrNoAnswer) {
				t.Fatalf("error %v", err)
			}
			if text == "" {
				text = err.Error()
			}
			if err.Error() != text {
				t.Errorf("the message changes: %q, %q", text, err)
			}
			time.Sleep(time.Second)
		}
		if want := "read /etc/file: no answer within 2s, asked at " + start.Format(time.TimeOnly); text != want {
			t.Errorf("error %q, want %q", text, want)
		}
		if took := time.Since(start); took != 7*time.Second {
			t.Errorf("took %s, want one timeout and five pauses", took)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
		close(gate)
		synctest.Wait()
		if got, err := w.Do(time.Second, "read /etc/file", func() string { return "fresh" }); got != "fresh" || err != nil {
			t.Errorf("recovered: %q, %v", got, err)
		}
	})
}

// An answer that comes after the call was given up, and before another was made, is
// not the answer to that one.
func TestAnswerDuringLaterAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Worker[int]
		gate := make(chan struct{})
		_, err := w.Do(time.Second, "a", func() int { <-gate; return 1 })
		if !errors.Is(err, ErrNoAnswer) {
			t.Fatal(err)
		}
		now := time.Now()
		w.Start(now, "b", func() int { return 2 })
		close(gate)
		synctest.Wait()
		if got, err := w.Await(now, now.Add(time.Second)); got != 1 || err != nil {
			t.Errorf("%d, %v; want what has just come", got, err)
		}
	})
}

func TestErrorNamesWhatTheCallHasComeTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Worker[int]
		gate := make(chan struct{})
		_, err := w.Do(time.Second, "first", func() int { w.At("second"); <-gate; return 0 })
		if err == nil || !strings.HasPrefix(err.Error(), "second: ") {
			t.Errorf("error %v", err)
		}
		close(gate)
		synctest.Wait()
		gate = make(chan struct{})
		if _, err = w.Do(time.Second, "first", func() int { <-gate; return 0 }); err == nil || !strings.HasPrefix(err.Error(), "first: ") {
			t.Errorf("error %v", err)
		}
		close(gate)
	})
}

func TestCallsAllocateNothing(t *testing.T) {
	var w Worker[[100]byte]
	call := func() [100]byte { return [100]byte{} }
	ask := func() {
		if _, err := w.Do(time.Minute, "nothing", call); err != nil {
			t.Error(err)
		}
	}
	ask()
	if n := testing.AllocsPerRun(500, ask); n != 0 {
		t.Errorf("%v allocations per call, want 0", n)
	}
}

// Where there is a limit, an answer that took longer is an error, whenever it is found.
func TestAnswerBeyondLimit(t *testing.T) {
	for takes, inTime := range map[time.Duration]bool{2*time.Second - 1: true, 2 * time.Second: false} {
		for name, find := range map[string]func(w *Worker[int]) (int, error){
			"Late": func(w *Worker[int]) (int, error) {
				answer, there, err := w.Late()
				if !there {
					t.Error("it is not there")
				}
				return answer, err
			},
			"a later Await": func(w *Worker[int]) (int, error) { return w.Await(time.Now(), time.Now()) },
		} {
			synctest.Test(t, func(t *testing.T) {
				var w Worker[int]
				now := time.Now()
				w.Start(now, "count", func() int { time.Sleep(takes); return 1 })
				w.Within(2 * time.Second)
				_, err := w.Await(now, now.Add(time.Second))
				if !errors.Is(err, ErrNoAnswer) {
					t.Fatalf("error %v", err)
				}
				time.Sleep(time.Minute)
				got, late := find(&w)
				if got != 1 || (late == nil) != inTime || late != nil && late.Error() != err.Error() {
					t.Errorf("%s, after %s: %d, %v; want in time: %t", name, takes, got, late, inTime)
				}
				if !w.Asked().IsZero() {
					t.Error("a call is under way")
				}
			})
		}
	}
}
