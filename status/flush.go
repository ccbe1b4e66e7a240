package status

import (
	"context"
	"fmt"
	"sync"
)

// Flush wakes the Updater, and returns nil once the API server has everything that
// there was to say at the call: an attempt that began later has been posted, or has
// found nothing to post. It returns an error if the Node is deleted, or the cause of
// ctx's end. It waits while Run does not run, and while Allow forbids to write.
func (u *Updater) Flush(ctx context.Context) error {
	ticket := u.flushed.ticket()
	u.Wake()
	for {
		done, changed := u.flushed.done(ticket)
		if done {
			return nil
		}
		if err := u.Gone(); err != nil {
			return fmt.Errorf("post status of node %s: %w", u.cfg.NodeName, err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("post status of node %s: %w", u.cfg.NodeName, context.Cause(ctx))
		}
	}
}

// flushes distinguishes calls of Flush from attempts that began before them. The zero
// value is ready to use.
type flushes struct {
	mu      sync.Mutex
	tickets uint64        // given out
	served  uint64        // the latest for which all was posted
	changed chan struct{} // closed at the next change; nil if nobody waits
}

// ticket is for a call of Flush.
func (f *flushes) ticket() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tickets++
	return f.tickets
}

// begin returns, at the begin of an attempt, the ticket to serve if it succeeds.
func (f *flushes) begin() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tickets
}

// serve is called when an attempt has succeeded.
func (f *flushes) serve(ticket uint64) {
	f.mu.Lock()
	f.served = max(f.served, ticket)
	f.mu.Unlock()
	f.wake()
}

// wake makes those who wait look again.
func (f *flushes) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// done reports whether a ticket is served; if not, changed is closed when that may have
// changed.
func (f *flushes) done(ticket uint64) (done bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.served >= ticket {
		return true, nil
	}
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return false, f.changed
}
