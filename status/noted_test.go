package status

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// One fault that shows in two errors by turns is logged twice and not for ever;
// that it is over is logged once.
func TestNoted(t *testing.T) {
	reset, eof := errors.New("connection reset"), errors.New("unexpected EOF")
	n := noted{}
	for i, step := range []struct {
		err     error
		changed bool
	}{
		{nil, false}, {reset, true}, {eof, true}, {reset, false}, {eof, false}, {nil, true}, {nil, false}, {reset, true},
	} {
		if got := n.changed(step.err); got != step.changed {
			t.Errorf("step %d, %v: changed is %v", i, step.err, got)
		}
	}
	count := 0
	for i := range 1000 {
		if n.changed(fmt.Errorf("request %d failed", i)) {
			count++
		}
	}
	if count > 32 {
		t.Errorf("%d texts that never repeat were logged", count)
	}
}

// The Lease must not have to wait for its next round because it asked before the
// Node was there.
func TestOwnerWaitsForRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.play(s.config(), func() {
			owner, err := s.Owner(t.Context())
			apitest.Diff(t, "error", nil, err)
			apitest.Diff(t, "owner", "uid-1", string(owner.UID))
		})
	})
}
