package nodeprobe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/judge"
)

var descTier = prometheus.NewDesc("nodeprobe_tier_info",
	"How much help of the kernel is in use: procfs, psi or bpf; and why not more. Always 1.", []string{"tier", "reason"}, nil)

// tierCollector exports the tier.
type tierCollector struct {
	judge *judge.Judge
	hooks []bpf.Hook
}

// Describe implements prometheus.Collector.
func (c tierCollector) Describe(ch chan<- *prometheus.Desc) { ch <- descTier }

// Collect implements prometheus.Collector.
func (c tierCollector) Collect(ch chan<- prometheus.Metric) {
	a := c.judge.Assess()
	if a.Snapshot.Time.IsZero() {
		return
	}
	name, reason := tier(&a.Snapshot, c.hooks)
	ch <- prometheus.MustNewConstMetric(descTier, prometheus.GaugeValue, 1, name, reason)
}
