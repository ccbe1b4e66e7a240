package judge

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

var (
	descCondition = prometheus.NewDesc("nodeprobe_node_condition",
		"Whether a condition, a kubelet's or one of our own, has a status: 1 for the one it has, 0 for the others.", []string{"condition", "status"}, nil)
	descLacking = prometheus.NewDesc("nodeprobe_node_condition_unsupported",
		"Whether a condition is unknown because the machine lacks what decides it, such as PSI: there is nothing to repair.", []string{"condition"}, nil)
	descLastTransition = prometheus.NewDesc("nodeprobe_node_condition_last_transition_timestamp_seconds",
		"When a condition got the status that it has; not before the process or its present rule began.", []string{"condition"}, nil)
	descConditionStatus = prometheus.NewDesc("nodeprobe_condition_status",
		"Deprecated: use nodeprobe_node_condition, which can be summed. 1 is True, 0 is False, -1 is Unknown.", []string{"condition"}, nil)
	descTimeToLimit = prometheus.NewDesc("nodeprobe_signal_time_to_limit_seconds",
		"Time until a limit is reached if the present trend goes on: 0 if it is reached, absent without a trend.", []string{"signal", "threshold"}, nil)
	descLimit = map[string]*prometheus.Desc{
		"bytes":  newLimitDesc("bytes"),
		"inodes": newLimitDesc("inodes"),
		"tasks":  newLimitDesc("tasks"),
	}
	descLimitRatio = prometheus.NewDesc("nodeprobe_signal_limit_ratio",
		"Share of the capacity below which a threshold is met.", []string{"signal", "threshold"}, nil)
)

func newLimitDesc(unit string) *prometheus.Desc {
	return prometheus.NewDesc("nodeprobe_signal_limit_"+unit,
		"Amount below which a threshold is met, in "+unit+".", []string{"signal", "threshold"}, nil)
}

// Describe implements prometheus.Collector.
func (j *Judge) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descCondition, descLacking, descLastTransition, descConditionStatus, descTimeToLimit, descLimitRatio} {
		ch <- d
	}
	for _, d := range descLimit {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (j *Judge) Collect(ch chan<- prometheus.Metric) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.latest.Verdicts {
		v := &j.latest.Verdicts[i]
		j.collectCondition(ch, v.Condition.String(), v.Status, v.Since, j.evaluator.Lacks(v.Condition, &j.latest.Snapshot))
	}
	for i := range j.latest.Findings {
		if f := &j.latest.Findings[i]; !f.Since.IsZero() {
			j.collectCondition(ch, f.Type, f.Status, f.Since, j.rules.Lacks(i, &j.latest.Snapshot, &j.latest.Verdicts))
		}
	}
	for i := range j.latest.Estimates {
		e, threshold := &j.latest.Estimates[i], j.names[i]
		signal := e.Signal.String()
		if e.OK {
			ch <- prometheus.MustNewConstMetric(descTimeToLimit, prometheus.GaugeValue, e.TimeToLimit.Seconds(), signal, threshold)
		}
		if o := &j.latest.Snapshot.Signals[e.Signal]; o.OK && o.Capacity > 0 {
			limit := float64(e.Threshold.Value.Of(o.Capacity))
			ch <- j.gauge(series{descLimit[e.Signal.Unit()], signal, threshold}, limit)
			ch <- j.gauge(series{descLimitRatio, signal, threshold}, limit/float64(o.Capacity))
		}
	}
}

func (j *Judge) collectCondition(ch chan<- prometheus.Metric, condition string, status pressure.Status, since time.Time, lacks bool) {
	for _, s := range [...]struct {
		name   string
		status pressure.Status
	}{{"true", pressure.True}, {"false", pressure.False}, {"unknown", pressure.Unknown}} {
		ch <- j.gauge(series{descCondition, condition, s.name}, boolean(s.status == status))
	}
	ch <- j.gauge(series{descLacking, condition, ""}, boolean(lacks))
	if !since.IsZero() {
		ch <- j.gauge(series{descLastTransition, condition, ""}, float64(since.UnixNano())/1e9)
	}
	ch <- j.gauge(series{descConditionStatus, condition, ""}, statusValue(status))
}

// series is a gauge with one label or two.
type series struct {
	desc          *prometheus.Desc
	first, second string
}

// sent is what a scrape was given last.
type sent struct {
	value  float64
	metric prometheus.Metric
}

// gauge returns a series' present value, which is the same as at the last scrape in nearly
// all: making it costs more than sending it. The caller holds the lock.
func (j *Judge) gauge(s series, value float64) prometheus.Metric {
	if last, ok := j.sent[s]; ok && last.value == value {
		return last.metric
	}
	labels := []string{s.first, s.second}
	if s.second == "" {
		labels = labels[:1]
	}
	m := prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, value, labels...)
	j.sent[s] = sent{value, m}
	return m
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
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
