package status

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// Another plan wakes the Updater, and its periods are kept.
func TestChangeOfPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg, registry := s.config(), prometheus.NewPedanticRegistry()
		cfg.Registerer = registry
		s.steady(cfg, func() {
			s.sleep(20 * time.Minute)
			s.api.Take()
			plan := Plan{UpdateFrequency: time.Minute, ReportFrequency: time.Hour}
			s.mu.Lock()
			s.pressures[0].Status = v1.ConditionTrue
			s.mu.Unlock()
			s.Change(plan)
			synctest.Wait()
			s.api.Took(t, "changed", "PATCH")
			apitest.Diff(t, "period", 3600., gather(t, registry)["report_period_seconds"])
			s.sleep(25 * time.Minute)
			s.api.Took(t, "before half of the new report period", "")
			s.sleep(65*time.Minute - 1) // any longer, and a post that came at half of it could be followed by the next
			s.api.Took(t, "after one and a half", "PATCH")

			s.Change(plan)
			synctest.Wait()
			s.api.Took(t, "nothing new", "")
			apitest.Diff(t, "errors", []string(nil), s.logs.With("ERROR", "WARN"))
		})
	})
}
