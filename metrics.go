package nodeprobe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

var (
	descCondition = prometheus.NewDesc("nodeprobe_condition_status",
		"Status of a condition, a kubelet's or one of our own: 1 is True, 0 is False, -1 is Unknown.", []string{"condition"}, nil)
	descTimeToLimit = prometheus.NewDesc("nodeprobe_signal_time_to_limit_seconds",
		"Time until a limit is reached at the present rate: 0 if it is, absent if it never will be.", []string{"signal", "threshold"}, nil)
	descLimit = prometheus.NewDesc("nodeprobe_signal_limit_ratio",
		"Share of the capacity below which a threshold is met.", []string{"signal", "threshold"}, nil)
	descTier = prometheus.NewDesc("nodeprobe_tier_info",
		"How much help of the kernel is in use: procfs, psi or bpf; and why not more. Always 1.", []string{"tier", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (j *judge) Describe(ch chan<- *prometheus.Desc) {
	ch <- descCondition
	ch <- descTimeToLimit
	ch <- descLimit
}

// Collect implements prometheus.Collector.
func (j *judge) Collect(ch chan<- prometheus.Metric) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range j.latest.verdicts {
		ch <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, statusValue(v.Status), v.Condition.String())
	}
	for _, f := range j.latest.findings {
		if !f.Since.IsZero() {
			ch <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, statusValue(f.Status), f.Type)
		}
	}
	for i := range j.latest.estimates {
		e := &j.latest.estimates[i]
		if e.OK {
			ch <- prometheus.MustNewConstMetric(descTimeToLimit, prometheus.GaugeValue, e.TimeToLimit.Seconds(), e.Signal.String(), j.names[i])
		}
		if o := &j.latest.snapshot.Signals[e.Signal]; o.OK && o.Capacity > 0 {
			limit := float64(e.Threshold.Value.Of(o.Capacity)) / float64(o.Capacity)
			ch <- prometheus.MustNewConstMetric(descLimit, prometheus.GaugeValue, limit, e.Signal.String(), j.names[i])
		}
	}
}

func statusValue(s pressure.Status) float64 {
	switch s {
	case pressure.True:
		return 1
	case pressure.False:
		return 0
	default:
		return -1
	}
}

// tierCollector exports the tier.
type tierCollector struct {
	judge *judge
	hooks []bpf.Hook
}

// Describe implements prometheus.Collector.
func (c tierCollector) Describe(ch chan<- *prometheus.Desc) { ch <- descTier }

// Collect implements prometheus.Collector.
func (c tierCollector) Collect(ch chan<- prometheus.Metric) {
	a := c.judge.assess()
	if a.snapshot.Time.IsZero() {
		return
	}
	name, reason := tier(&a.snapshot, c.hooks)
	ch <- prometheus.MustNewConstMetric(descTier, prometheus.GaugeValue, 1, name, reason)
}
