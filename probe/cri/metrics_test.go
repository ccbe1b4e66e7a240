package cri

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// gather returns every series without the prefix of the package.
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
			name := strings.TrimPrefix(family.GetName(), "nodeprobe_cri_")
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			series[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return series
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		s, x := newScript(t, Config{Registerer: registry})
		want := map[string]float64{"connects_total": 0}
		for c := range Call(NumCalls) {
			for _, name := range []string{"calls_total", "call_seconds_total", "call_errors_total"} {
				want[name+" "+c.String()] = 0
			}
		}
		if diff := cmp.Diff(want, gather(t, registry)); diff != "" {
			t.Errorf("before the first sample: %s", diff)
		}

		x.set(CallListImages, hangs)
		s.Sample(t.Context())
		now := float64(time.Now().Add(-10 * time.Second).Unix())
		s.Sample(t.Context())
		maps.Copy(want, map[string]float64{
			"calls_total Status": 2, "calls_total Version": 1, "calls_total ImageFsInfo": 1, "calls_total ListImages": 1,
			"call_seconds_total ListImages": 10, "call_errors_total ListImages": 1,
			"condition_status RuntimeReady": 1, "condition_status NetworkReady": 1,
			"runtime_info containerd 2.1.0":             1,
			"last_answer_timestamp_seconds Status":      now + 10,
			"last_answer_timestamp_seconds Version":     now,
			"last_answer_timestamp_seconds ImageFsInfo": now,
		})
		if diff := cmp.Diff(want, gather(t, registry)); diff != "" {
			t.Error(diff)
		}

		x.set(CallListImages, says(fullReplies().Images))
		time.Sleep(time.Minute)
		s.Sample(t.Context())
		if got := gather(t, registry)["images"]; got != 3 {
			t.Errorf("%v images", got)
		}
		if _, err := New(Config{Endpoint: "/x", Registerer: registry}); err == nil {
			t.Error("metrics are registered twice")
		}
	})
}
