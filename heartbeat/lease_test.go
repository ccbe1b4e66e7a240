package heartbeat

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func micro(t time.Time) *metav1.MicroTime { return &metav1.MicroTime{Time: t} }

// The cases about the owner are in TestOwner: it takes a call to find out.
func TestNewLease(t *testing.T) {
	old, now := epoch, epoch.Add(time.Hour)
	base := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: Namespace, UID: "uid", ResourceVersion: "7",
			Labels:          map[string]string{"a": "b"},
			OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new("somebody"),
			LeaseDurationSeconds: new(int32(10)),
			AcquireTime:          micro(old),
			RenewTime:            micro(old),
			LeaseTransitions:     new(int32(4)),
		},
	}
	renewed := base.DeepCopy()
	renewed.Spec.LeaseDurationSeconds = new(int32(40))
	renewed.Spec.RenewTime = micro(now)

	for _, test := range []struct {
		name       string
		base, want *coordinationv1.Lease
	}{{
		name: "nil base",
		want: &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: Namespace},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       new(node),
				LeaseDurationSeconds: new(int32(40)),
				RenewTime:            micro(now),
			},
		},
	}, {
		name: "non-nil base, renew time and lease duration are updated",
		base: base,
		want: renewed,
	}} {
		t.Run(test.name, func(t *testing.T) {
			before := test.base.DeepCopy()
			got := nextLease(test.base, node, 40*time.Second, now)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("lease (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, test.base); diff != "" {
				t.Errorf("base was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestNextRenewTime(t *testing.T) {
	const µs = time.Microsecond
	for _, test := range []struct {
		name    string
		now     time.Duration // wall clock; prev is at 0
		elapsed time.Duration // monotonic
		want    time.Duration
	}{
		{name: "clocks agree", now: 10 * time.Second, elapsed: 10 * time.Second, want: 10 * time.Second},
		{name: "nanoseconds are cut", now: 10*time.Second + 999, elapsed: 10*time.Second + 999, want: 10 * time.Second},
		{name: "same instant", now: 0, elapsed: 0, want: µs},
		{name: "within a microsecond", now: 999, elapsed: 999, want: µs},
		{name: "stepped back an hour", now: 10*time.Second - time.Hour, elapsed: 10 * time.Second, want: 10 * time.Second},
		{name: "stepped back a little", now: 9 * time.Second, elapsed: 10 * time.Second, want: 10 * time.Second},
		{name: "stepped forward an hour", now: 10*time.Second + time.Hour, elapsed: 10 * time.Second, want: 10*time.Second + time.Hour},
		{name: "suspended: only the wall clock went on", now: 8 * time.Hour, elapsed: time.Second, want: 8 * time.Hour},
		{name: "monotonic clock at fault", now: -time.Hour, elapsed: -time.Second, want: µs},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := nextRenewTime(epoch.Add(test.now), epoch, test.elapsed)
			if want := epoch.Add(test.want); !got.Equal(want) {
				t.Errorf("got %v after the previous one, want %v", got.Sub(epoch), test.want)
			}
		})
	}
}

// A step forward and its correction must not add up, however often they come.
func TestNextRenewTimeDoesNotRunAway(t *testing.T) {
	wall, renewTime := epoch, epoch
	for range 100 {
		for _, step := range []time.Duration{time.Hour, -time.Hour, 0, -time.Minute, time.Minute} {
			wall = wall.Add(10*time.Second + step)
			renewTime = nextRenewTime(wall, renewTime, 10*time.Second)
		}
	}
	if ahead := renewTime.Sub(wall); ahead != time.Hour {
		t.Errorf("renew time is %v ahead, want %v: as far as the clock ever was", ahead, time.Hour)
	}
}

// FuzzNextRenewTime walks through steps of the wall clock (microseconds) and of
// the monotonic one (nanoseconds), eight bytes each.
func FuzzNextRenewTime(f *testing.F) {
	add := func(steps ...int64) {
		var data []byte
		for _, step := range steps {
			data = binary.BigEndian.AppendUint64(data, uint64(step))
		}
		f.Add(data)
	}
	add(0, 0, 0, 1, 0, 999)
	add(0, 1e10, -3.6e9, 1e10, 0, 1e10)
	add(3.6e9, 1e10, -3.6e9, 1e10, 3.6e9, 1e10)
	add(-1, 1, -1, 1000, -1, 1001)
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1000 * 365 * 24 * int64(time.Hour/time.Microsecond) // a millennium
		wall, renewTime := epoch, epoch
		for ; len(data) >= 16; data = data[16:] {
			step := int64(binary.BigEndian.Uint64(data)) % limit
			elapsed := time.Duration(binary.BigEndian.Uint64(data[8:]) % uint64(time.Hour))
			moved := wall.Add(elapsed)
			moved = time.UnixMicro(moved.UnixMicro() + step).Add(time.Duration(moved.Nanosecond() % 1000))
			if y := moved.Year(); y < 1 || y > 9999 {
				continue
			}
			ahead := renewTime.UnixMicro() - wall.UnixMicro()

			next := nextRenewTime(moved, renewTime, elapsed)

			if !next.After(renewTime) {
				t.Fatalf("%v does not follow %v", next, renewTime)
			}
			if next.Nanosecond()%1000 != 0 {
				t.Fatalf("%v is not in whole microseconds", next)
			}
			if next.Before(moved.Truncate(time.Microsecond)) {
				t.Fatalf("%v is behind the wall clock, %v", next, moved)
			}
			if least := renewTime.Add(elapsed.Truncate(time.Microsecond)); next.Before(least) {
				t.Fatalf("%v is behind the monotonic clock, %v", next, least)
			}
			// No further ahead than it was, less what the wall clock gained;
			// 2 µs for the cut and the least step.
			if got, most := next.UnixMicro()-moved.UnixMicro(), max(0, ahead-step)+2; got > most {
				t.Fatalf("%d µs ahead of the wall clock, want at most %d", got, most)
			}
			wall, renewTime = moved, next
		}
	})
}

// Whatever renew time is seen in the lease, the next one is after it.
func TestStampRaise(t *testing.T) {
	start := epoch
	for _, seen := range []time.Duration{-time.Hour, 0, time.Microsecond, 10 * time.Second, 10*time.Second + time.Microsecond, time.Hour} {
		sent := stamp{}.next(start)
		now := start.Add(10*time.Second + 999)
		renewTime := sent.renewTime.Add(seen)
		next := sent.raise(renewTime, now).next(now)
		if !next.renewTime.After(renewTime) || !next.renewTime.After(sent.renewTime) {
			t.Errorf("after sending %v and seeing %v: %v", sent.renewTime, renewTime, next.renewTime)
		}
		if most := max(10*time.Second, seen) + time.Microsecond; next.renewTime.Sub(sent.renewTime) > most {
			t.Errorf("seen %v later, went on %v later, want at most %v", seen, next.renewTime.Sub(sent.renewTime), most)
		}
	}
	if next := (stamp{}).raise(start, start).next(start); !next.renewTime.After(start) {
		t.Errorf("first stamp %v is not after the one in the lease, %v", next.renewTime, start)
	}
}

func TestSighting(t *testing.T) {
	seenAt, now := epoch.Add(-10*time.Second), epoch
	at := func(renewTime time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{UID: "1"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(node), RenewTime: micro(epoch.Add(renewTime))},
		}
	}
	with := func(lease *coordinationv1.Lease, uid types.UID, holder *string) *coordinationv1.Lease {
		lease.UID, lease.Spec.HolderIdentity = uid, holder
		return lease
	}
	ours := sighting{looked: true, uid: "1", renewTime: epoch, at: seenAt}
	theirs := ours
	theirs.foreign = true
	gone := sighting{looked: true, renewTime: epoch, at: seenAt}
	never := sighting{}
	own := []time.Time{epoch.Add(3), epoch.Add(5)}

	for _, test := range []struct {
		name    string
		before  sighting
		lease   *coordinationv1.Lease
		foreign bool
		at      time.Time

		stranger bool
	}{
		{"first look, no lease", never, nil, false, now, false},
		{"first look, our name", never, at(0), false, now, false},
		{"first look, our name, lately renewed by another manager", never, at(0), true, now, true},
		{"only metadata changed, of a lease of theirs that we have written since", ours, at(0), false, seenAt, true},
		{"first look, no name", never, with(at(0), "1", nil), false, now, false},
		{"first look, foreign name", never, with(at(0), "1", new("x")), true, now, false},
		{"first look, foreign name, never renewed", never, &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("x")}}, false, now, false},
		{"only metadata changed", ours, at(0), false, seenAt, false},
		{"only the name changed", ours, with(at(0), "1", new("x")), false, seenAt, false},
		{"renewed by another client", ours, at(1), true, now, false},
		{"renewed by a client whose clock is behind", ours, at(-time.Hour), true, now, false},
		{"our own, the answer was lost", ours, at(5), false, now, false},
		{"our own, in another zone", ours, &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: micro(epoch.Add(5).In(time.FixedZone("", 3600)))}}, false, now, false},
		{"our own after theirs", theirs, at(5), false, now, false},
		{"they are silent", theirs, at(0), true, seenAt, false},
		{"they are not", theirs, at(10), true, now, false},
		{"renew time removed", theirs, &coordinationv1.Lease{}, false, now, false},
		{"deleted", theirs, nil, false, now, false},
		{"re-created by a live client", ours, with(at(1), "2", new(node)), true, now, false},
		{"re-created from a copy", ours, with(at(-time.Minute), "2", new(node)), false, now, false},
		{"re-created by a live client after a look", gone, with(at(1), "2", new(node)), true, now, false},
		{"re-created from a copy after a look", gone, with(at(-time.Minute), "2", new(node)), false, now, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.before.next(test.lease, node, own, test.stranger, now)
			if got.foreign != test.foreign {
				t.Errorf("foreign: %t, want %t", got.foreign, test.foreign)
			}
			if !got.at.Equal(test.at) {
				t.Errorf("seen at %v, want %v", got.at, test.at)
			}
			if !got.looked {
				t.Error("looked is not set")
			}
			if test.lease == nil && !got.renewTime.Equal(test.before.renewTime) {
				t.Errorf("forgot the renew time of the lease that is gone: %v", got.renewTime)
			}
			if test.lease != nil && got.uid != string(test.lease.UID) {
				t.Errorf("UID %q, want %q", got.uid, test.lease.UID)
			}
		})
	}
}

func TestSightingFresh(t *testing.T) {
	s := sighting{foreign: true, at: epoch}
	if !s.fresh(epoch.Add(40*time.Second-1), 40*time.Second) {
		t.Error("not fresh just before the end")
	}
	if s.fresh(epoch.Add(40*time.Second), 40*time.Second) {
		t.Error("fresh after the lease duration")
	}
	if (sighting{at: epoch}).fresh(epoch, 40*time.Second) {
		t.Error("our own renewal counts as a fresh foreign one")
	}
	if (sighting{}).fresh(time.Now(), math.MaxInt64) {
		t.Error("nothing seen counts as fresh")
	}
}

func TestRenewTimeManager(t *testing.T) {
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	lease := &coordinationv1.Lease{}
	if got := renewTimeManager(lease); got != "" {
		t.Errorf("without managed fields: %q", got)
	}
	lease.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "nothing"},
		entry("kubectl-label", `{"f:metadata":{"f:labels":{"f:x":{}}}}`),
		entry("kubelet", `{"f:spec":{"f:leaseDurationSeconds":{},"f:renewTime":{}}}`),
	}
	if got := renewTimeManager(lease); got != "kubelet" {
		t.Errorf("got %q, want kubelet", got)
	}
}
