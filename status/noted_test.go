package status

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// One fault that shows in two errors by turns is logged twice and not for ever;
// that it is over is logged once.
func TestNoted(t *testing.T) {
	reset, eof := errors.New("connection reset"), errors.New("unexpected EOF")
	n := noted{}
	for i, step := range []struct {
		err  error
		news bool
	}{
		{nil, false}, {reset, true}, {eof, true}, {reset, false}, {eof, false}, {nil, true}, {nil, false}, {reset, true},
	} {
		if got := n.news(step.err); got != step.news {
			t.Errorf("step %d, %v: news is %v", i, step.err, got)
		}
	}
	told := 0
	for i := range 1000 {
		if n.news(fmt.Errorf("request %d failed", i)) {
			told++
		}
	}
	if told > 32 {
		t.Errorf("%d texts that never repeat were logged", told)
	}
}

// The Lease must not have to wait for its next round because it asked before the
// Node was there.
func TestOwnerWaitsForRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.play(s.config(), func() {
			owner, err := s.Owner(t.Context())
			diff(t, "error", nil, err)
			diff(t, "owner", "uid-1", string(owner.UID))
		})
	})
}
