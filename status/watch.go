package status

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// The API server ends a watch after this long; it is asked to, so that a
// connection that died without a word is noticed.
const (
	watchLeast = 5 * time.Minute
	watchMost  = 10 * time.Minute
)

// sighting is what the watch saw of the Node: its latest version, or that it is
// gone (nil).
type sighting struct{ node *v1.Node }

// watchNode tells seen about every change of the Node that others make, and
// about its deletion, until ctx ends. Without it the Node would have to be read
// again and again: a controller that marks it Unknown, or an administrator that
// deletes it, does not tell.
//
// A credential that may not watch costs only that: the answers to patches still
// show what others have written.
func (u *Updater) watchNode(ctx context.Context, seen chan<- sighting) {
	var wait time.Duration
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.known:
		case <-time.After(wait):
		}
		node := u.Node()
		if node == nil {
			wait = watchMost // known wakes this loop earlier
			continue
		}
		start := time.Now()
		err := u.watchOnce(ctx, node.ResourceVersion, seen)
		if ctx.Err() != nil {
			return
		}
		if wait = nextWatch(wait, time.Since(start)); err == nil {
			logged = ""
			continue
		}
		u.metrics.watchErrors.Inc()
		if text := err.Error(); text != logged {
			logged = text
			u.log.Warn("watch of the node ended", "node", u.cfg.NodeName, "err", err)
		}
		// After an error nobody knows what was missed.
		if fresh, err := u.get(ctx); err == nil || apierrors.IsNotFound(err) {
			send(ctx, seen, sighting{fresh})
		}
	}
}

// nextWatch is how long to wait before the next watch: hardly at all after one
// that lasted, longer and longer after ones that failed at once.
func nextWatch(previous, lasted time.Duration) time.Duration {
	if lasted > 30*time.Second {
		previous = 0
	}
	return min(time.Minute, max(time.Second, 2*previous)) + rand.N(200*time.Millisecond)
}

func (u *Updater) watchOnce(ctx context.Context, version string, seen chan<- sighting) error {
	w, err := u.cfg.Nodes.Watch(ctx, u.cfg.NodeName, version, watchLeast+rand.N(watchMost-watchLeast))
	if err != nil {
		return fmt.Errorf("watch node %s: %w", u.cfg.NodeName, err)
	}
	defer w.Stop()
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open = <-w.ResultChan():
		}
		if !open {
			return nil
		}
		switch event.Type {
		case watch.Added, watch.Modified:
			if node, ok := event.Object.(*v1.Node); ok {
				send(ctx, seen, sighting{node})
			}
		case watch.Deleted:
			send(ctx, seen, sighting{})
			return nil
		case watch.Error:
			return fmt.Errorf("watch node %s: %w", u.cfg.NodeName, apierrors.FromObject(event.Object))
		}
	}
}

func send(ctx context.Context, seen chan<- sighting, s sighting) {
	select {
	case seen <- s:
	case <-ctx.Done():
	}
}

// newer says whether version a of an object is later than b. The API promises
// that versions of one resource compare as numbers.
func newer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX != nil || errY != nil || x > y
}
