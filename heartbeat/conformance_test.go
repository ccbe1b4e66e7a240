package heartbeat

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The kubelet's contract on the Lease, and where each part is held:
//
//	V23 neither Node nor lease           TestNoNode, TestUpdateUsingLatestLease
//	V24 a lease without owner, no Node   TestLeaseWithoutOwnerAndNoNode
//	V25 one conflict                     TestRetryUpdateLease
//	the object that is built             TestNewLease, TestWire, TestOwner, TestExistingLeaseIsKept
//	retries, callbacks                   TestRetryUpdateLease, TestTries
//	the cached lease, and without        TestUpdateUsingLatestLease
//	10 s to 10.4 s                       TestInterval
//	back-off of 0.2 s to 7 s             TestBackoff, TestCreateFails
//	the lease is deleted: 409 and 404    TestLeaseDeleted
//	at most 50 s                         TestHangingServer
//	the lease stays after the end        TestWire
//
// On purpose other than a kubelet: no renewal while unhealthy (TestUnhealthy), for a
// Node that is deleted (TestNodeDeleted) or while another client renews
// (TestForeignWriter), renew times that only go forward
// (TestNextRenewTime), and the owner, which the caller knows without a GET.

// V23: nothing is created for a Node that is not there, and the next round comes
// when it is due, not in a hot loop.
func TestNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.nodeUID = ""
		run(t, api.config(), func(*Heartbeater) {
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			calls := api.take()
			for i, c := range calls {
				if want := []string{"GET", "NODE"}[i%2]; c.verb != want {
					t.Fatalf("call %d is %s, want %s", i, c.verb, want)
				}
				if i%2 == 1 {
					continue
				}
				if i > 0 {
					if wait := c.start.Sub(calls[i-1].end); wait < 10*time.Second || wait > 10400*time.Millisecond {
						t.Errorf("next round after %v", wait)
					}
				}
			}
			if len(calls) < 2*57 {
				t.Errorf("%d calls in 10 minutes", len(calls))
			}
		})
	})
}

// What an existing lease says of its holder stays; only the duration and the
// renew time are written, and the owner where there is none.
func TestExistingLeaseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.put(func(l *coordinationv1.Lease) {
			l.Labels, l.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
			l.Finalizers = []string{"example.com/f"}
		})
		want := api.current()
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET PUT")
			got := api.current()
			want.ResourceVersion = got.ResourceVersion
			want.Spec.LeaseDurationSeconds, want.Spec.RenewTime = new(int32(40)), micro(h.State().RenewTime)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("lease (-want +got):\n%s", diff)
			}
		})
	})
}

// Conflicts are tries, and no failures: they neither call back nor keep a failure
// after them from doing so.
func TestTries(t *testing.T) {
	for _, test := range []struct {
		name, calls string
		errs        []error
	}{
		{"the first failure is forgiven", "PUT PUT", []error{errServer}},
		{"the second is not", "PUT PUT FAILURE PUT", []error{errServer, errServer}},
		{"a failure after a conflict is the second try", "PUT GET PUT FAILURE PUT", []error{errConflict, errServer}},
		{"a conflict after a failure", "PUT PUT GET PUT", []error{errServer, errConflict}},
		{"conflicts use up the tries", "PUT GET PUT GET PUT GET PUT GET PUT FAILURE GET PUT", []error{errConflict, errConflict, errConflict, errConflict, errServer}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				run(t, api.config(), func(h *Heartbeater) {
					api.took(t, "GET PUT")
					api.edit(func() { api.fail = failing("PUT", test.errs...) })
					api.round(t, test.calls)
					if state := h.State(); state.Result != ResultSuccess {
						t.Errorf("state %q, %v", state.Result, state.Err)
					}
				})
			})
		})
	}
}

// A lease that cannot be created is tried again from the start, ever more slowly.
func TestCreateFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.fail = failing("POST", errServer, errForbidden, errTooMany)
		run(t, api.config(), func(*Heartbeater) {
			api.took(t, "GET NODE POST")
			for _, wait := range []time.Duration{200, 400, 800} {
				time.Sleep(wait*time.Millisecond - 1)
				api.took(t, "")
				time.Sleep(time.Nanosecond)
				api.took(t, "GET NODE POST")
			}
			api.round(t, "PUT")
		})
	})
}

// The Node is deleted: its lease is not renewed, and not created once that is gone too.
func TestNodeDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		config := api.config()
		logger, lines := logged()
		config.Logger = logger
		run(t, config, func(h *Heartbeater) {
			api.took(t, "GET PUT")
			api.edit(func() { api.nodeUID, api.sick = "", apierrors.NewNotFound(nodeResource, node) })
			time.Sleep(30 * time.Second)
			api.edit(func() { api.lease = nil })
			time.Sleep(10 * time.Minute)
			api.took(t, "")
			if state := h.State(); state.Result != ResultNoNode || !apierrors.IsNotFound(state.Err) {
				t.Errorf("state %q, %v", state.Result, state.Err)
			}
			api.edit(func() { api.nodeUID, api.sick = "another", nil })
			api.round(t, "PUT GET LOST NODE POST PUT")
			if owner := api.current().OwnerReferences[0].UID; owner != "another" {
				t.Errorf("owned by %s", owner)
			}
		})
		want := []string{
			`level=INFO msg="renewing the lease"`,
			`level=INFO msg="not renewing the lease: the node does not exist" err="nodes \"node-1\" not found"`,
			`level=WARN msg="the lease is gone" recreated=false`,
			`level=INFO msg="renewing the lease"`,
		}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}
