package event

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics count what becomes of Events.
type metrics struct {
	posted  prometheus.Counter
	dropped *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	auto := promauto.With(reg)
	m := metrics{
		posted: auto.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_events_posted_total",
			Help: "Kubernetes Events about the node that were created or counted up.",
		}),
		dropped: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeprobe_events_dropped_total",
			Help: "Kubernetes Events that were not posted: too many of a reason (rate), too many queued (queue), or refused by the API server (refused).",
		}, []string{"why"}),
	}
	for _, why := range []string{"rate", "queue", "refused"} {
		m.dropped.WithLabelValues(why)
	}
	return m
}
