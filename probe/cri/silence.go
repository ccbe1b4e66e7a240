package cri

import "time"

// silence measures how long the runtime has not reported that it is ready. While
// this process or its machine was stopped, it could not have; so of the time between
// two looks no more counts than passes between them in a process that runs.
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
