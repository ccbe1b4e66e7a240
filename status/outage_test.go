package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Whatever goes wrong once, the Node is read and posted at once.
func TestRetry(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		lost bool // the write is done, and its answer is lost
		want string
	}{
		{"down", errDown, false, "PATCH GET PATCH"},
		{"too many requests", errTooMany, false, "PATCH GET PATCH"},
		{"conflict", errConflict, false, "PATCH GET PATCH"},
		{"internal error", errServer, false, "PATCH GET PATCH"},
		{"forbidden", errForbidden, false, "PATCH GET PATCH"},
		{"closed before the answer", errCut, false, "PATCH GET PATCH"},
		{"answer is lost: nothing is left to do", errCut, true, "PATCH GET"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.steady(s.config(), func() {
					once := func(verb string) error {
						if verb != "PATCH" {
							return nil
						}
						s.api.fail, s.api.lose = nil, nil
						return test.err
					}
					s.api.edit(func() {
						if test.lost {
							s.api.lose = once
						} else {
							s.api.fail = once
						}
					})
					s.judge(pressure.MemoryPressure, true)
					s.api.took(t, "change", test.want)
					diff(t, "posted", v1.ConditionTrue, s.condition("MemoryPressure").Status)
					diff(t, "ready", nil, s.Ready())
					diff(t, "logs", []string(nil), s.logs.with("ERROR"))
					s.sleep(time.Minute)
					s.api.took(t, "afterwards", "")
				})
			})
		})
	}
}

// No request before the time that the API server asks for, whatever happens
// meanwhile: a short while is part of the pass, a long one ends it.
func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		seconds int
		ready   string
	}{
		{3, ""},
		{60, "update node status exceeds retry count: patch status of node node-1: slow down"},
	} {
		t.Run(fmt.Sprint(test.seconds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.steady(s.config(), func() {
					s.api.refuse("PATCH", apierrors.NewTooManyRequests("slow down", test.seconds))
					s.judge(pressure.MemoryPressure, true)
					for i := range test.seconds {
						s.sleep(time.Second - time.Nanosecond)
						s.judge(pressure.DiskPressure, i%2 == 0)
						diff(t, "ready", test.ready, errorText(s.Ready()))
					}
					s.Recheck()
					if test.ready != "" && s.Post(t.Context()) == nil {
						t.Error("the last word is posted nevertheless")
					}
					synctest.Wait()
					s.api.took(t, "meanwhile", "PATCH")
					s.api.refuse("", nil)
					s.sleep(time.Second)
					s.api.took(t, "afterwards", "GET PATCH")
					diff(t, "ready", nil, s.Ready())
				})
			})
		})
	}
}

// The same at registration, and for what is wrong: a minute is the most.
func TestRetryAfterAtRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.refuse("POST", apierrors.NewTooManyRequests("slow down", 1e6))
		s.play(s.config(), func() {
			s.sleep(time.Minute)
			s.api.took(t, "start", "POST")
			s.api.refuse("", nil)
			s.sleep(time.Second)
			s.api.took(t, "afterwards", "POST PATCH")
		})
	})
}

// This is the kubelet's TestUpdateExistingNodeStatusTimeout: five attempts, and
// a callback after each but the first. The next pass is no faster for a wake-up
// than a change would be.
func TestHangingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		cfg.Timeout = 2 * time.Second
		s.steady(cfg, func() {
			s.api.edit(func() { s.api.hang = "PATCH GET" })
			s.judge(pressure.MemoryPressure, true)
			s.sleep(5 * cfg.Timeout)
			s.api.took(t, "a pass", "PATCH GET FAILURE GET FAILURE GET FAILURE GET FAILURE")
			diff(t, "ready", "update node status exceeds retry count: get node node-1: context deadline exceeded", errorText(s.Ready()))
			s.api.edit(func() { s.api.hang = "" })
			s.sleep(cfg.UpdateFrequency)
			s.api.took(t, "well again", "GET PATCH")
			diff(t, "ready", nil, s.Ready())
		})
	})
}

// An outage ends in one patch that tells the truth about what happened
// meanwhile. It is logged when it begins and when it ends.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(time.Minute)
			s.logs.with()
			s.api.refuse("GET PATCH WATCH", errDown)
			s.api.cutWatches(nil)
			s.sleep(29 * time.Second) // to 1:30
			s.judge(pressure.MemoryPressure, true)
			s.sleep(30 * time.Second)
			s.judge(pressure.DiskPressure, true)
			s.sleep(time.Minute)
			s.judge(pressure.DiskPressure, false) // came and went
			s.sleep(time.Minute)
			s.judge(pressure.PIDPressure, true)
			s.sleep(10 * time.Second)
			s.vouch(errors.New("the sampler is stuck"))
			s.sleep(7*time.Minute - 10*time.Second)
			if s.Ready() == nil {
				t.Error("ready during an outage")
			}
			for _, c := range s.api.take() {
				if c.verb == "POST" {
					t.Error("an outage is no reason to register again")
				}
			}
			diff(t, "logs of the outage", []string{
				`level=ERROR msg="node status is not posted" node=node-1 err="update node status exceeds retry count: get node node-1: dial tcp: connection refused"`,
			}, s.logs.with("posted"))

			s.api.refuse("", nil)
			s.sleep(time.Minute)
			calls := s.api.take()
			if verbs(calls) != "GET PATCH" {
				t.Errorf("calls %q after the outage, want one patch", verbs(calls))
			}
			diff(t, "ready", nil, s.Ready())
			diff(t, "logs", []string{`level=INFO msg="node status is posted" node=node-1`}, s.logs.with("posted"))
			for kind, want := range map[v1.NodeConditionType]struct {
				status v1.ConditionStatus
				since  int
			}{"MemoryPressure": {"True", 90}, "DiskPressure": {"False", 180}, "PIDPressure": {"True", 240}, "Ready": {"False", 250}} {
				c := s.condition(kind)
				if kind == "DiskPressure" {
					want.since = 0 // as far as the API server is concerned nothing happened
				}
				if c.Status != want.status || !c.LastTransitionTime.Equal(new(at(want.since))) {
					t.Errorf("%s is %s since %v, want %s since %v", kind, c.Status, c.LastTransitionTime, want.status, at(want.since))
				}
			}
		})
	})
}

// Wake-ups do not make an outage worse: a flapping condition is paced whether or
// not its patches succeed.
func TestOutageIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.api.refuse("PATCH", errTooMany)
			const minutes = 10
			for i := range minutes * 60 * 10 {
				s.judge(pressure.MemoryPressure, i%2 == 0)
				s.sleep(100 * time.Millisecond)
			}
			patches := strings.Count(verbs(s.api.take()), "PATCH")
			// The burst, the tokens that come, and one post for the report period's
			// sake, which takes none.
			if most := updateAttempts * (3 + 6*minutes + 1); patches > most {
				t.Errorf("%d patches, want at most %d", patches, most)
			}
			if err := s.Ready(); err == nil {
				t.Error("a change that is held back makes a failure good")
			}
		})
	})
}

// An answer that is lost in an outage must not leave the API server with a
// status that nobody believes to be there.
func TestLostAnswerIsMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.refuse("WATCH", errForbidden)
		s.steady(s.config(), func() {
			s.api.edit(func() {
				s.api.lose = func(verb string) error {
					s.api.fail = func(verb string) error { return errDown }
					return errCut
				}
			})
			s.judge(pressure.MemoryPressure, true)
			s.sleep(time.Second)
			diff(t, "posted", v1.ConditionTrue, s.condition("MemoryPressure").Status)
			s.judge(pressure.MemoryPressure, false)
			s.api.edit(func() { s.api.lose = nil })
			s.api.refuse("WATCH", errForbidden)
			s.sleep(20 * time.Second)
			diff(t, "mended", v1.ConditionFalse, s.condition("MemoryPressure").Status)
		})
	})
}

// A server that answers 404 to all patches of a Node that it has would make us
// register in circles. It is slowed down.
func TestRegistrationCircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.edit(func() {
			s.api.fail = func(verb string) error {
				if verb == "PATCH" {
					_, err := (&fakeAPI{}).stored(nodeName)
					return err
				}
				return nil
			}
		})
		s.play(s.config(), func() {
			s.sleep(10 * time.Minute)
			if n := strings.Count(verbs(s.api.take()), "PATCH"); n > 100 {
				t.Errorf("%d attempts in 10 minutes", n)
			}
		})
	})
}
