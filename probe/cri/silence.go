package cri

import "time"

// silence is for how long the runtime has not said that it is ready. While this
// process was stopped, or its machine, it could not hear that; so no more of the
// time between two looks counts than passes between them while the process runs.
type silence struct {
	most   time.Duration
	length time.Duration
	looked time.Time // zero before the runtime was ready for the first time
}

// look counts the time since the latest look.
func (s *silence) look(now time.Time) time.Duration {
	if !s.looked.IsZero() {
		s.length += min(now.Sub(s.looked), s.most)
		s.looked = now
	}
	return s.length
}

// end notes that the runtime is ready.
func (s *silence) end(now time.Time) { s.length, s.looked = 0, now }
