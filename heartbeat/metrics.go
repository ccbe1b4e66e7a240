package heartbeat

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics is the collector of the package. It keeps the counters, and reads the rest from
// the state when it is scraped, so that the age is that at the time of the scrape.
type metrics struct {
	renewals        *prometheus.CounterVec
	foreignRenewals prometheus.Counter
	duration        prometheus.Histogram

	leaseDuration time.Duration
	state         func() State

	leaseDurationDesc, lastRenewalDesc, leaseAgeDesc *prometheus.Desc
	foreignHolderDesc, foreignWriterDesc             *prometheus.Desc
	unhealthyDesc                                    *prometheus.Desc
}

func newMetrics(leaseDuration time.Duration, state func() State) *metrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("nodeprobe_heartbeat_"+name, help, nil, nil)
	}
	m := &metrics{
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeprobe_heartbeat_renewals_total",
			Help: "Attempts to renew the node's Lease, by result.",
		}, []string{"result"}),
		foreignRenewals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_heartbeat_foreign_renewals_total",
			Help: "Renewals of the node's Lease by another client, as far as they were noticed.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "nodeprobe_heartbeat_renewal_duration_seconds",
			Help:    "Duration of the calls that write the node's Lease, failed ones included.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 2.5, 10},
		}),

		leaseDuration: leaseDuration,
		state:         state,

		leaseDurationDesc: desc("lease_duration_seconds",
			"Configured duration of the node's Lease; a quarter of it is the renewal interval."),
		lastRenewalDesc: desc("last_renewal_timestamp_seconds",
			"The renewTime last written; ahead of the clock after that was stepped back. Absent before the first renewal."),
		leaseAgeDesc: desc("lease_age_seconds",
			"Time since the last renewal by this process, by the monotonic clock. Absent before the first renewal."),
		foreignHolderDesc: desc("foreign_holder",
			"Whether the Lease's holderIdentity is not the node's name."),
		foreignWriterDesc: desc("foreign_writer",
			"Whether the last renewal seen in the Lease is another client's."),
		unhealthyDesc: desc("unhealthy",
			"Whether renewal is withheld because nodeprobe cannot vouch for the node; see the log for the reason."),
	}
	// rate() sees the first increase only of a series that exists before it.
	for _, result := range []string{ResultSuccess, ResultFailure, ResultConflict, ResultUnhealthy, ResultForeign, ResultNoNode} {
		m.renewals.WithLabelValues(result)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.renewals.Describe(ch)
	m.foreignRenewals.Describe(ch)
	m.duration.Describe(ch)
	for _, desc := range []*prometheus.Desc{
		m.leaseDurationDesc, m.lastRenewalDesc, m.leaseAgeDesc,
		m.foreignHolderDesc, m.foreignWriterDesc, m.unhealthyDesc,
	} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.renewals.Collect(ch)
	m.foreignRenewals.Collect(ch)
	m.duration.Collect(ch)

	gauge := func(desc *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	flag := func(desc *prometheus.Desc, set bool) {
		if set {
			gauge(desc, 1)
		} else {
			gauge(desc, 0)
		}
	}
	state := m.state()
	gauge(m.leaseDurationDesc, m.leaseDuration.Seconds())
	flag(m.foreignHolderDesc, state.ForeignHolder != "")
	flag(m.foreignWriterDesc, state.ForeignWriter)
	flag(m.unhealthyDesc, state.Result == ResultUnhealthy)
	if !state.Renewed.IsZero() {
		gauge(m.lastRenewalDesc, float64(state.RenewTime.UnixMicro())/1e6)
		gauge(m.leaseAgeDesc, time.Since(state.Renewed).Seconds())
	}
}
