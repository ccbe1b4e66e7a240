package main

import (
	"fmt"
	"sync/atomic"
	"time"
)

// pulse tells a loop that goes on from one that is stuck. A writer goes on while
// the API server is away: whoever kills it for that only makes things worse.
type pulse struct {
	name string
	due  atomic.Pointer[time.Time] // of the next beat, at the latest
}

// beat is called by the loop, with the time within which it will be called again.
func (p *pulse) beat(within time.Duration) {
	due := time.Now().Add(within)
	p.due.Store(&due)
}

// alive returns nil if the loop goes on, or has not begun.
func (p *pulse) alive() error {
	due := p.due.Load()
	if due == nil {
		return nil
	}
	if late := time.Since(*due); late > 0 {
		return fmt.Errorf("%s is stuck: it should have gone on %s ago", p.name, late.Round(time.Second))
	}
	return nil
}
