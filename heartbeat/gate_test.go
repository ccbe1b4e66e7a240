package heartbeat

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
)

// logged returns a logger and a function that returns the lines of level Info
// and above, without the attributes that vary.
func logged() (*slog.Logger, func() []string) {
	var out bytes.Buffer
	noise := regexp.MustCompile(`^time=\S+ | lease=\S+`)
	return slog.New(slog.NewTextHandler(&out, nil)), func() []string {
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, noise.ReplaceAllString(strings.TrimSpace(line), ""))
		}
		return lines
	}
}

func TestUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		config := api.config()
		logger, lines := logged()
		config.Logger = logger
		sick := errors.New("no snapshot for 35s")
		run(t, config, func(h *Heartbeater) {
			api.took(t, "GET PUT")
			renewed := h.State().Renewed
			api.edit(func() { api.sick = sick })
			time.Sleep(33 * time.Second)
			api.took(t, "")
			if state := h.State(); state.Result != ResultUnhealthy || !errors.Is(state.Err, sick) || !state.Renewed.Equal(renewed) {
				t.Errorf("state %+v, want it to tell why and since when", state)
			}
			api.edit(func() { api.sick = nil })
			api.round(t, "PUT")
		})
		want := []string{
			`level=INFO msg="renewing the lease"`,
			`level=WARN msg="not renewing the lease: unhealthy" err="no snapshot for 35s"`,
			`level=INFO msg="renewing the lease"`,
		}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// A renewal that was withheld follows soon, and the rounds go on from there.
func TestRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.sick = errors.New("not yet")
		config := api.config()
		run(t, config, func(*Heartbeater) {
			time.Sleep(2500 * time.Millisecond)
			api.took(t, "")
			api.edit(func() { api.sick = nil })
			time.Sleep(healthInterval)
			api.took(t, "GET PUT")
			time.Sleep(config.Duration/4 - time.Second)
			api.took(t, "")
			time.Sleep(2 * time.Second)
			api.took(t, "PUT")
		})
	})
}

// The API server comes back when the sampler is long dead: not one renewal.
func TestUnhealthyDuringBackoff(t *testing.T) {
	for _, exists := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			api := newFakeAPI()
			if exists {
				api.existing(time.Minute)
			}
			api.fail = failing("GET", errServer, errServer)
			run(t, api.config(), func(h *Heartbeater) {
				api.took(t, "GET")
				api.edit(func() { api.sick = errors.New("dead") })
				time.Sleep(time.Minute)
				api.took(t, "GET GET")
				if got := h.State().Result; got != ResultUnhealthy {
					t.Errorf("result %q, want %q", got, ResultUnhealthy)
				}
			})
		})
	}
}

// A kubelet that renews the same lease in the same name lives, dies and comes
// back. Its clock is behind, right or ahead of ours.
func TestForeignWriter(t *testing.T) {
	for _, offset := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(offset.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				config := api.config()
				logger, lines := logged()
				config.Logger = logger
				run(t, config, func(h *Heartbeater) {
					api.took(t, "GET PUT")
					time.Sleep(time.Second)
					api.renewAs("kubelet", offset)
					api.round(t, "PUT GET")
					for range 6 {
						time.Sleep(time.Second)
						api.renewAs("kubelet", offset)
						api.round(t, "GET")
					}
					seen := time.Now()
					state := h.State()
					if state.Result != ResultForeign || !state.ForeignWriter || state.ForeignManager != "kubelet" || state.ForeignHolder != "" {
						t.Errorf("state %+v, want a foreign writer called kubelet", state)
					}
					if !state.ForeignSeen.After(seen.Add(-time.Second)) {
						t.Errorf("last seen at %v, want %v", state.ForeignSeen, seen)
					}

					for range 3 { // silent, but not for long enough
						api.round(t, "GET")
					}
					api.round(t, "GET PUT")
					if silence := time.Since(seen); silence < 40*time.Second || silence > 42*time.Second {
						t.Errorf("took over after %v, want 40 s", silence)
					}
					if state := h.State(); state.Result != ResultSuccess || state.ForeignWriter || state.ForeignManager != "kubelet" || state.ForeignSeen.After(seen) {
						t.Errorf("state %+v, want success, and who it was until %v", state, seen)
					}
					api.round(t, "PUT")

					// Later than above: or else the renew time that we try next could be the
					// kubelet's to the microsecond, and pass for ours.
					time.Sleep(3 * time.Second)
					api.renewAs("kubelet", offset)
					api.round(t, "PUT GET")
				})
				want := []string{
					`level=INFO msg="renewing the lease"`,
					`level=WARN msg="not renewing the lease: another client does" manager=kubelet holder="" err="another client renews the lease"`,
					`level=INFO msg="renewing the lease"`,
					`level=WARN msg="not renewing the lease: another client does" manager=kubelet holder="" err="another client renews the lease"`,
				}
				if diff := cmp.Diff(want, lines()); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A kubelet renewed the lease just before our very first look: it is theirs at first
// sight. Our own renewal before a restart is not, nor is one of long ago.
func TestForeignAtFirstSight(t *testing.T) {
	for _, test := range []struct {
		name, manager string
		ago           time.Duration
		seconds       int32 // of the lease; 0 for none
		foreign       bool
	}{
		{"a kubelet is alive", "kubelet", 2 * time.Second, 40, true},
		{"its clock is ahead", "kubelet", -2 * time.Second, 40, true},
		{"it does not say how long", "kubelet", 39 * time.Second, 0, true},
		{"its renewals are good for longer than ours", "kubelet", 50 * time.Second, 60, true},
		{"it is gone", "kubelet", 40 * time.Second, 40, false},
		{"far in the future", "kubelet", -time.Hour, 40, false},
		{"we have been restarted", "nodeprobe", 2 * time.Second, 40, false},
		{"manager not recorded", "", 2 * time.Second, 40, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				api.renewAs(test.manager, -test.ago)
				api.put(func(l *coordinationv1.Lease) {
					l.Spec.LeaseDurationSeconds = nil
					if test.seconds > 0 {
						l.Spec.LeaseDurationSeconds = &test.seconds
					}
				})
				config := api.config()
				config.FieldManager = "nodeprobe"
				var noticed []string
				config.OnForeign = func(s State) { noticed = append(noticed, s.ForeignManager) }
				run(t, config, func(h *Heartbeater) {
					if !test.foreign {
						api.took(t, "GET PUT")
						if len(noticed) > 0 {
							t.Errorf("noticed %q", noticed)
						}
						return
					}
					api.took(t, "GET")
					if state := h.State(); state.Result != ResultForeign || !state.ForeignWriter || !slices.Equal(noticed, []string{test.manager}) {
						t.Errorf("state %+v, noticed of %q", state, noticed)
					}
					for range 3 {
						api.round(t, "GET")
					}
					api.round(t, "GET PUT")
				})
			})
		})
	}
}

// A kubelet that renewed between our GET and our PUT at the very start.
func TestForeignWriterAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.latency = time.Second
		run(t, api.config(), func(h *Heartbeater) {
			time.Sleep(1500 * time.Millisecond)
			api.renewAs("kubelet", 0)
			time.Sleep(5 * time.Second)
			api.took(t, "GET PUT GET")
			if got := h.State().Result; got != ResultForeign {
				t.Errorf("result %q, want %q", got, ResultForeign)
			}
		})
	})
}

func TestForeignHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Second)
		setHolder := func(name string) {
			api.put(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &name })
		}
		setHolder("virtual-kubelet")
		config := api.config()
		logger, lines := logged()
		config.Logger = logger
		run(t, config, func(h *Heartbeater) {
			// Nobody knows yet whether they are alive.
			api.took(t, "GET")
			if state := h.State(); state.ForeignHolder != "virtual-kubelet" || state.Result != ResultForeign {
				t.Errorf("state %+v, want a foreign holder", state)
			}
			for range 3 {
				api.round(t, "GET")
			}
			api.round(t, "GET PUT")
			api.round(t, "PUT")
			if state := h.State(); state.ForeignHolder != "virtual-kubelet" || state.ForeignWriter || state.Result != ResultSuccess {
				t.Errorf("state %+v, want success in a foreign name", state)
			}
			if got := *api.current().Spec.HolderIdentity; got != "virtual-kubelet" {
				t.Errorf("holder rewritten to %q", got)
			}
			setHolder(node)
			api.round(t, "PUT GET PUT")
			setHolder("x")
			api.round(t, "PUT GET PUT") // a name alone is no heartbeat
			if got := h.State().ForeignHolder; got != "x" {
				t.Errorf("foreign holder %q, want x", got)
			}
		})
		want := []string{
			`level=WARN msg="the lease has another holder" holder=virtual-kubelet`,
			`level=WARN msg="not renewing the lease: another client does" manager="" holder=virtual-kubelet err="another client renews the lease"`,
			`level=INFO msg="renewing the lease"`,
			`level=INFO msg="the lease has no other holder any more"`,
			`level=WARN msg="the lease has another holder" holder=x`,
		}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// A lease in a foreign name that has long been left is no sign of life: reporting
// one would make the agent stand down for good.
func TestForeignHolderIsLongGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Second)
		api.renewAs("other-agent", -24*time.Hour)
		api.put(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("other-agent") })
		config, noticed := api.config(), 0
		config.OnForeign = func(State) { noticed++ }
		run(t, config, func(h *Heartbeater) {
			api.took(t, "GET")
			for range 3 {
				api.round(t, "GET")
			}
			api.round(t, "GET PUT")
			if noticed != 0 {
				t.Errorf("noticed %d times a renewal from before", noticed)
			}
			time.Sleep(time.Second) // not in the very moment of our own
			api.renewAs("other-agent", 0)
			api.round(t, "PUT GET")
			if noticed != 1 {
				t.Errorf("noticed %d times, want once", noticed)
			}
		})
	})
}

func TestMetadataConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET PUT")
			api.put(func(l *coordinationv1.Lease) { l.Labels = map[string]string{"by": "hand"} })
			api.round(t, "PUT GET PUT")
			if state := h.State(); state.Result != ResultSuccess || state.ForeignWriter || !state.ForeignSeen.IsZero() {
				t.Errorf("state %+v, want nobody else", state)
			}
			if diff := cmp.Diff(map[string]string{"by": "hand"}, api.current().Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	})
}

// Writes that were stored although their answer never came are ours.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.lose = failing("POST", errClosed)
		run(t, api.config(), func(h *Heartbeater) {
			api.took(t, "GET NODE POST")
			time.Sleep(minBackoff)
			api.took(t, "GET PUT")

			api.edit(func() { api.lose = failing("PUT", errClosed) })
			api.round(t, "PUT PUT GET PUT")
			// Stored first, then refusals up to the end of the round.
			api.edit(func() {
				api.lose = failing("PUT", errClosed)
				api.fail = failing("PUT", nil, errServer, errServer, errServer, errServer)
			})
			api.round(t, "PUT PUT"+fourFailures+" GET PUT")
			if state := h.State(); state.ForeignWriter || !state.ForeignSeen.IsZero() {
				t.Errorf("state %+v, want nobody else", state)
			}
			if len(h.unanswered) > 0 {
				t.Errorf("remembers %v after a success", h.unanswered)
			}
		})
	})
}

func TestUnansweredIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		api.fail = func(verb string) error {
			if verb == "PUT" {
				return errServer
			}
			return nil
		}
		var h *Heartbeater
		run(t, api.config(), func(running *Heartbeater) {
			h = running
			time.Sleep(5 * time.Minute)
		})
		if got := len(h.unanswered); got != maxUnanswered {
			t.Errorf("remembers %d writes, want %d", got, maxUnanswered)
		}
	})
}

// The clock was an hour ahead when the lease was last written, by us or not.
// That our own renew times go forward is checked by run.
func TestLeaseInTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(-time.Hour)
		last := api.current().Spec.RenewTime.Time
		run(t, api.config(), func(h *Heartbeater) {
			for round := range 20 {
				renewTime := h.State().RenewTime
				if !renewTime.After(last) {
					t.Fatalf("round %d: renew time went from %v to %v", round, last, renewTime)
				}
				ahead := renewTime.Sub(h.State().Renewed)
				// Renewals are cut to, and at least, a microsecond.
				if off := (ahead - time.Hour).Abs(); off > time.Duration(round+1)*time.Microsecond {
					t.Fatalf("round %d: renew time is %v ahead, want 1 h", round, ahead)
				}
				last = renewTime
				if round == 10 { // conflict, with the same renew time
					api.put(func(*coordinationv1.Lease) {})
				}
				time.Sleep(10400 * time.Millisecond)
				synctest.Wait()
			}
		})
	})
}

func TestStateIsRaceFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		registry := prometheus.NewRegistry()
		config := api.config()
		config.Registerer = registry
		run(t, config, func(h *Heartbeater) {
			var readers sync.WaitGroup
			for range 4 {
				readers.Go(func() {
					for range 200 {
						if s := h.State(); s.Result == ResultSuccess && s.Err != nil {
							t.Error("half a state")
						}
						if _, err := registry.Gather(); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Second)
					}
				})
			}
			for range 20 {
				time.Sleep(10 * time.Second)
				api.renewAs("kubelet", 0)
			}
			readers.Wait()
		})
	})
}
