package status

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Another plan is posted at once, as one patch, and its periods are kept.
func TestChangeOfPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		cfg, registry := s.config(), prometheus.NewPedanticRegistry()
		cfg.Registerer = registry
		s.steady(cfg, func() {
			s.sleep(20 * time.Minute)
			s.api.take()
			plan := Plan{Resources: cfg.Resources, UpdateFrequency: time.Minute, ReportFrequency: time.Hour}
			plan.Resources.MaxPods = 7
			plan.Resources.SystemReserved = v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}
			s.Change(plan)
			synctest.Wait()
			calls := s.api.take()
			if verbs(calls) != "PATCH" || !strings.Contains(calls[0].body, `"allocatable":{"cpu":"3500m","pods":"7"}`) {
				t.Fatalf("calls %v", calls)
			}
			diff(t, "period", 3600., gather(t, registry)["report_period_seconds"])
			s.sleep(25 * time.Minute)
			s.api.took(t, "before half of the new report period", "")
			s.sleep(65*time.Minute - 1) // any longer, and a post that came at half of it could be followed by the next
			s.api.took(t, "after one and a half", "PATCH")

			s.Change(plan)
			synctest.Wait()
			s.api.took(t, "nothing new", "")
			diff(t, "errors", []string(nil), s.logs.with("ERROR", "WARN"))
		})
	})
}
