package heartbeat

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Run goes on whatever the API server does, and reports so in time.
func TestAlive(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*fakeAPI)
	}{
		{"all is well", func(*fakeAPI) {}},
		{"every call hangs", func(a *fakeAPI) { a.hang = "GET PUT POST NODE" }},
		{"every call fails", func(a *fakeAPI) { a.fail = func(string) error { return errServer } }},
		{"conflicts", func(a *fakeAPI) {
			a.fail = failing("PUT", errConflict, errConflict, errConflict, errConflict, errConflict)
		}},
		{"no Node", func(a *fakeAPI) { a.lease, a.nodeUID = nil, "" }},
		{"not healthy", func(a *fakeAPI) { a.sick = errClosed }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newFakeAPI()
				api.existing(time.Minute)
				test.set(api)
				config := api.config()
				var mu sync.Mutex
				beats, due := 0, time.Now()
				config.Alive = func(within time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					if late := time.Since(due); late > 0 {
						t.Errorf("beat %d is %v late", beats, late)
					}
					beats++
					due = time.Now().Add(within)
				}
				run(t, config, func(*Heartbeater) {
					time.Sleep(time.Hour)
					mu.Lock()
					defer mu.Unlock()
					if time.Until(due) < 0 || time.Until(due) > 2*time.Minute || beats < 60 {
						t.Errorf("%d beats in an hour, the next is due in %v", beats, time.Until(due))
					}
				})
			})
		})
	}
}

// A call that never returns is what there is to notice.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.existing(time.Minute)
		config := api.config()
		release := make(chan struct{})
		config.Healthy = func() error { <-release; return nil }
		var mu sync.Mutex
		due := time.Now()
		config.Alive = func(within time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			due = time.Now().Add(within)
		}
		run(t, config, func(*Heartbeater) {
			time.Sleep(2 * time.Minute)
			mu.Lock()
			if late := time.Since(due); late <= 0 {
				t.Errorf("nothing is due for %v", -late)
			}
			mu.Unlock()
			close(release)
		})
	})
}
