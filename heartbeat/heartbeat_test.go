package heartbeat

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const fourFailures = " FAILURE PUT FAILURE PUT FAILURE PUT FAILURE"

func TestNewValidates(t *testing.T) {
	for _, test := range []struct {
		name, want string
		change     func(*Config)
	}{
		{"no leases", "Leases", func(c *Config) { c.Leases = nil }},
		{"no gate", "Healthy", func(c *Config) { c.Healthy = nil }},
		{"no owner", "Owner", func(c *Config) { c.Owner = nil }},
		{"no name", "NodeName", func(c *Config) { c.NodeName = "" }},
		{"no name for a node", "NodeName", func(c *Config) { c.NodeName = "../x" }},
		{"no duration", "Duration", func(c *Config) { c.Duration = 0 }},
		{"below a second", "Duration", func(c *Config) { c.Duration = 999 * time.Millisecond }},
		{"broken seconds", "Duration", func(c *Config) { c.Duration = 1500 * time.Millisecond }},
		{"beyond the API", "Duration", func(c *Config) { c.Duration = (math.MaxInt32 + 1) * time.Second }},
		{"negative timeout", "Timeout", func(c *Config) { c.Timeout = -1 }},
		{"timeout beyond the lease", "Timeout", func(c *Config) { c.Timeout = 41 * time.Second }},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := newFakeAPI().config()
			test.change(&config)
			h, err := New(config)
			if h != nil || err == nil || !strings.HasPrefix(err.Error(), "configure heartbeat: "+test.want+": ") {
				t.Errorf("got %v, %v; want an error about %s", h, err, test.want)
			}
		})
	}
	for duration, timeout := range map[time.Duration]time.Duration{40 * time.Second: 10 * time.Second, time.Second: time.Second} {
		config := newFakeAPI().config()
		config.Duration = duration
		h, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		if h.config.Timeout != timeout {
			t.Errorf("timeout for a lease of %v is %v, want %v", duration, h.config.Timeout, timeout)
		}
	}
}

// What goes over the wire, object by object.
func TestWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET NODE POST")
			want := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{
					Name: node, Namespace: "kube-node-lease", UID: "lease-1", ResourceVersion: "1",
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "node-uid"}},
				},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity:       new(node),
					LeaseDurationSeconds: new(int32(40)),
					RenewTime:            micro(epoch),
				},
			}
			if diff := cmp.Diff(want, api.current()); diff != "" {
				t.Errorf("created lease (-want +got):\n%s", diff)
			}
			api.round(t, "PUT")
			renewed := h.State().RenewTime
			if age := time.Since(renewed); age < 0 || age > 100*time.Millisecond {
				t.Errorf("renew time is %v old", age)
			}
			want.ResourceVersion, want.Spec.RenewTime = "2", micro(renewed)
			if diff := cmp.Diff(want, api.current()); diff != "" {
				t.Errorf("renewed lease (-want +got):\n%s", diff)
			}
		})
		if api.current() == nil {
			t.Error("the lease is gone after the end")
		}
		api.took(t, "")
	})
}

func TestOwner(t *testing.T) {
	for _, test := range []struct {
		name, calls string
		owners      []metav1.OwnerReference
		want        string
	}{
		{"non-nil base without owner ref", "GET NODE PUT", nil, "node-uid"},
		{"non-nil base with owner ref", "GET PUT", []metav1.OwnerReference{{Kind: "Node", UID: "other"}}, "other"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				api.put(func(l *coordinationv1.Lease) { l.OwnerReferences = test.owners })
				run(t, api.config(), func(*Heartbeater) {
					api.took(t, test.calls)
					if got := api.current().OwnerReferences; len(got) != 1 || string(got[0].UID) != test.want {
						t.Errorf("owners %v, want one with UID %s", got, test.want)
					}
				})
			})
		})
	}
}

func TestRetryUpdateLease(t *testing.T) {
	timeout := apierrors.NewServerTimeout(leaseResource, "put", 0)
	for _, test := range []struct {
		name  string
		fail  func(string) error
		calls string
		err   error
	}{
		{"no errors", nil, "PUT", nil},
		{"connection errors", failing("PUT", timeout, timeout, timeout, timeout), "PUT PUT FAILURE PUT FAILURE PUT FAILURE PUT", nil},
		{"optimistic lock errors", failing("PUT", timeout, errConflict), "PUT PUT GET PUT", nil},
		{
			"only optimistic lock errors", failing("PUT", errConflict, errConflict, errConflict, errConflict, errConflict),
			"PUT GET PUT GET PUT GET PUT GET PUT GET GET PUT", nil,
		},
		{"optimistic lock errors for good", func(verb string) error {
			if verb == "PUT" {
				return errConflict
			}
			return nil
		}, strings.TrimSpace(strings.Repeat("PUT GET ", 5) + "GET " + strings.Repeat("PUT GET ", 5)), errConflict},
		{"V25: one conflict", failing("PUT", errConflict), "PUT GET PUT", nil},
		{"all tries fail", failing("PUT", errServer, errTooMany, errForbidden, errClosed, errServer), "PUT PUT" + fourFailures + " GET PUT", nil},
		{"all tries fail twice", func(verb string) error {
			if verb == "PUT" {
				return errForbidden
			}
			return nil
		}, "PUT PUT" + fourFailures + " GET PUT PUT" + fourFailures, errForbidden},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				run(t, api.config(), func(h *Heartbeater) {
					api.took(t, "GET PUT")
					api.edit(func() { api.fail = test.fail })
					api.round(t, test.calls)
					if state := h.State(); !errors.Is(state.Err, test.err) || (test.err == nil) != (state.Result == ResultSuccess) {
						t.Errorf("state %q, %v; want %v", state.Result, state.Err, test.err)
					}
					if h.State().ForeignWriter {
						t.Error("sees a foreign writer")
					}
				})
			})
		})
	}
}

// No request of any kind before the time that the API server asks for, as long as
// that is no longer than the time between two renewals.
func TestRetryAfter(t *testing.T) {
	const asked = 9
	for name, verb := range map[string]string{"update": "PUT", "read": "GET", "create": "POST"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				if verb != "POST" {
					api.existing(time.Minute)
				}
				api.fail = failing(verb, apierrors.NewTooManyRequests("slow down", asked), apierrors.NewTooManyRequests("slow down", asked))
				run(t, api.config(), func(h *Heartbeater) {
					time.Sleep(5 * time.Minute)
					synctest.Wait()
					calls := slices.DeleteFunc(api.take(), func(c call) bool { return c.verb == "FAILURE" })
					met := 0
					for i, c := range calls {
						if c.verb != verb || met == 2 {
							continue
						}
						met++
						if wait := calls[i+1].start.Sub(c.start); wait < asked*time.Second || wait > (asked+1)*time.Second {
							t.Errorf("%s %v after an answer that asked for %ds", calls[i+1].verb, wait, asked)
						}
					}
					if met != 2 || h.State().Result != ResultSuccess {
						t.Errorf("%d answers, result %q; want 2, %q", met, h.State().Result, ResultSuccess)
					}
				})
			})
		})
	}
}

// Whatever an answer asks for, a Lease that is as good as new does not run out, and
// one that is not there is created before it would have.
func TestRetryAfterOutlastsLease(t *testing.T) {
	for name, verb := range map[string]string{"update": "PUT", "read": "GET", "create": "POST"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				if verb != "POST" {
					api.existing(0)
				}
				tooMany := apierrors.NewTooManyRequests("slow down", 300)
				api.fail = failing(verb, tooMany, tooMany)
				config := api.config()
				run(t, config, func(h *Heartbeater) {
					time.Sleep(config.Duration - time.Nanosecond)
					synctest.Wait()
					if h.State().Renewed.IsZero() {
						t.Errorf("not renewed within %v; calls %q", config.Duration, verbs(api.take()))
					}
				})
			})
		})
	}
}

func TestUpdateUsingLatestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Log("latest lease is nil and need to create, node doesn't exist")
		api := newFakeAPI()
		api.nodeUID = ""
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET NODE") // V23: no POST
			start := time.Now()
			api.round(t, "GET NODE")
			if wait := time.Since(start); wait < 10*time.Second {
				t.Errorf("tried again after %v", wait)
			}
			if got := h.State().Result; got != ResultNoNode {
				t.Errorf("result %q, want %q", got, ResultNoNode)
			}
			t.Log("latest lease is nil and need to create")
			api.edit(func() { api.nodeUID = "late" })
			api.round(t, "GET NODE POST")
			t.Log("latest lease exists and need to update")
			api.round(t, "PUT")
			t.Log("update with latest lease failed")
			api.edit(func() { api.fail = failing("PUT", errServer, errServer, errServer, errServer, errServer) })
			api.round(t, "PUT PUT"+fourFailures+" GET PUT")
		})
		t.Log("latest lease is nil and need to update")
		api.take()
		run(t, api.config(), func(*Heartbeater) { api.took(t, "GET PUT") })
	})
}

// V24, as the kubelet does it and not as its comment says: no PUT is sent.
func TestLeaseWithoutOwnerAndNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.put(func(l *coordinationv1.Lease) { l.OwnerReferences = nil })
		api.nodeUID = ""
		tries := "NODE NODE FAILURE NODE FAILURE NODE FAILURE NODE FAILURE"
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET "+tries)
			api.round(t, tries+" GET "+tries)
			if state := h.State(); state.Result != ResultFailure || !apierrors.IsNotFound(state.Err) {
				t.Errorf("state %q, %v; want a failure that is NotFound", state.Result, state.Err)
			}
			api.edit(func() { api.nodeUID = "late" })
			api.round(t, "NODE PUT")
		})
	})
}

// An owner that cannot be asked is not an owner that does not exist.
func TestOwnerFailsAtCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.fail = failing("NODE", errServer)
		run(t, api.config(), func(*Heartbeater) {
			api.took(t, "GET NODE")
			time.Sleep(minBackoff)
			api.took(t, "GET NODE POST")
		})
	})
}

func TestLeaseDeleted(t *testing.T) {
	recreate := func(change func(*coordinationv1.Lease)) func(*fakeAPI) {
		return func(a *fakeAPI) {
			a.edit(func() { a.lease = nil })
			a.put(change)
		}
	}
	for _, test := range []struct {
		name   string
		change func(*fakeAPI)
		calls  string
		next   string
	}{
		{"409, as the API server answers", func(a *fakeAPI) { a.edit(func() { a.lease = nil }) }, "PUT GET LOST NODE POST PUT", "PUT"},
		{
			"404, as a fake clientset answers", func(a *fakeAPI) { a.edit(func() { a.lease, a.clientsetLike = nil, true }) },
			"PUT PUT" + fourFailures + " GET LOST NODE POST", "PUT",
		},
		{"with the node", func(a *fakeAPI) { a.edit(func() { a.lease, a.nodeUID = nil, "" }) }, "PUT GET LOST NODE", "GET NODE"},
		{"re-created by hand", recreate(func(*coordinationv1.Lease) {}), "PUT GET LOST NODE PUT", "PUT"},
		{"re-created from a copy", recreate(func(l *coordinationv1.Lease) {
			l.Spec.RenewTime = micro(epoch.Add(-time.Minute))
		}), "PUT GET LOST NODE PUT", "PUT"},
		{"re-created by a live kubelet", recreate(func(l *coordinationv1.Lease) {
			l.Spec.RenewTime = micro(time.Now().Add(time.Second))
		}), "PUT GET LOST", "GET"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				run(t, api.config(), func(*Heartbeater) {
					api.took(t, "GET PUT")
					test.change(api)
					api.round(t, test.calls)
					api.round(t, test.next)
				})
			})
		})
	}
}

// Another client creates the lease between our read and our creation.
func TestCreateRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.fail = func(verb string) error {
			if verb == "POST" && api.lease == nil {
				l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: Namespace}}
				l.Spec.RenewTime = micro(time.Now().Add(time.Second))
				api.store(l, false)
			}
			return nil
		}
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET NODE POST")
			time.Sleep(minBackoff)
			api.took(t, "GET")
			if !h.State().ForeignWriter {
				t.Error("the client that created the lease went unnoticed")
			}
		})
	})
}
