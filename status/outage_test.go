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

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// Whatever goes wrong once, the Node is read and posted at once.
func TestRetry(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		lost bool // the write is done, and its answer is lost
		want string
	}{
		{"down", apitest.ErrDown, false, "PATCH GET PATCH"},
		{"too many requests", apitest.ErrTooMany, false, "PATCH GET PATCH"},
		{"conflict", apitest.ErrConflict, false, "PATCH GET PATCH"},
		{"internal error", apitest.ErrServer, false, "PATCH GET PATCH"},
		{"forbidden", apitest.ErrForbidden, false, "PATCH GET PATCH"},
		{"closed before the answer", apitest.ErrCut, false, "PATCH GET PATCH"},
		{"answer is lost: nothing is left to do", apitest.ErrCut, true, "PATCH GET"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.steady(s.config(), func() {
					once := func(verb string) error {
						if verb != "PATCH" {
							return nil
						}
						s.api.Fail, s.api.Lose = nil, nil
						return test.err
					}
					s.api.Edit(func() {
						if test.lost {
							s.api.Lose = once
						} else {
							s.api.Fail = once
						}
					})
					s.judge(v1.NodeMemoryPressure, true)
					s.api.Took(t, "change", test.want)
					apitest.Diff(t, "posted", v1.ConditionTrue, s.condition("MemoryPressure").Status)
					apitest.Diff(t, "ready", nil, s.Ready())
					apitest.Diff(t, "logs", []string(nil), s.logs.With("ERROR"))
					s.sleep(time.Minute)
					s.api.Took(t, "afterwards", "")
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
					s.api.Refuse("PATCH", apierrors.NewTooManyRequests("slow down", test.seconds))
					s.judge(v1.NodeMemoryPressure, true)
					for i := range test.seconds {
						s.sleep(time.Second - time.Nanosecond)
						s.judge(v1.NodeDiskPressure, i%2 == 0)
						apitest.Diff(t, "ready", test.ready, apitest.ErrorText(s.Ready()))
					}
					s.Recheck()
					if test.ready != "" && s.Post(t.Context()) == nil {
						t.Error("the last word is posted nevertheless")
					}
					synctest.Wait()
					s.api.Took(t, "meanwhile", "PATCH")
					s.api.Refuse("", nil)
					s.sleep(time.Second)
					s.api.Took(t, "afterwards", "GET PATCH")
					apitest.Diff(t, "ready", nil, s.Ready())
				})
			})
		})
	}
}

// The same at registration, and for what is wrong: a minute is the most.
func TestRetryAfterAtRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Refuse("POST", apierrors.NewTooManyRequests("slow down", 1e6))
		s.play(s.config(), func() {
			s.sleep(time.Minute)
			s.api.Took(t, "start", "POST")
			s.api.Refuse("", nil)
			s.sleep(time.Second)
			s.api.Took(t, "afterwards", "POST PATCH")
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
			s.api.Edit(func() { s.api.Hang = "PATCH GET" })
			s.judge(v1.NodeMemoryPressure, true)
			s.sleep(5 * cfg.Timeout)
			s.api.Took(t, "a pass", "PATCH GET FAILURE GET FAILURE GET FAILURE GET FAILURE")
			apitest.Diff(t, "ready", "update node status exceeds retry count: get node node-1: context deadline exceeded", apitest.ErrorText(s.Ready()))
			s.api.Edit(func() { s.api.Hang = "" })
			s.sleep(cfg.UpdateFrequency)
			s.api.Took(t, "well again", "GET PATCH")
			apitest.Diff(t, "ready", nil, s.Ready())
		})
	})
}

// An outage ends in one patch that is right about what happened
// meanwhile. It is logged when it begins and when it ends.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.steady(s.config(), func() {
			s.sleep(time.Minute)
			s.logs.With()
			s.api.Refuse("GET PATCH WATCH", apitest.ErrDown)
			s.api.CutWatches(nil)
			s.sleep(29 * time.Second) // to 1:30
			s.judge(v1.NodeMemoryPressure, true)
			s.sleep(30 * time.Second)
			s.judge(v1.NodeDiskPressure, true)
			s.sleep(time.Minute)
			s.judge(v1.NodeDiskPressure, false) // came and went
			s.sleep(time.Minute)
			s.judge(v1.NodePIDPressure, true)
			s.sleep(10 * time.Second)
			s.vouch(errors.New("the sampler is stuck"))
			s.sleep(7*time.Minute - 10*time.Second)
			if s.Ready() == nil {
				t.Error("ready during an outage")
			}
			for _, c := range s.api.Take() {
				if c.Verb == "POST" {
					t.Error("an outage is no reason to register again")
				}
			}
			apitest.Diff(t, "logs of the outage", []string{
				`level=ERROR msg="node status is not posted" node=node-1 err="update node status exceeds retry count: get node node-1: dial tcp: connection refused"`,
			}, s.logs.With("posted"))

			s.api.Refuse("", nil)
			s.sleep(time.Minute)
			calls := s.api.Take()
			if apitest.Verbs(calls) != "GET PATCH" {
				t.Errorf("calls %q after the outage, want one patch", apitest.Verbs(calls))
			}
			apitest.Diff(t, "ready", nil, s.Ready())
			apitest.Diff(t, "logs", []string{`level=INFO msg="node status is posted" node=node-1`}, s.logs.With("posted"))
			for kind, want := range map[v1.NodeConditionType]struct {
				status v1.ConditionStatus
				since  int
			}{"MemoryPressure": {"True", 90}, "DiskPressure": {"False", 180}, "PIDPressure": {"True", 240}, "Ready": {"False", 250}} {
				c := s.condition(kind)
				if kind == "DiskPressure" {
					want.since = 0 // as far as the API server is concerned nothing happened
				}
				if c.Status != want.status || !c.LastTransitionTime.Equal(new(apitest.At(want.since))) {
					t.Errorf("%s is %s since %v, want %s since %v", kind, c.Status, c.LastTransitionTime, want.status, apitest.At(want.since))
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
			s.api.Refuse("PATCH", apitest.ErrTooMany)
			const minutes = 10
			for i := range minutes * 60 * 10 {
				s.judge(v1.NodeMemoryPressure, i%2 == 0)
				s.sleep(100 * time.Millisecond)
			}
			patches := strings.Count(apitest.Verbs(s.api.Take()), "PATCH")
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
		s.api.Refuse("WATCH", apitest.ErrForbidden)
		s.steady(s.config(), func() {
			s.api.Edit(func() {
				s.api.Lose = func(verb string) error {
					s.api.Fail = func(verb string) error { return apitest.ErrDown }
					return apitest.ErrCut
				}
			})
			s.judge(v1.NodeMemoryPressure, true)
			s.sleep(time.Second)
			apitest.Diff(t, "posted", v1.ConditionTrue, s.condition("MemoryPressure").Status)
			s.judge(v1.NodeMemoryPressure, false)
			s.api.Edit(func() { s.api.Lose = nil })
			s.api.Refuse("WATCH", apitest.ErrForbidden)
			s.sleep(20 * time.Second)
			apitest.Diff(t, "mended", v1.ConditionFalse, s.condition("MemoryPressure").Status)
		})
	})
}

// A server that answers 404 to all patches of a Node that it has would make us
// register in circles. It is slowed down.
func TestRegistrationCircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.api.Edit(func() {
			s.api.Fail = func(verb string) error {
				if verb == "PATCH" {
					return apierrors.NewNotFound(v1.Resource("nodes"), apitest.NodeName)
				}
				return nil
			}
		})
		s.play(s.config(), func() {
			s.sleep(10 * time.Minute)
			if n := strings.Count(apitest.Verbs(s.api.Take()), "PATCH"); n > 100 {
				t.Errorf("%d attempts in 10 minutes", n)
			}
		})
	})
}
