package heartbeat

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nextLease returns the lease to write: a copy of base, or a new lease where
// base is nil, with the duration and the renew time set. It leaves everything
// else in base alone, holderIdentity, acquireTime and leaseTransitions too, as
// the kubelet does.
func nextLease(base *coordinationv1.Lease, name string, duration time.Duration, renewTime time.Time) *coordinationv1.Lease {
	lease := base.DeepCopy()
	if lease == nil {
		lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name},
		}
	}
	seconds := int32(duration / time.Second)
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &metav1.MicroTime{Time: renewTime}
	return lease
}

// nextRenewTime returns the renew time to write when the wall clock says now
// and prev, the latest renew time written or seen, is elapsed ago by the
// monotonic clock. Times are in whole microseconds, as in the API.
//
// The result is always after prev: the node lifecycle controller ignores a
// renewal that is not. Where the wall clock was stepped back, renew times go on
// at the pace of the monotonic clock, so that a reader who trusts them sees a
// live node, and the distance to the wall clock does not grow.
func nextRenewTime(now, prev time.Time, elapsed time.Duration) time.Time {
	next := prev.Add(max(elapsed.Truncate(time.Microsecond), time.Microsecond))
	if now = now.Truncate(time.Microsecond); now.After(next) {
		return now
	}
	return next
}

// stamp is a renew time, and when it was current by the monotonic clock.
type stamp struct {
	renewTime time.Time
	at        time.Time
}

// next returns the stamp of a renewal at now. The stamp of the first renewal
// ever follows the zero stamp.
func (s stamp) next(now time.Time) stamp {
	if s.at.IsZero() {
		return stamp{now.Truncate(time.Microsecond), now}
	}
	return stamp{nextRenewTime(now, s.renewTime, now.Sub(s.at)), now}
}

// raise returns s, or renewTime as of now if s is behind: what follows must be after a
// renew time that another client wrote.
func (s stamp) raise(renewTime, now time.Time) stamp {
	if s.at.IsZero() || !renewTime.Before(s.renewTime.Add(now.Sub(s.at).Truncate(time.Microsecond))) {
		return stamp{renewTime, now}
	}
	return s
}

// sighting is what was last seen of the lease's renew time. Whether a foreign
// renewal is fresh follows from when it was seen, by our own monotonic clock, never
// from the time that the other client wrote: the clocks may differ.
type sighting struct {
	// looked is true after the first look, even if there was no lease.
	looked    bool
	uid       string
	renewTime time.Time
	// at is when renewTime was first seen, or written by us.
	at time.Time
	// foreign is true if another client wrote renewTime.
	foreign bool
}

// next returns the sighting after lease, nil if there is none, was read at now. Own
// holds the renew times that we sent and that may or may not be stored.
//
// Any change of the renew time that is not ours is a sign of life of another client,
// even a change backwards: its clock may be the right one. Exceptions are
//   - the very first look at a lease in our name, unless stranger is set: we have
//     been restarted;
//   - a re-created lease with an old renew time: restored from a copy.
func (s sighting) next(lease *coordinationv1.Lease, holder string, own []time.Time, stranger bool, now time.Time) sighting {
	if lease == nil {
		return sighting{looked: true, renewTime: s.renewTime, at: now}
	}
	next := sighting{looked: true, uid: string(lease.UID), renewTime: s.renewTime, at: now}
	if lease.Spec.RenewTime.IsZero() {
		return next
	}
	next.renewTime = lease.Spec.RenewTime.Time
	switch {
	case s.looked && next.renewTime.Equal(s.renewTime): // only metadata changed
		next.at, next.foreign = s.at, s.foreign
	case slices.ContainsFunc(own, next.renewTime.Equal):
	case !s.looked:
		next.foreign = stranger || foreignHolder(lease, holder) != ""
	case next.uid != s.uid && !next.renewTime.After(s.renewTime):
	default:
		next.foreign = true
	}
	return next
}

// fresh reports whether another client has renewed the lease within duration.
func (s sighting) fresh(now time.Time, duration time.Duration) bool {
	return s.foreign && now.Sub(s.at) < duration
}

// foreignHolder returns the lease's holderIdentity if it is another than holder, else
// "". A lease without a holder is not foreign.
func foreignHolder(lease *coordinationv1.Lease, holder string) string {
	if id := lease.Spec.HolderIdentity; id != nil && *id != holder {
		return *id
	}
	return ""
}

// Renewal returns when a lease was last renewed, by the writer's clock, and the writer's
// field manager, usually the name of its binary; "" if the API server did not record it.
func Renewal(lease *coordinationv1.Lease) (manager string, at time.Time) {
	if lease.Spec.RenewTime.IsZero() {
		return "", time.Time{}
	}
	return renewTimeManager(lease), lease.Spec.RenewTime.Time
}

// Duration returns how long a renewal of a lease is valid: its own duration, or otherwise
// if it has none.
func Duration(lease *coordinationv1.Lease, otherwise time.Duration) time.Duration {
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		return time.Duration(*seconds) * time.Second
	}
	return otherwise
}

// renewTimeManager returns the field manager that last set the renew time, or "" if the
// API server did not record it. Except for a lease that is seen for the first time, it
// only serves to name the other client: decisions rest on the renew time.
func renewTimeManager(lease *coordinationv1.Lease) string {
	for _, entry := range lease.ManagedFields {
		if entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:renewTime"`) {
			return entry.Manager
		}
	}
	return ""
}
