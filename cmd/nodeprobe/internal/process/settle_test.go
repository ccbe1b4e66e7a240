package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// life is a settler's world. It records what the settler does, and when.
type life struct {
	begin  time.Time
	denied error // why memory cannot be locked
	limit  int64 // 0 locks nothing

	locked   bool
	unlockAt time.Duration // when it is found to be too much; 0 for never
	away     time.Duration // until then the API server does not answer
	refuses  bool          // it takes no dry run
	done     []string
	enforced int
}

func (l *life) did(what string) { l.done = append(l.done, fmt.Sprint(time.Since(l.begin), " ", what)) }

func (l *life) age() time.Duration { return time.Since(l.begin) }

// Settle implements lockable.
func (l *life) Settle(rehearse func()) error {
	l.did("settle")
	if l.limit > 0 && l.denied == nil {
		l.locked = true
		rehearse()
	}
	return l.denied
}

// Rehearsed implements lockable.
func (l *life) Rehearsed(err error) { l.did(fmt.Sprintf("rehearsed: %v", err)) }

// Widen implements lockable.
func (l *life) Widen() { l.did("widen") }

// Enforce implements lockable.
func (l *life) Enforce() { l.enforced++ }

// State implements lockable.
func (l *life) State() MemoryState {
	if l.unlockAt > 0 && l.age() >= l.unlockAt {
		l.locked = false
	}
	return MemoryState{Limit: l.limit, Locked: l.locked, Bytes: 4096}
}

var (
	errAway    = errors.New("away")
	errRefused = errors.New("no dry runs")
)

func (l *life) ready() error {
	if l.age() < l.away {
		return errAway
	}
	return nil
}

// rehearse takes 4 s.
func (l *life) rehearse(ctx context.Context) error {
	select {
	case <-time.After(4 * time.Second):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.refuses && l.ready() == nil {
		return errRefused
	}
	return l.ready()
}

// lead runs a settler until the end, with reconnects at these times.
func (l *life) lead(t *testing.T, end time.Duration, reconnects ...time.Duration) (log string) {
	t.Helper()
	l.begin = time.Now()
	lines, errEnd := &testtree.Log{}, errors.New("the end")
	s := NewSettler(SettlerConfig{
		Rehearse: l.rehearse, Ready: l.ready,
		Logger: slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	s.memory, s.trim = l, func() error { l.did("trim"); return nil }
	s.random = func(below time.Duration) time.Duration { return below / 2 }
	ctx, cancel := context.WithTimeoutCause(t.Context(), end, errEnd)
	defer cancel()
	for _, at := range reconnects {
		time.AfterFunc(at, s.Reconnected)
	}
	if err := s.Run(ctx); !errors.Is(err, errEnd) {
		t.Errorf("Run returns %v", err)
	}
	if took := l.age(); took != end {
		t.Errorf("it ends after %s, not %s", took, end)
	}
	return lines.String()
}

// A settler's life from the first sample on: what it does, and when. Pauses between
// rehearsals grow, and there are five at most; a minute is for the bound.
func TestSettler(t *testing.T) {
	const limit, day = 1 << 20, 24 * time.Hour
	for _, test := range []struct {
		name       string
		life       life
		end        time.Duration
		reconnects []time.Duration
		want       string
		log        []string // parts of its lines at Info and above
	}{
		{
			name: "locked", life: life{limit: limit}, end: day, reconnects: []time.Duration{time.Minute},
			want: "5s settle, 9s rehearsed: <nil>, 10m9s widen",
			log:  []string{`level=INFO msg="memory is locked" bytes=4096 limit=1048576`},
		},
		{
			name: "denied", life: life{limit: limit, denied: ErrLockDenied}, end: day,
			reconnects: []time.Duration{20 * time.Second, 60 * time.Second, 30 * time.Minute},
			want:       "5s settle, 2m0s trim, 10m5s widen, 31m0s trim",
			log:        []string{`level=WARN msg="memory is not locked`},
		},
		{
			name: "not to be locked", end: day, reconnects: []time.Duration{time.Second},
			want: "5s settle, 1m5s trim, 10m5s widen",
		},
		{
			name: "unlocked, as it was too much", life: life{limit: limit, unlockAt: time.Hour}, end: day,
			reconnects: []time.Duration{time.Minute, 2 * time.Hour},
			want:       "5s settle, 9s rehearsed: <nil>, 10m9s widen, 2h1m0s trim",
			log:        []string{`msg="memory is locked"`},
		},
		{
			name: "API server late", life: life{limit: limit, away: 3 * time.Hour}, end: day,
			want: "5s settle, 9s rehearsed: away, 3h0m38s rehearsed: <nil>, 3h10m34s widen",
			log: []string{
				`msg="memory is locked"`, `level=INFO msg="not everything is rehearsed" err=away`,
				`level=INFO msg=rehearsed took=4s bytes=4096`,
			},
		},
		{
			name: "API server that refuses", life: life{limit: limit, refuses: true}, end: 7 * day,
			want: "5s settle, 9s rehearsed: no dry runs, 23s rehearsed: no dry runs, 10m19s widen, 10m27s rehearsed: no dry runs, " +
				"20m23s widen, 1h10m31s rehearsed: no dry runs, 1h20m27s widen, 7h10m35s rehearsed: no dry runs, 7h20m31s widen",
			log: []string{`msg="memory is locked"`, "no dry runs", "no dry runs", "no dry runs", "no dry runs", "no dry runs"},
		},
		{
			name: "unlocked before the API server answers", life: life{limit: limit, away: 3 * time.Hour, unlockAt: time.Hour}, end: day,
			want: "5s settle, 9s rehearsed: away, 1h10m24s widen",
			log:  []string{`msg="memory is locked"`, "away"},
		},
		{name: "end before it settles", life: life{limit: limit}, end: 4 * time.Second},
		{
			name: "end while it rehearses", life: life{limit: limit}, end: 7 * time.Second,
			want: "5s settle, 7s rehearsed: the end",
			log:  []string{`msg="memory is locked"`},
		},
		{
			name: "end while it waits for the API server", life: life{limit: limit, away: day}, end: 33 * time.Minute,
			want: "5s settle, 9s rehearsed: away",
			log:  []string{`msg="memory is locked"`, "away"},
		},
		{
			name: "end while it rehearses again", life: life{limit: limit, away: 50 * time.Second}, end: 56 * time.Second,
			want: "5s settle, 9s rehearsed: away, 56s rehearsed: the end",
			log:  []string{`msg="memory is locked"`, "away"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &test.life
				log := l.lead(t, test.end, test.reconnects...)
				if got := strings.Join(l.done, ", "); got != test.want {
					t.Errorf("it does\n%s, want\n%s", got, test.want)
				}
				lines := slices.Collect(strings.Lines(log))
				if len(lines) != len(test.log) {
					t.Errorf("it logs\n%s", log)
				} else {
					for i, line := range lines {
						if !strings.Contains(line, test.log[i]) {
							t.Errorf("it logs %s, want %s", line, test.log[i])
						}
					}
				}
				if minutes := int((test.end - settleAfter) / time.Minute); l.enforced < minutes-1 || l.enforced > minutes+len(pauses) {
					t.Errorf("the bound is enforced %d times in %d min", l.enforced, minutes)
				}
			})
		})
	}
}

// Reconnects while it is busy are one, and block nobody.
func TestReconnectedDoesNotBlock(t *testing.T) {
	s := NewSettler(SettlerConfig{})
	for range 3 {
		s.Reconnected()
	}
}
