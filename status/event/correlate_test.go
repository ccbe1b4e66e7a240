package event

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// steps are occurrences of one reason, and what becomes of them.
func TestCorrelator(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := correlator{}
	observe := func(reason, message string) string {
		s, ok := c.observe(occurrence{"Warning", reason, message, at})
		if !ok {
			return "dropped"
		}
		return fmt.Sprintf("%d %s", s.count, s.message)
	}
	for i := range maxSimilar {
		apitest.Diff(t, "different messages", fmt.Sprintf("1 m%d", i), observe("R", fmt.Sprint("m", i)))
	}
	apitest.Diff(t, "one too many", "1 "+combined+"x", observe("R", "x"))
	apitest.Diff(t, "another", "2 "+combined+"y", observe("R", "y"))
	apitest.Diff(t, "one that is known", "2 m0", observe("R", "m0"))
	for range burst - maxSimilar - 3 {
		observe("R", "m0")
	}
	apitest.Diff(t, "no token left", "dropped", observe("R", "m0"))
	apitest.Diff(t, "another reason", "1 m0", observe("Q", "m0"))

	at = at.Add(refill)
	apitest.Diff(t, "a token is back", "3 "+combined+"z", observe("R", "z"))
	apitest.Diff(t, "only one", "dropped", observe("R", "z"))

	at = at.Add(similarFor)
	apitest.Diff(t, "a new window", "1 new", observe("R", "new"))

	at = at.Add(seriesExpire)
	apitest.Diff(t, "an old series", "1 m0", observe("R", "m0"))
	if n := len(c[reasonKey{"Warning", "R"}].series); n != 1 {
		t.Errorf("%d series are kept, want the live one", n)
	}
}

// A clock that is set back earns nothing and breaks nothing.
func TestCorrelatorClockStep(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := correlator{}
	for i := range burst {
		if _, ok := c.observe(occurrence{"Normal", "R", "m", at.Add(-time.Duration(i) * time.Hour)}); !ok {
			t.Fatalf("occurrence %d was dropped", i)
		}
	}
	if _, ok := c.observe(occurrence{"Normal", "R", "m", at.Add(-time.Hour)}); ok {
		t.Error("the bucket has no bottom")
	}
}
