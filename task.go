package nodeprobe

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// task is something that goes on for as long as the Agent runs.
type task struct {
	name string
	// run blocks until ctx ends, and returns its cause; any other error ends the Agent.
	run func(ctx context.Context) error
	// alive returns why the task is stuck, or nil, whether or not the API server can be
	// reached.
	alive func() error
}

// pulse shows whether a task goes on or is stuck. A writer goes on while the
// API server is away: restarting it for that only makes things worse.
type pulse struct {
	name string // the task's

	mu      sync.Mutex // guards the rest
	due     time.Time  // of the next beat, at the latest; zero while nothing is due
	doubted time.Time  // when that was first found to be over
}

// pulseGrace is how much longer a beat that is found to be late may take: where this
// process, or its machine, was stopped for a while, the task has had no chance yet.
const pulseGrace = 2 * time.Second

// task returns a task of which this is the pulse.
func (p *pulse) task(name string, run func(context.Context) error) task {
	p.name = name
	return task{name, run, p.alive}
}

// beat is called by the task, with the time within which it will call again; 0 stands
// for however long, as while it waits for something to do.
func (p *pulse) beat(within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = time.Time{}
	if within > 0 {
		p.due = time.Now().Add(within)
	}
}

// alive returns nil if the task goes on, rests, or has not begun.
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
	return fmt.Errorf("%s is stuck: its next step is %s late", p.name, now.Sub(p.due).Round(time.Second))
}
