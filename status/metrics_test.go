package status

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// gather returns every series but the histogram's buckets, without the prefix
// of the package; a histogram counts as its number of samples.
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	series := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "nodeprobe_status_")
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			series[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return series
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		registry := prometheus.NewPedanticRegistry()
		cfg := s.config()
		cfg.Registerer = registry
		want := map[string]float64{
			"registrations_total created": 0, "registrations_total adopted": 0, "registrations_total lost": 0, "registrations_total error": 0,
			"patches_total changed success": 0, "patches_total changed error": 0, "patches_total period success": 0, "patches_total period error": 0,
			"patch_bytes_total changed": 0, "patch_bytes_total period": 0, "patch_duration_seconds": 0,
			"held_patches_total": 0, "watch_errors_total": 0, "last_patch_timestamp_seconds": 0,
			"report_period_seconds": 300, "node_deleted": 0,
		}
		check := func(when string) {
			t.Helper()
			synctest.Wait()
			for _, c := range s.api.Take() {
				if c.Verb == "PATCH" {
					reason := "patch_bytes_total period"
					if strings.Contains(c.Body, `"reason"`) {
						reason = "patch_bytes_total changed"
					}
					want[reason] += float64(len(c.Body))
				}
			}
			apitest.Diff(t, when, want, gather(t, registry))
		}
		s.play(cfg, func() {
			check("before anything is done")

			s.sleep(5 * time.Second)
			want["registrations_total created"] = 1
			want["patches_total period success"] = 1
			want["patch_duration_seconds"] = 1
			want["last_patch_timestamp_seconds"] = float64(apitest.Epoch.UnixMilli()+100) / 1e3
			check("registered")

			s.judge(v1.NodeMemoryPressure, true)
			synctest.Wait()
			s.judge(v1.NodeMemoryPressure, false)
			s.sleep(100 * time.Millisecond)
			s.judge(v1.NodeDiskPressure, true)
			want["patches_total changed success"] = 1
			want["patch_duration_seconds"] = 2
			want["held_patches_total"] = 1
			want["last_patch_timestamp_seconds"] = float64(apitest.Epoch.Unix() + 5)
			check("changed")

			s.api.Refuse("PATCH", apitest.ErrServer)
			s.sleep(time.Second)
			want["patches_total changed error"] = updateAttempts
			want["patch_duration_seconds"] += updateAttempts
			check("refused")

			s.api.Remove()
			s.api.CutWatches(&apitest.ErrServer.ErrStatus)
			s.sleep(time.Minute)
			want["registrations_total lost"] = 1
			want["node_deleted"] = 1
			want["watch_errors_total"] = 0 // the end of the Node came first
			check("deleted")

			s.api.Put(adopted)
			s.api.Refuse("GET", apitest.ErrServer)
			s.sleep(7 * time.Second)
			s.api.Refuse("", nil)
			s.sleep(7 * time.Second)
			got := gather(t, registry)
			for name, want := range map[string]float64{"registrations_total adopted": 1, "registrations_total error": 1, "node_deleted": 0} {
				apitest.Diff(t, name, want, got[name])
			}
			s.api.CutWatches(&apitest.ErrServer.ErrStatus)
			synctest.Wait()
			apitest.Diff(t, "watch errors", 1., gather(t, registry)["watch_errors_total"])
		})
	})
}

// Who never posts an unchanged status, or nothing at all, must not look late.
func TestReportPeriod(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*Config)
		want float64
	}{
		{"on change only", func(c *Config) { c.ReportFrequency = 0 }, 0},
		{"nothing is written", func(c *Config) { c.Content = Follow{} }, 0},
		{"conditions of our own", func(c *Config) { c.Content, c.Spread = NewConditions(""), true }, 300},
	} {
		registry := prometheus.NewPedanticRegistry()
		cfg := newScene(t).config()
		cfg.Registerer = registry
		test.set(&cfg)
		if _, err := New(cfg); err != nil {
			t.Fatal(err)
		}
		apitest.Diff(t, test.name, test.want, gather(t, registry)["report_period_seconds"])
	}
}
