package heartbeat

import (
	"testing"
	"time"
	"unsafe"
)

// A wall clock that is set, by an hour in either direction and at any renewal:
// renew times go forward by as much as time has passed, or jump with the clock,
// and never back. Another client's renewal stays fresh for as long as it is.
func TestClockSteps(t *testing.T) {
	const interval, duration = 10 * time.Second, 40 * time.Second
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		for stepAt := range 4 {
			start := time.Now()
			s, last := stamp{}, time.Time{}
			foreign := sighting{looked: true, foreign: true, at: start}
			for i := range 6 {
				now := start.Add(time.Duration(i) * interval)
				if i >= stepAt {
					now = stepped(t, now, step)
				}
				s = s.next(now)
				wrote := s.renewTime.Round(0)
				if forward := wrote.Sub(last); i > 0 && (forward < interval || i != stepAt && forward > interval+time.Microsecond) {
					t.Errorf("clock set by %v at renewal %d: renewal %d went forward by %v, want %v", step, stepAt, i, forward, interval)
				}
				last = wrote
				if got, want := foreign.fresh(now, duration), i < 4; got != want {
					t.Errorf("clock set by %v at renewal %d: at renewal %d a foreign one is fresh: %v, want %v", step, stepAt, i, got, want)
				}
			}
		}
	}
}

// stepped is a time as it would have been read had the wall clock been set by d
// before: another wall time with the same monotonic reading. Package time cannot
// make one, so this goes into its insides, and checks that they are as expected.
func stepped(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	after := at
	*(*uint64)(unsafe.Pointer(&after)) += uint64(d/time.Second) << 30 // below are the nanoseconds
	if after.Sub(at) != 0 || after.Round(0).Sub(at.Round(0)) != d {
		t.Fatalf("package time has changed: %v became %v", at, after)
	}
	return after
}
