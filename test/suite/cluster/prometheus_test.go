package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/prometheus"
)

const alertName = "NodeUnderPressure"

// startPrometheus starts one that scrapes nodeprobe where a node's monitoring would,
// in the host's network.
func (s *scene) startPrometheus() {
	s.t.Helper()
	dir := filepath.Join(s.dir, "prometheus")
	s.must(os.Mkdir(dir, 0o755))
	rules, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "nodeprobe", "rules": []any{
		map[string]any{"alert": alertName, "expr": "nodeprobe_condition_status == 1"},
	}}}})
	s.must(err)
	s.must(os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600)) // JSON is YAML too
	s.prometheus = prometheus.StartForTest(s.t, dir, map[string]any{
		"global":         map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{"job_name": "nodeprobe", "static_configs": []any{map[string]any{"targets": []string{s.metricsAddress()}}}}},
	})
}

// wantAlert waits until the alert about each pressure is in that state.
func (s *scene) wantAlert(t *testing.T, state string) {
	t.Helper()
	for _, l := range s.loads {
		s.eventually(t, "the alert about "+string(l.Condition)+" is "+state, func() error {
			alerts, err := s.prometheus.Alerts(t.Context())
			if err != nil {
				return err
			}
			is := "inactive"
			for _, a := range alerts {
				if a.Labels["alertname"] == alertName && a.Labels["condition"] == string(l.Condition) {
					is = a.State
				}
			}
			if is != state {
				return fmt.Errorf("it is %s", is)
			}
			return nil
		})
	}
}
