package heartbeat

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
)

func TestInterval(t *testing.T) {
	for _, latency := range []time.Duration{0, 3 * time.Second} {
		t.Run(latency.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				api.latency = latency
				run(t, api.config(), func(*Heartbeater) {
					time.Sleep(50 * time.Minute)
					synctest.Wait()
				})
				calls := api.take()[1:] // without the GET
				least, most := time.Hour, time.Duration(0)
				for i := range calls[1:] {
					if calls[i].verb != "PUT" {
						t.Fatalf("call %d is a %s", i, calls[i].verb)
					}
					wait := calls[i+1].start.Sub(calls[i].end)
					least, most = min(least, wait), max(most, wait)
				}
				if least < 10*time.Second || most > 10400*time.Millisecond {
					t.Errorf("waited %v to %v, want 10 s to 10.4 s", least, most)
				}
				if most-least < 300*time.Millisecond {
					t.Errorf("waited %v to %v: no jitter", least, most)
				}
			})
		})
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.fail = failing("GET", errServer, errTooMany, errForbidden, errClosed, errServer, errServer, errServer, errServer)
		run(t, api.config(), func(h *Heartbeater) {
			time.Sleep(time.Second)
			if state := h.State(); state.Result != ResultFailure || state.Err == nil {
				t.Errorf("state during the back-off is %q, %v", state.Result, state.Err)
			}
			time.Sleep(29 * time.Second)
			synctest.Wait()
			calls := api.take()
			if got, want := verbs(calls), strings.Repeat("GET ", 9)+"PUT"; got != want {
				t.Fatalf("calls %q, want %q", got, want)
			}
			var waits []time.Duration
			for i := range calls[1:9] {
				waits = append(waits, calls[i+1].start.Sub(calls[i].end)/time.Millisecond)
			}
			if diff := cmp.Diff([]time.Duration{200, 400, 800, 1600, 3200, 6400, 7000, 7000}, waits); diff != "" {
				t.Errorf("waits in ms (-want +got):\n%s", diff)
			}
			if state := h.State(); state.Result != ResultSuccess || state.Err != nil {
				t.Errorf("state after the back-off is %q, %v", state.Result, state.Err)
			}
		})
	})
}

// A server that never answers holds up each call for the timeout, no longer.
func TestHangingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET PUT")
			api.edit(func() { api.hang = "GET PUT" })
			time.Sleep(69 * time.Second)
			synctest.Wait()
			calls := api.take()
			if got, want := verbs(calls), "PUT PUT"+fourFailures+" GET"; got != want {
				t.Fatalf("calls %q, want %q", got, want)
			}
			if took := calls[len(calls)-1].start.Sub(calls[0].start); took != 50*time.Second {
				t.Errorf("five tries took %v, want 50 s", took)
			}
			if err := h.State().Err; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want the deadline", err)
			}
			api.edit(func() { api.hang = "" })
			time.Sleep(12 * time.Second)
			if got := h.State().Result; got != ResultSuccess {
				t.Errorf("result %q after the server came back", got)
			}
		})
	})
}

func TestHangingOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.put(func(l *coordinationv1.Lease) { l.OwnerReferences = nil })
		api.hang = "NODE"
		run(t, api.config(), func(*Heartbeater) {
			time.Sleep(45 * time.Second)
			synctest.Wait()
			calls := api.take()
			if got, want := verbs(calls), "GET NODE NODE FAILURE NODE FAILURE NODE FAILURE NODE"; got != want {
				t.Fatalf("calls %q, want %q", got, want)
			}
			if took := calls[len(calls)-1].start.Sub(calls[1].start); took != 40*time.Second {
				t.Errorf("four tries took %v, want 40 s", took)
			}
		})
	})
}

// Run checks that it ends at once; these are the places where it may be.
func TestCancel(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(*fakeAPI)
		after   time.Duration
		calls   string
	}{
		{"between rounds", func(*fakeAPI) {}, 5 * time.Second, "GET PUT"},
		{"in the back-off", func(a *fakeAPI) { a.fail = func(string) error { return errServer } }, 4 * time.Second, "GET GET GET GET GET"},
		{"in the first call", func(a *fakeAPI) { a.hang = "GET" }, time.Second, "GET"},
		{"in an update", func(a *fakeAPI) { a.latency = 2 * time.Second }, 3 * time.Second, "GET PUT"},
		{"in the call for the owner", func(a *fakeAPI) { a.lease, a.latency = nil, 2*time.Second }, 3 * time.Second, "GET NODE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				test.prepare(api)
				var before State
				var h *Heartbeater
				run(t, api.config(), func(running *Heartbeater) {
					h = running
					time.Sleep(test.after)
					synctest.Wait()
					before = h.State()
				})
				time.Sleep(time.Minute)
				api.took(t, test.calls)
				if after := h.State(); after != before {
					t.Errorf("stopping changed the state from %+v to %+v", before, after)
				}
			})
		})
	}
	t.Run("before the start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := newFakeAPI()
			h, err := New(api.config())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := h.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Run returned %v", err)
			}
			api.took(t, "")
		})
	})
}
