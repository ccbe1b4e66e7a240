package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/process"
)

// prometheus is a real one, which scrapes nodeprobe where a node's monitoring
// would, in the host's network.
type prometheus struct {
	s   *stage
	url string
}

const alertName = "NodeUnderPressure"

func (s *stage) startPrometheus() *prometheus {
	s.t.Helper()
	path, err := exec.LookPath("prometheus")
	s.must(err)
	ports, err := process.FreePorts(1)
	s.must(err)
	dir := filepath.Join(s.dir, "prometheus")
	s.must(os.Mkdir(dir, 0o755))
	rules := map[string]any{"groups": []any{map[string]any{"name": "nodeprobe", "rules": []any{
		map[string]any{"alert": alertName, "expr": "nodeprobe_condition_status == 1"},
	}}}}
	config := map[string]any{
		"global":         map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{"job_name": "nodeprobe", "static_configs": []any{map[string]any{"targets": []string{s.metricsAddress()}}}}},
	}
	for name, content := range map[string]any{"rules.yaml": rules, "prometheus.yaml": config} {
		text, err := json.Marshal(content) // JSON is YAML too
		s.must(err)
		s.must(os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	p := &prometheus{s: s, url: "http://127.0.0.1:" + strconv.Itoa(ports[0])}
	running, err := process.Start(process.Spec{Path: path, LogFile: filepath.Join(dir, "log"), Args: []string{
		"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:" + strconv.Itoa(ports[0]),
	}})
	s.must(err)
	s.t.Cleanup(func() { running.Stop(5 * time.Second) })
	s.must(running.WaitReady(within(s.t, patience), func(ctx context.Context) error { return process.GetOK(ctx, p.url+"/-/ready") }))
	return p
}

// wantAlert waits until the alert about each pressure is in that state.
func (p *prometheus) wantAlert(t *testing.T, state string) {
	t.Helper()
	for _, l := range p.s.loads {
		p.s.eventually(t, "the alert about "+string(l.Condition)+" is "+state, func() error {
			is, err := p.alert(t.Context(), string(l.Condition))
			if err == nil && is != state {
				err = fmt.Errorf("it is %s", is)
			}
			return err
		})
	}
}

// alert asks for the state of the alert about a condition.
func (p *prometheus) alert(ctx context.Context, condition string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/alerts", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Status string
		Data   struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		return "", fmt.Errorf("ask for alerts: %s %s: %w", resp.Status, answer.Status, err)
	}
	for _, a := range answer.Data.Alerts {
		if a.Labels["alertname"] == alertName && a.Labels["condition"] == condition {
			return a.State, nil
		}
	}
	return "inactive", nil
}
