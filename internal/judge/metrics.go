package judge

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

var (
	descCondition = prometheus.NewDesc("nodeprobe_condition_status",
		"Status of a condition, a kubelet's or one of our own: 1 is True, 0 is False, -1 is Unknown.", []string{"condition"}, nil)
	descTimeToLimit = prometheus.NewDesc("nodeprobe_signal_time_to_limit_seconds",
		"Time until a limit is reached at the present rate: 0 if it is, absent if it never will be.", []string{"signal", "threshold"}, nil)
	descLimit = prometheus.NewDesc("nodeprobe_signal_limit_ratio",
		"Share of the capacity below which a threshold is met.", []string{"signal", "threshold"}, nil)
)

// Describe implements prometheus.Collector.
func (j *Judge) Describe(ch chan<- *prometheus.Desc) {
	ch <- descCondition
	ch <- descTimeToLimit
	ch <- descLimit
}

// Collect implements prometheus.Collector.
func (j *Judge) Collect(ch chan<- prometheus.Metric) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range j.latest.Verdicts {
		ch <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, statusValue(v.Status), v.Condition.String())
	}
	for _, f := range j.latest.Findings {
		if !f.Since.IsZero() {
			ch <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, statusValue(f.Status), f.Type)
		}
	}
	for i := range j.latest.Estimates {
		e := &j.latest.Estimates[i]
		if e.OK {
			ch <- prometheus.MustNewConstMetric(descTimeToLimit, prometheus.GaugeValue, e.TimeToLimit.Seconds(), e.Signal.String(), j.names[i])
		}
		if o := &j.latest.Snapshot.Signals[e.Signal]; o.OK && o.Capacity > 0 {
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
