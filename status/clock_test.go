package status

import (
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// A wall clock that is set, by an hour in either direction.
func TestClockSteps(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			flip := time.Now()
			now := apitest.Stepped(t, flip.Add(20*time.Second), step)
			r := reporter{period: time.Minute, last: flip}
			if got := r.left(now); got != 40*time.Second {
				t.Errorf("report period has %v left, want 40s", got)
			}
			p := newPacer()
			p.post(flip)
			p.tokens = 0
			if got := p.wait(apitest.Stepped(t, flip.Add(3*time.Second), step), true); got != 7*time.Second {
				t.Errorf("a change has to wait %v, want 7s", got)
			}
		})
	}
}
