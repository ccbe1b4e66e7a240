package nodeprobe

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Everything that may be called at any time is, by many at once, while the agent samples
// and posts, and while it ends. In the end what was put in force last is.
func TestStorm(t *testing.T) {
	for _, test := range []struct {
		name   string
		mode   Mode
		shadow bool
	}{{"observe", Observe, false}, {"shadow", Observe, true}, {"augment", Augment, false}, {"own", Own, false}} {
		t.Run(test.name, func(t *testing.T) {
			api := newAPIServer(t)
			if test.mode != Own {
				api.node = kubeletNode(time.Second)
			}
			cfg, _ := treeConfig(t, testtree.New(t, nil))
			cfg.Mode, cfg.Shadow, cfg.API = test.mode, test.shadow, api.config
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			stop := running(t, a)
			few, many := cfg, cfg
			few.Conditions, few.Thresholds = nil, judgetest.Thresholds(t, map[string]string{"memory.available": "7Gi"})
			many.Conditions = append([]pressure.Rule{judgetest.Rule(t, "example.com/Few", "pid.available < 40000")}, cfg.Conditions...)
			var storm sync.WaitGroup
			ctx, calm := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer calm()
			each := func(f func(i int)) {
				storm.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						f(i)
					}
				})
			}
			for range 100 {
				each(func(int) {
					s := a.State()
					_, _ = s.Alive(), s.IsReady()
					_, _ = s.Tier()
				})
			}
			for range 4 {
				each(func(i int) {
					if err := a.Reload([]Config{few, many, cfg}[i%3]); err != nil {
						t.Errorf("Reload: %v", err)
					}
				})
				each(func(int) { a.Sample(); a.Update() })
				each(func(int) {
					if _, err := cfg.Registerer.(prometheus.Gatherer).Gather(); err != nil {
						t.Errorf("scrape: %v", err)
					}
				})
			}
			storm.Wait()
			if err := a.Reload(many); err != nil {
				t.Error(err)
			}
			testtree.Eventually(t, "the latest is in force", func() bool {
				s := a.State()
				return len(s.Conditions) > 0 && s.Conditions[0].Type == "example.com/Few" && s.Conditions[0].Status == pressure.True &&
					s.Verdicts[pressure.MemoryPressure].Status == pressure.False
			})
			if test.mode != Observe {
				testtree.Eventually(t, "and is posted", func() bool { return api.condition("example.com/Few").Status == "True" })
			}
			storm.Go(func() {
				for range 100 {
					_, _ = a.Reload(few), a.Reload(many)
					a.State()
				}
			})
			if err := stop(); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
			storm.Wait()
		})
	}
}
