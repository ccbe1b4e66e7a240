package main

import (
	"fmt"
	"sync"
	"time"
)

// pulse tells a loop that goes on from one that is stuck. A writer goes on while
// the API server is away: whoever kills it for that only makes things worse.
type pulse struct {
	name string

	mu      sync.Mutex // guards the rest
	due     time.Time  // of the next beat, at the latest
	doubted time.Time  // when that was first found to be over
}

// pulseGrace is how long a beat that is found to be late still may take: where this
// process, or its machine, was stopped for a while, the loop has had no chance yet.
const pulseGrace = 2 * time.Second

// beat is called by the loop, with the time within which it will be called again.
func (p *pulse) beat(within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = time.Now().Add(within)
}

// alive returns nil if the loop goes on, or has not begun.
func (p *pulse) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.due.IsZero() || now.Before(p.due) {
		return nil
	}
	if p.doubted.Before(p.due) {
		p.doubted = now
	}
	if now.Sub(p.doubted) < pulseGrace {
		return nil
	}
	return fmt.Errorf("%s is stuck: it should have gone on %s ago", p.name, now.Sub(p.due).Round(time.Second))
}
