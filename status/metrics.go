package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics count what writing to the API server costs.
type metrics struct {
	patches       *prometheus.CounterVec
	bytes         *prometheus.CounterVec
	seconds       prometheus.Histogram
	held          prometheus.Counter
	registrations *prometheus.CounterVec
	deleted       prometheus.Gauge
	watchErrors   prometheus.Counter
	lastPost      prometheus.Gauge
	period        prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(reg)
	m := &metrics{
		patches: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeprobe_status_patches_total",
			Help: "Patches of the node's status sent, by reason (changed or period) and result.",
		}, []string{"reason", "result"}),
		bytes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeprobe_status_patch_bytes_total",
			Help: "Bytes of the bodies of the node's status patches.",
		}, []string{"reason"}),
		seconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "nodeprobe_status_patch_duration_seconds",
			Help:    "Time from sending a patch to its answer.",
			Buckets: []float64{1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 1, 10},
		}),
		held: auto.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_status_held_patches_total",
			Help: "Posts that had to wait because of earlier ones.",
		}),
		registrations: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeprobe_status_registrations_total",
			Help: "Registrations of the node by outcome: created, adopted, lost or error.",
		}, []string{"outcome"}),
		deleted: auto.NewGauge(prometheus.GaugeOpts{
			Name: "nodeprobe_status_node_deleted",
			Help: "Whether the Node was deleted after registration and has not been created again by others: nodeprobe does not register it again before a restart.",
		}),
		watchErrors: auto.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_status_watch_errors_total",
			Help: "Watches of the node that ended in an error.",
		}),
		lastPost: auto.NewGauge(prometheus.GaugeOpts{
			Name: "nodeprobe_status_last_patch_timestamp_seconds",
			Help: "When a patch last succeeded.",
		}),
		period: auto.NewGauge(prometheus.GaugeOpts{
			Name: "nodeprobe_status_report_period_seconds",
			Help: "How often an unchanged status is posted; 0 is never.",
		}),
	}
	// A rate of the first event needs the series from the start.
	for _, outcome := range []string{"created", "adopted", "lost", "error"} {
		m.registrations.WithLabelValues(outcome)
	}
	for _, reason := range []string{"changed", "period"} {
		m.bytes.WithLabelValues(reason)
		for _, result := range []string{"success", "error"} {
			m.patches.WithLabelValues(reason, result)
		}
	}
	return m
}

func (m *metrics) patched(reason string, bytes int, took time.Duration, err error) {
	m.seconds.Observe(took.Seconds())
	m.bytes.WithLabelValues(reason).Add(float64(bytes))
	result := "success"
	if err != nil {
		result = "error"
	} else {
		m.lastPost.SetToCurrentTime()
	}
	m.patches.WithLabelValues(reason, result).Inc()
}
