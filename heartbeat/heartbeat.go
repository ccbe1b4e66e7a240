// Package heartbeat renews the Lease of a node, by which the cluster knows that the
// node is alive. On the wire it does what a kubelet does. Beyond that,
//   - it renews only while its caller is healthy (Config.Healthy);
//   - its renew times only ever go forward, whatever the wall clock does;
//   - it notices another client that renews the same lease, and leaves the lease alone
//     until the other falls silent, because two heartbeats in one lease hide the death
//     of either sender.
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kubelet's constants.
const (
	jitterFactor = 0.04 // of the renewal interval
	maxTries     = 5    // immediate ones, to update the lease in one round
	minBackoff   = 200 * time.Millisecond
	maxBackoff   = 7 * time.Second
)

// healthInterval is the time between two calls of Config.Healthy while it withholds a
// renewal.
const healthInterval = time.Second

// maxUnanswered bounds Heartbeater.unanswered. An older write cannot be stored any more:
// the API server gave up on it long before.
const maxUnanswered = 64

// Heartbeater renews one lease. Make it with New; start it with Run.
type Heartbeater struct {
	config  Config
	logger  *slog.Logger
	metrics *metrics
	state   atomic.Pointer[State] // written by Run only

	// What follows belongs to Run.

	// lease is the lease as last stored or read, the base of the next update; nil if
	// there is none or it is not known.
	lease *coordinationv1.Lease
	seen  sighting
	// sent is the latest renew time that we sent, or saw in the lease.
	sent stamp
	// unanswered holds the renew times that were sent and answered by an error. The
	// API server may have stored one of them all the same, if the answer was lost; it
	// must not be taken for a foreign one.
	unanswered []time.Time
	failures   map[string]struct{} // reasons since the last success
}

// New returns a Heartbeater and registers its metrics. It starts no goroutine and sends
// nothing. It returns an error if a field of config, which the error names, is wrong, or
// if the metrics are already registered.
func New(config Config) (*Heartbeater, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("configure heartbeat: %w", err)
	}
	config = config.withDefaults()
	h := &Heartbeater{
		config: config,
		logger: config.Logger.With("lease", Namespace+"/"+config.NodeName), failures: map[string]struct{}{},
	}
	h.state.Store(new(State))
	h.metrics = newMetrics(config.Duration, h.State)
	if config.Registerer != nil {
		if err := config.Registerer.Register(h.metrics); err != nil {
			return nil, fmt.Errorf("register heartbeat metrics: %w", err)
		}
	}
	return h, nil
}

// Run renews the lease at once and then every quarter of its duration, plus up
// to 4 %, counted from the end of one round to the start of the next. It blocks
// until ctx ends and then returns the cause; it never returns earlier. The
// lease stays in place, to expire on its own. Call it once. A renewal that
// Config.Healthy withheld follows within a second of its recovery.
//
// A round makes five immediate tries to update the lease, of at most twice
// Config.Timeout each (the owner, if the lease has none, and the update). If they
// fail, or a conflict shows that the lease has changed, it reads the lease until it
// gets an answer, with pauses of 200 ms to 7 s: without an API server, a round ends
// only with ctx. Once ctx has ended, Run waits for nothing but the call in flight,
// which gets the same ctx.
func (h *Heartbeater) Run(ctx context.Context) error {
	interval := h.interval()
	for ctx.Err() == nil {
		h.sync(ctx)
		h.rest(ctx, interval+time.Duration(rand.Float64()*jitterFactor*float64(interval)))
	}
	return context.Cause(ctx)
}

// rest waits for the next round. Once the reason is gone for which a renewal was
// withheld, it does not wait any longer: the lease may be about to expire.
func (h *Heartbeater) rest(ctx context.Context, d time.Duration) {
	end := time.Now().Add(d)
	for h.State().Result == ResultUnhealthy && ctx.Err() == nil {
		left := time.Until(end)
		if left <= 0 || h.config.Healthy() == nil {
			return
		}
		h.sleep(ctx, min(left, healthInterval))
	}
	h.sleep(ctx, time.Until(end))
}

// interval returns the time between two renewals.
func (h *Heartbeater) interval() time.Duration { return h.config.Duration / 4 }

// sync does one round.
func (h *Heartbeater) sync(ctx context.Context) {
	err := h.renew(ctx)
	skip, skipped := errors.AsType[*skip](err)
	switch {
	case err == nil: // the write has reported itself
	case skipped:
		h.report(skip.result, skip.reason)
	default:
		h.logger.Debug("gave up for this round", "err", err) // each try has been reported
	}
}

// renew writes the lease once. As long as nobody else writes it, the copy from the last
// write is good enough, and saves a GET.
func (h *Heartbeater) renew(ctx context.Context) error {
	if err := h.health(); err != nil {
		return err
	}
	if h.lease != nil && !h.seen.foreign {
		err := h.update(ctx)
		if err == nil || final(ctx, err) {
			return err
		}
		h.logger.Debug("falling back to reading the lease", "err", err)
	}
	created, err := h.ensure(ctx)
	if err != nil || created {
		return err
	}
	return h.update(ctx)
}

// update renews the known lease, in up to maxTries tries without a pause, unless the API
// server asks for one. A conflict counts as a try but is no failure.
func (h *Heartbeater) update(ctx context.Context) error {
	var err error
	for try := range maxTries {
		err = h.tryUpdate(ctx)
		if err == nil || final(ctx, err) {
			return err
		}
		if apierrors.IsConflict(err) {
			h.metrics.renewals.WithLabelValues(ResultConflict).Inc()
			h.logger.Debug("lease has changed", "err", err)
			// If this creates the lease, it is updated once more, as a
			// kubelet does.
			if _, err := h.ensure(ctx); err != nil {
				return err
			}
			continue
		}
		h.report(ResultFailure, err, "try", try+1)
		if try > 0 && h.config.OnFailure != nil {
			h.config.OnFailure()
		}
		if delay := h.asked(err); delay > 0 {
			h.sleep(ctx, delay)
		}
	}
	if apierrors.IsConflict(err) {
		// One conflict shows that another client has changed the lease; nothing
		// but conflicts is a lease that cannot be written.
		h.report(ResultFailure, err, "tries", maxTries)
	}
	return fmt.Errorf("update lease: failed %d times, at last: %w", maxTries, err)
}

func (h *Heartbeater) tryUpdate(ctx context.Context) error {
	h.alive(0)
	next, err := h.build(ctx, h.lease)
	if err != nil {
		return err
	}
	if err := h.write(ctx, h.config.Leases.Update, next); err != nil {
		return fmt.Errorf("update lease: %w", err)
	}
	return nil
}

// ensure reads the lease, or creates it if there is none, and retries until it has an
// answer. The error is a *skip or that of ctx.
func (h *Heartbeater) ensure(ctx context.Context) (created bool, err error) {
	for delay := minBackoff; ; delay = min(2*delay, maxBackoff) {
		created, err := h.tryEnsure(ctx)
		if err == nil || final(ctx, err) {
			return created, err
		}
		wait := max(delay, h.asked(err))
		h.report(ResultFailure, err, "retry", wait)
		h.sleep(ctx, wait)
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
	}
}

func (h *Heartbeater) tryEnsure(ctx context.Context) (created bool, err error) {
	h.alive(0)
	lease, err := h.get(ctx)
	switch {
	case err == nil:
		h.observe(lease)
		return false, nil
	case !apierrors.IsNotFound(err):
		return false, fmt.Errorf("get lease: %w", err)
	}
	h.observe(nil)
	next, err := h.build(ctx, nil)
	if err != nil {
		if apierrors.IsNotFound(err) {
			// No back-off: the Node appears when it is registered.
			return false, &skip{ResultNoNode, err}
		}
		return false, err
	}
	if err := h.write(ctx, h.config.Leases.Create, next); err != nil {
		return false, fmt.Errorf("create lease: %w", err)
	}
	return true, nil
}

func (h *Heartbeater) get(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, h.config.Timeout)
	defer cancel()
	return h.config.Leases.Get(ctx, h.config.NodeName)
}

// build returns the lease to write next. Every write passes here, even the one after an
// hour of back-off, so this is where writes are withheld.
func (h *Heartbeater) build(ctx context.Context, base *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if err := h.health(); err != nil {
		return nil, err
	}
	if h.seen.fresh(time.Now(), h.config.Duration) {
		return nil, &skip{ResultForeign, errors.New("another client renews the lease")}
	}
	var owners []metav1.OwnerReference
	if base == nil || len(base.OwnerReferences) == 0 {
		ctx, cancel := context.WithTimeout(ctx, h.config.Timeout)
		defer cancel()
		owner, err := h.config.Owner(ctx)
		if err != nil {
			return nil, fmt.Errorf("get owner of lease: %w", err)
		}
		owners = []metav1.OwnerReference{owner}
	}
	h.sent = h.sent.next(time.Now())
	lease := nextLease(base, h.config.NodeName, h.config.Duration, h.sent.renewTime)
	if owners != nil {
		lease.OwnerReferences = owners
	}
	return lease, nil
}

func (h *Heartbeater) health() error {
	switch err := h.config.Healthy(); {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return &skip{ResultNoNode, err}
	default:
		return &skip{ResultUnhealthy, err}
	}
}

// write sends a lease that build made, and keeps the answer.
func (h *Heartbeater) write(ctx context.Context, call func(context.Context, *coordinationv1.Lease) (*coordinationv1.Lease, error), next *coordinationv1.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, h.config.Timeout)
	defer cancel()
	start := time.Now()
	stored, err := call(ctx, next)
	h.metrics.duration.Observe(time.Since(start).Seconds())
	if err != nil {
		if len(h.unanswered) == maxUnanswered {
			h.unanswered = h.unanswered[1:]
		}
		h.unanswered = append(h.unanswered, next.Spec.RenewTime.Time)
		return err
	}
	// Nothing that was sent earlier can be stored any more: its resourceVersion is out
	// of date.
	h.unanswered = nil
	h.lease = stored
	h.seen = sighting{looked: true, uid: string(stored.UID), renewTime: next.Spec.RenewTime.Time, at: start}
	h.change(func(s *State) {
		s.Renewed, s.RenewTime = start, h.seen.renewTime
		s.ForeignWriter = false
	})
	h.report(ResultSuccess, nil)
	return nil
}

// observe takes the lease as read, nil if there is none.
func (h *Heartbeater) observe(lease *coordinationv1.Lease) {
	now := time.Now()
	lost := h.lease != nil && (lease == nil || lease.UID != h.lease.UID)
	before := h.seen
	h.lease = lease
	stranger := h.stranger(lease, now)
	h.seen = before.next(lease, h.config.NodeName, h.unanswered, stranger, now)
	if !h.seen.renewTime.IsZero() {
		h.sent = h.sent.raise(h.seen.renewTime, now)
	}
	// What the first look finds may be long past: that is no renewal.
	renewed := (before.looked || stranger) && h.seen.foreign && !h.seen.renewTime.Equal(before.renewTime)
	if renewed {
		h.metrics.foreignRenewals.Inc()
	}
	h.change(func(s *State) {
		s.ForeignWriter = h.seen.foreign
		if renewed {
			s.ForeignSeen, s.ForeignManager = now, renewTimeManager(lease)
		}
	})
	if renewed && h.config.OnForeign != nil {
		h.config.OnForeign(h.State())
	}
	h.noteHolder()
	if lost {
		h.logger.Warn("the lease is gone", "recreated", lease != nil)
		if h.config.OnLost != nil {
			h.config.OnLost()
		}
	}
}

// stranger reports whether a field manager other than ours has renewed the lease lately,
// by the wall clock.
func (h *Heartbeater) stranger(lease *coordinationv1.Lease, now time.Time) bool {
	if lease == nil || h.config.FieldManager == "" {
		return false
	}
	manager, at := Renewal(lease)
	age, good := now.Sub(at), Duration(lease, h.config.Duration)
	return manager != "" && manager != h.config.FieldManager && age < good && age > -good
}

// skip is why nothing is written now, although no call has failed.
type skip struct {
	result string
	reason error
}

func (s *skip) Error() string { return s.reason.Error() }

// final reports whether err ends the round: nothing to write, or out of time.
func final(ctx context.Context, err error) bool {
	_, skipped := errors.AsType[*skip](err)
	return skipped || ctx.Err() != nil
}

// asked returns the Retry-After of the API server's answer, 0 if it has none. It is never
// longer than the time between two renewals: the Lease would expire, and the pods be moved
// off a healthy node.
func (h *Heartbeater) asked(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(seconds)*time.Second, h.interval())
}

// alive reports that Run goes on, and will again after a wait and one try of up to three
// calls.
func (h *Heartbeater) alive(wait time.Duration) {
	h.config.Alive(wait + 3*h.config.Timeout + 10*time.Second)
}

// sleep returns after d or when ctx ends.
func (h *Heartbeater) sleep(ctx context.Context, d time.Duration) {
	h.alive(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
