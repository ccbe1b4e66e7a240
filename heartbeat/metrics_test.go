package heartbeat

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	coordinationv1 "k8s.io/api/coordination/v1"
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
			name := family.GetName()[len("nodeprobe_heartbeat_"):]
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
		api := newFakeAPI()
		api.nodeUID = ""
		registry := prometheus.NewPedanticRegistry()
		config := api.config()
		config.Registerer = registry
		want := map[string]float64{
			"renewals_total success":           0,
			"renewals_total failure":           0,
			"renewals_total conflict":          0,
			"renewals_total skipped_unhealthy": 0,
			"renewals_total skipped_foreign":   0,
			"renewals_total skipped_no_node":   1,
			"renewal_duration_seconds":         0,
			"foreign_renewals_total":           0,
			"foreign_holder":                   0,
			"foreign_writer":                   0,
			"unhealthy":                        0,
			"lease_duration_seconds":           40,
		}
		check := func(when string) {
			t.Helper()
			if diff := cmp.Diff(want, gather(t, registry)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		run(t, config, func(h *Heartbeater) {
			check("without a node")

			api.edit(func() { api.nodeUID = "uid" })
			api.take()
			api.round(t, "GET NODE POST")
			renewed := h.State().Renewed
			time.Sleep(5 * time.Second)
			want["renewals_total success"] = 1
			want["renewal_duration_seconds"] = 1
			want["lease_age_seconds"] = time.Since(renewed).Seconds()
			want["last_renewal_timestamp_seconds"] = float64(renewed.UnixMicro()) / 1e6
			check("created")

			api.put(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("x") })
			api.renewAs("kubelet", 0)
			api.round(t, "PUT GET")
			want["renewals_total conflict"] = 1
			want["renewals_total skipped_foreign"] = 1
			want["renewal_duration_seconds"] = 2
			want["foreign_renewals_total"] = 1
			want["foreign_holder"] = 1
			want["foreign_writer"] = 1
			want["lease_age_seconds"] = time.Since(renewed).Seconds()
			check("foreign")

			api.edit(func() { api.sick = errors.New("dead") })
			time.Sleep(10400 * time.Millisecond)
			synctest.Wait()
			want["renewals_total skipped_unhealthy"] = 1
			want["unhealthy"] = 1
			want["lease_age_seconds"] = time.Since(renewed).Seconds()
			check("unhealthy")
		})
	})
}

func TestMetricsRegisteredTwice(t *testing.T) {
	config := newFakeAPI().config()
	config.Registerer = prometheus.NewRegistry()
	if _, err := New(config); err != nil {
		t.Fatal(err)
	}
	_, err := New(config)
	if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); !ok {
		t.Errorf("second registration: %v, want AlreadyRegisteredError", err)
	}
}
