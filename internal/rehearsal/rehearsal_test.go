package rehearsal

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// A step that fails, or waits for longer than it may, is named in the error and left
// alone; the next are taken all the same, until ctx ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		log, disk, errNo, errEnd := &testtree.Log{}, make(chan struct{}), errors.New("no"), errors.New("the end")
		defer close(disk)
		taken := make(chan string, 10)
		step := func(name string, do func(context.Context) error) Step {
			return Step{Name: name, Do: func(ctx context.Context) error { taken <- name; return do(ctx) }}
		}
		begin := time.Now()
		err := new(Rehearsal).Run(ctx, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), []Step{
			step("failing", func(context.Context) error { return errNo }),
			step("waiting", func(ctx context.Context) error { return Until(ctx, func() bool { return false }) }),
			step("hanging", func(context.Context) error { <-disk; return nil }),
			step("good", func(context.Context) error { return nil }),
			step("last", func(context.Context) error { cancel(errEnd); return nil }),
			step("late", func(context.Context) error { return nil }),
		})
		for _, want := range []error{errNo, context.DeadlineExceeded, deadline.ErrNoAnswer, errEnd} {
			if !errors.Is(err, want) {
				t.Errorf("Run returns %v, without %v", err, want)
			}
		}
		text := err.Error()
		for name, failed := range map[string]bool{"failing": true, "waiting": true, "hanging": true, "good": false, "last": false, "late": true} {
			if strings.Contains(text, "rehearse "+name+": ") != failed {
				t.Errorf("%s in %q is not %t", name, text, failed)
			}
			if !strings.Contains(log.String(), "msg=rehearsed step="+name) {
				t.Errorf("%s is not logged", name)
			}
		}
		var got []string
		for len(taken) > 0 {
			got = append(got, <-taken)
		}
		if want := []string{"failing", "waiting", "hanging", "good", "last"}; !slices.Equal(got, want) {
			t.Errorf("steps taken are %q, want %q", got, want)
		}
		if took := time.Since(begin); took > 2*stepTimeout+time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// A second run takes the steps that failed in the first, and what they need.
func TestRunAgain(t *testing.T) {
	var r Rehearsal
	var taken []string
	errAway := errors.New("away")
	answer := errAway
	steps := []Step{
		{Name: "sampling", Do: func(context.Context) error { taken = append(taken, "sampling"); return nil }},
		{Name: "judging", Do: func(context.Context) error { taken = append(taken, "judging"); return nil }, Always: true},
		{Name: "API server", Do: func(context.Context) error { taken = append(taken, "API server"); return answer }},
	}
	for i, want := range [][]string{{"sampling", "judging", "API server"}, {"judging", "API server"}, {"judging"}} {
		taken = nil
		if err := r.Run(t.Context(), slog.New(slog.DiscardHandler), steps); !errors.Is(err, answer) {
			t.Errorf("run %d returns %v, want %v", i+1, err, answer)
		}
		if !slices.Equal(taken, want) {
			t.Errorf("run %d takes %q, want %q", i+1, taken, want)
		}
		answer = nil
	}
}

// Ready returns as soon as the status is posted, and gives up with why it is not.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, errForbidden := time.Now(), errors.New("forbidden")
		after := func(d time.Duration) func() error {
			return func() error {
				if time.Since(begin) < d {
					return errForbidden
				}
				return nil
			}
		}
		if err := Ready(t.Context(), after(readyTimeout/2)); err != nil || time.Since(begin) > readyTimeout/2+time.Second {
			t.Errorf("Ready returns %v after %s", err, time.Since(begin))
		}
		begin = time.Now()
		if err := Ready(t.Context(), after(time.Hour)); !errors.Is(err, errForbidden) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Ready returns %v", err)
		}
	})
}
