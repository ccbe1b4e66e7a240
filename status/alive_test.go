package status

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// Run goes on whatever the API server does, and reports so in time.
func TestAlive(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*scene, *Config)
	}{
		{"all is well", func(*scene, *Config) {}},
		{"every call hangs", func(s *scene, _ *Config) { s.api.Hang = "GET POST PATCH WATCH" }},
		{"patches hang", func(s *scene, _ *Config) { s.api.Hang = "PATCH" }},
		{"every call fails", func(s *scene, _ *Config) { s.api.Fail = func(string) error { return apitest.ErrServer } }},
		{"patches fail", func(s *scene, _ *Config) {
			s.api.Fail = func(verb string) error {
				if verb == "PATCH" {
					return apitest.ErrConflict
				}
				return nil
			}
		}},
		{"no facts", func(s *scene, _ *Config) { s.noFacts = true }},
		{"rare updates", func(_ *scene, c *Config) { c.UpdateFrequency, c.ReportFrequency = 20*time.Minute, 2*time.Hour }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				cfg := s.config()
				test.set(s, &cfg)
				var mu sync.Mutex
				beats, due := 0, time.Now()
				cfg.Alive = func(within time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					if late := time.Since(due); late > 0 {
						t.Errorf("beat %d is %v late", beats, late)
					}
					beats++
					due = time.Now().Add(within)
				}
				s.play(cfg, func() {
					s.sleep(time.Hour)
					mu.Lock()
					defer mu.Unlock()
					if time.Until(due) < 0 || time.Until(due) > cfg.UpdateFrequency+2*time.Minute || beats < 3 {
						t.Errorf("%d beats in an hour, the next is due in %v", beats, time.Until(due))
					}
				})
			})
		})
	}
}

// A pass that never ends is what there is to notice.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg := s.config()
		s.stuck = make(chan struct{})
		var mu sync.Mutex
		due := time.Now()
		cfg.Alive = func(within time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			due = time.Now().Add(within)
		}
		s.play(cfg, func() {
			s.sleep(2 * time.Minute)
			mu.Lock()
			if late := time.Since(due); late <= 0 {
				t.Errorf("nothing is due for %v", -late)
			}
			mu.Unlock()
			close(s.stuck)
		})
	})
}
