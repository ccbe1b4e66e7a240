package status

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// updateAttempts is how often one pass tries to post, without a pause unless the
// API server asks for one.
const updateAttempts = 5

// sleep waits for d, and reports whether ctx is still alive.
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

// refused reports whether it is of no use to send the same again.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}

// pass posts what the content drafts, if it is time to. After a failure it is not
// known what the API server has, so that the next attempt, in this pass or in a later
// one, reads the Node first. Paid is true if the pass has taken a token already.
func (u *Updater) pass(ctx context.Context, paid bool) (wait time.Duration, err error) {
	for attempt := range updateAttempts {
		if wait, err = u.try(ctx, &paid); err == nil || apierrors.IsNotFound(err) {
			return wait, err
		}
		u.doubt.Store(true)
		if ctx.Err() != nil {
			return wait, err
		}
		if !u.cfg.RetryRefused && refused(err) {
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
	if u.cfg.RetryPeriod > 0 {
		wait = min(wait, u.cfg.RetryPeriod)
	}
	return wait, fmt.Errorf("update node status exceeds retry count: %w", err)
}

// try makes one attempt to post, and returns how long to wait for the next pass.
// Of all attempts of a pass only the first takes a token; paid is true if it has.
func (u *Updater) try(ctx context.Context, paid *bool) (wait time.Duration, err error) {
	u.alive(0)
	ticket := u.flushed.begin()
	if err := u.refresh(ctx); err != nil {
		return 0, err
	}
	now := time.Now()
	old := u.Node()
	if err := u.cfg.Allow(old); err != nil { // it may have been read just now
		u.result(err)
		return u.cfg.UpdateFrequency, nil
	}
	due := u.report.due(now)
	draft := u.cfg.Content.Draft(ctx, old, now, due)
	u.notePartial(draft.Err)
	u.record(draft.Observed)
	if draft.Patch == nil || !draft.Changed && !due {
		u.flushed.serve(ticket)
		return u.nothingToPost(now), nil
	}
	// A post because the period is over is not paced; if it fails, the next one is:
	// failures are no lighter for the API server.
	if !*paid && (draft.Changed || u.failing()) {
		if wait := u.pace.wait(now, draft.Worse); wait > 0 && !draft.Urgent {
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
	u.report.posted(now, draft.Changed, rand.Float64())
	u.result(nil)
	u.flushed.serve(ticket)
	return min(u.cfg.UpdateFrequency, u.report.left(now)), nil
}

// nothingToPost ends a pass that found nothing to post, and returns how long to wait for
// the next one.
func (u *Updater) nothingToPost(now time.Time) time.Duration {
	u.held = false
	u.result(nil)
	left := u.report.left(now)
	if left <= 0 { // the period is over, and there is still nothing to post
		return u.cfg.UpdateFrequency
	}
	return min(u.cfg.UpdateFrequency, left)
}

// failing reports whether the latest pass has failed.
func (u *Updater) failing() bool {
	err := u.Ready()
	return err != nil && !errors.Is(err, errNotRegistered)
}

// hold counts a change that has to wait for a token, once.
func (u *Updater) hold() {
	if !u.held {
		u.held = true
		u.metrics.held.Inc()
	}
}

// refresh reads the Node if the last known one may be out of date.
func (u *Updater) refresh(ctx context.Context) error {
	if !u.doubt.Swap(false) {
		return nil
	}
	if c, ok := u.cfg.Content.(HealthObserver); ok {
		c.ObserveHealth(time.Now())
	}
	turn := u.sure.turn()
	node, err := u.find(ctx)
	if err != nil {
		return fmt.Errorf("get node %s: %w", u.cfg.NodeName, err)
	}
	u.know(node)
	u.sure.open(turn)
	return nil
}

func (u *Updater) post(ctx context.Context, draft *Draft) error {
	patch, err := draft.Patch()
	if err != nil {
		return err
	}
	reason := "period"
	if draft.Changed {
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
	if draft.Events != nil {
		u.record(draft.Events())
	}
	u.log.Debug("patched node status", "node", u.cfg.NodeName, "reason", reason, "bytes", len(patch))
	return nil
}
