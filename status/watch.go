package status

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// The API server is asked to end a watch after a random time between these, so that a
// fleet's watches do not end together.
const (
	minWatch = 5 * time.Minute
	maxWatch = 10 * time.Minute
)

// errSilent ends a watch that the API server should have begun or ended.
var errSilent = errors.New("the API server is silent")

// present is the version to watch from if what came before does not matter: the watch
// begins with the Node as it is.
const present = "0"

// sighting is what the watch saw of the Node: its latest version, or the UID of
// one that is gone.
type sighting struct {
	node *v1.Node
	gone types.UID
}

// watchNode sends to seen every change of the Node that others make, and its deletion,
// until ctx ends. Without it the Node would have to be read again and again to notice
// that a controller marks it Unknown, or that an administrator deletes it.
//
// A credential that may not watch costs no more than that: the answers to patches still
// show what others have written.
func (u *Updater) watchNode(ctx context.Context, seen chan<- sighting) {
	const key = "watch of the node"
	var wait time.Duration
	var from string // from is where the next watch goes on; "" is the Node's version
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.known:
			wait = 0 // what went before says nothing about this watch
		case <-time.After(wait):
		}
		node := u.Node()
		if node == nil {
			wait = maxWatch // known wakes this loop earlier
			continue
		}
		if from == "" || from != present && !newer(from, node.ResourceVersion) {
			from = node.ResourceVersion
		}
		start := time.Now()
		var err error
		from, err = u.watchOnce(ctx, from, seen)
		if ctx.Err() != nil {
			return
		}
		wait = nextWatch(wait, time.Since(start))
		if err == nil {
			u.log.Info("watch of the node works again", once.Recovery, key, "node", u.cfg.NodeName)
			continue
		}
		u.log.Warn("watch of the node ended", once.Failure, key, "node", u.cfg.NodeName, "err", err)
		u.metrics.watchErrors.Inc()
		from = ""
		wait = max(wait, asked(err))
		switch {
		case apierrors.IsForbidden(err):
			wait = maxWatch
		case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			from = present
			u.catchUp(ctx, node.UID, seen)
		}
	}
}

// catchUp reads the Node after events were missed. The watch will not show that it was
// deleted meanwhile.
func (u *Updater) catchUp(ctx context.Context, uid types.UID, seen chan<- sighting) {
	node, err := u.cfg.Nodes.Get(ctx, u.cfg.NodeName)
	switch {
	case err == nil:
		send(ctx, seen, sighting{node: node})
	case apierrors.IsNotFound(err):
		send(ctx, seen, sighting{gone: uid})
	}
}

// nextWatch returns how long to wait before the next watch: hardly at all after one
// that lasted, longer and longer after ones that failed at once.
func nextWatch(previous, lasted time.Duration) time.Duration {
	if lasted > 30*time.Second {
		previous = 0
	}
	return min(time.Minute, max(time.Second, 2*previous)) + rand.N(200*time.Millisecond)
}

// watchOnce follows the Node from one version on until the watch ends, and
// returns the version that it got to.
func (u *Updater) watchOnce(ctx context.Context, from string, seen chan<- sighting) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The end of a watch does not arrive if the connection died silently, or if the
	// API server hangs. So this side has a limit, too.
	silence := time.AfterFunc(u.cfg.Timeout, func() { cancel(errSilent) })
	defer silence.Stop()
	limit := minWatch + rand.N(maxWatch-minWatch)
	w, err := u.cfg.Nodes.Watch(ctx, u.cfg.NodeName, from, limit)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return from, fmt.Errorf("watch node %s: %w", u.cfg.NodeName, err)
	}
	defer w.Stop()
	silence.Reset(limit + u.cfg.Timeout)
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return from, fmt.Errorf("watch node %s: %w", u.cfg.NodeName, context.Cause(ctx))
		case event, open = <-w.ResultChan():
		}
		if !open {
			return from, nil
		}
		if event.Type == watch.Error {
			return from, fmt.Errorf("watch node %s: %w", u.cfg.NodeName, apierrors.FromObject(event.Object))
		}
		node, ok := event.Object.(*v1.Node)
		if !ok {
			continue
		}
		from = node.ResourceVersion
		switch event.Type {
		case watch.Added, watch.Modified:
			send(ctx, seen, sighting{node: node})
		case watch.Deleted:
			send(ctx, seen, sighting{gone: node.UID})
			return from, nil
		}
	}
}

func send(ctx context.Context, seen chan<- sighting, s sighting) {
	select {
	case seen <- s:
	case <-ctx.Done():
	}
}

// newer reports whether version a of an object is later than b. The API promises that
// versions of one resource compare as numbers.
func newer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX != nil || errY != nil || x > y
}
