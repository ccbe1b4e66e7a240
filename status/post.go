package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// updateAttempts is how often one pass tries to post, without a pause unless the
// API server asks for one.
const updateAttempts = 5

// sleep returns after d, and false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// pass runs the pipeline over the last known Node and posts the difference if
// it is time to. After a failure nobody knows what the API server has, so that
// the next attempt, be it in this pass or in a later one, reads the Node first.
// Paid is true if the pass has been paced already.
func (u *Updater) pass(ctx context.Context, paid bool) (wait time.Duration, err error) {
	for attempt := range updateAttempts {
		if wait, err = u.try(ctx, &paid); err == nil || ctx.Err() != nil || apierrors.IsNotFound(err) {
			return wait, err
		}
		u.doubt.Store(true)
		// A kubelet tries on; but a missing permission, or a policy that is against it,
		// concerns a whole fleet at once, and is not gone the next moment.
		if u.cfg.Augment != nil && refused(err) {
			return u.cfg.UpdateFrequency, err
		}
		if attempt > 0 {
			u.cfg.OnFailure()
		}
		if delay := asked(err); delay > u.cfg.Timeout {
			break
		} else if !sleep(ctx, delay) {
			return 0, err
		}
	}
	wait = u.cfg.UpdateFrequency
	if u.cfg.Augment != nil {
		wait = min(wait, augmentRetry)
	}
	return wait, fmt.Errorf("update node status exceeds retry count: %w", err)
}

// augmentRetry is how long a change may have to wait after the end of an outage:
// as long as a kubelet's.
const augmentRetry = 10 * time.Second

// try makes one attempt to post, and returns how long to wait for the next pass.
// Of all attempts of a pass only the first is paced; paid says that it was.
func (u *Updater) try(ctx context.Context, paid *bool) (wait time.Duration, err error) {
	u.alive(0)
	if err := u.refresh(ctx); err != nil {
		return 0, err
	}
	now := time.Now()
	facts := u.facts(now)
	old := u.Node()
	if err := u.cfg.Allow(old); err != nil { // it may have been read just now
		u.result(err)
		return u.cfg.UpdateFrequency, nil
	}
	due := u.report.due(now)
	draft := u.draft(ctx, old, &facts, now, due)
	if draft.patch == nil || !draft.changed && !due {
		return u.nothingToPost(now), nil
	}
	// A post for the period's sake is not paced; if it fails, the next one is:
	// failures are no lighter for the API server.
	if !*paid && !facts.Urgent && (draft.changed || u.failing()) {
		if wait := u.pace.wait(now); wait > 0 {
			u.hold()
			return wait, nil
		}
		u.pace.post(now)
		*paid = true
	}
	u.held = false
	if err := u.post(ctx, &draft); err != nil {
		return 0, err
	}
	u.report.posted(now, draft.changed, rand.Float64())
	u.result(nil)
	return min(u.cfg.UpdateFrequency, u.report.left(now)), nil
}

// nothingToPost ends a pass that found nothing, and returns how long to wait for the
// next one.
func (u *Updater) nothingToPost(now time.Time) time.Duration {
	u.held = false
	u.result(nil)
	left := u.report.left(now)
	if left <= 0 { // there was nothing to say although it was time
		return u.cfg.UpdateFrequency
	}
	return min(u.cfg.UpdateFrequency, left)
}

// facts returns the present facts.
func (u *Updater) facts(now time.Time) Facts {
	facts := u.cfg.Facts()
	facts.healthSince = u.health.observe(&facts, now)
	return facts
}

// failing reports whether the latest pass has failed.
func (u *Updater) failing() bool {
	err := u.Ready()
	return err != nil && !errors.Is(err, errNotRegistered)
}

// hold counts a change that has to wait, once.
func (u *Updater) hold() {
	if !u.held {
		u.held = true
		u.metrics.held.Inc()
	}
}

// refresh reads the Node if there is doubt about the last known one.
func (u *Updater) refresh(ctx context.Context) error {
	if !u.doubt.Swap(false) {
		return nil
	}
	u.facts(time.Now()) // what changes while the API server is away has its time, too
	turn := u.sure.turn()
	node, err := u.find(ctx)
	if err != nil {
		return fmt.Errorf("get node %s: %w", u.cfg.NodeName, err)
	}
	u.know(node)
	u.sure.open(turn)
	return nil
}

// draft is what a pass may post; patch is nil if it is nothing, due or not.
type draft struct {
	changed bool
	patch   func() ([]byte, error)
	told    func() []told // the Events, once it is posted
}

// draft finds out what there is to say; due says that it will be posted whether it
// is news or not.
func (u *Updater) draft(ctx context.Context, old *v1.Node, facts *Facts, now time.Time, due bool) draft {
	switch {
	case u.cfg.ReadOnly:
		return draft{}
	case u.cfg.Augment != nil:
		a := augment(old, u.cfg.Augment(), now)
		u.noteSetters(a.err)
		if len(a.all) == 0 && !a.changed() {
			return draft{}
		}
		return draft{a.changed(), func() ([]byte, error) { return a.patch(due) }, func() []told { return a.told }}
	}
	u.tellSchedulable(old)
	from := newBasis(old, facts)
	if !due && len(u.cfg.Setters) == 0 && u.idle.serves(&from, u.cfg.Addresses.last, now) {
		return draft{}
	}
	next := old.DeepCopy()
	requireLabels(next)
	failed := apply(ctx, next, setters(&u.cfg, facts, now))
	changed := statusChanged(&old.Status, &next.Status) || !maps.Equal(old.Labels, next.Labels)
	if len(u.cfg.Setters) > 0 {
		failed = errors.Join(failed, unwritten(old, next))
		// The built-in setters' own annotation may wait, as with a kubelet.
		changed = changed || !maps.Equal(old.Annotations, next.Annotations)
	}
	u.noteSetters(failed)
	if !changed && failed == nil { // or else it is to be tried again
		u.idle = idle{from, now}
	}
	return draft{
		changed,
		func() ([]byte, error) { return Patch(old, next) },
		func() []told { return transitions(old, next) },
	}
}

func (u *Updater) post(ctx context.Context, draft *draft) error {
	patch, err := draft.patch()
	if err != nil {
		return err
	}
	reason := "period"
	if draft.changed {
		reason = "changed"
	}
	start := time.Now()
	node, err := u.cfg.Nodes.PatchStatus(ctx, u.cfg.NodeName, patch)
	u.metrics.patched(reason, len(patch), time.Since(start), err)
	if err != nil {
		return fmt.Errorf("patch status of node %s: %w", u.cfg.NodeName, err)
	}
	u.know(node)
	u.last.Store(&Posted{Time: time.Now(), Reason: reason, Bytes: len(patch)})
	u.tell(draft.told())
	u.log.Debug("patched node status", "node", u.cfg.NodeName, "reason", reason, "bytes", len(patch))
	return nil
}
