package cri

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts calls and what they cost. What the runtime reported is exported
// from the latest Snapshot at each scrape.
type metrics struct {
	connects prometheus.Counter
	calls    [NumCalls]callMetrics

	collectors []prometheus.Collector
	last       func() Snapshot
}

// callMetrics is what one call costs.
type callMetrics struct{ calls, seconds, errors prometheus.Counter }

func (m *callMetrics) count(took time.Duration, err error) {
	m.calls.Inc()
	m.seconds.Add(took.Seconds())
	if err != nil {
		m.errors.Inc()
	}
}

var (
	conditionDesc = prometheus.NewDesc("nodeprobe_cri_condition_status",
		"Whether a condition of the container runtime holds, as it last reported.", []string{"condition"}, nil)
	lastReadDesc = prometheus.NewDesc("nodeprobe_cri_last_answer_timestamp_seconds",
		"When the container runtime last answered a call. Absent before it did.", []string{"call"}, nil)
	imagesDesc = prometheus.NewDesc("nodeprobe_cri_images",
		"Images that the container runtime holds. Absent before it listed them.", nil, nil)
	infoDesc = prometheus.NewDesc("nodeprobe_cri_runtime_info",
		"The container runtime; the value is 1.", []string{"runtime", "version"}, nil)
)

// newMetrics registers the metrics with reg, if that is not nil.
func newMetrics(reg prometheus.Registerer, last func() Snapshot) (*metrics, error) {
	m := &metrics{
		last: last,
		connects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nodeprobe_cri_connects_total",
			Help: "Attempts to connect to the container runtime.",
		}),
	}
	vec := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nodeprobe_cri_" + name, Help: help}, []string{"call"})
		m.collectors = append(m.collectors, v)
		return v
	}
	calls := vec("calls_total", "Calls to the container runtime, failed ones included.")
	seconds := vec("call_seconds_total", "Time that calls to the container runtime took, failed ones included.")
	failures := vec("call_errors_total", "Calls to the container runtime that failed.")
	for c := range Call(NumCalls) {
		m.calls[c] = callMetrics{
			calls:   calls.WithLabelValues(c.String()),
			seconds: seconds.WithLabelValues(c.String()),
			errors:  failures.WithLabelValues(c.String()),
		}
	}
	m.collectors = append(m.collectors, m.connects)
	if reg != nil {
		if err := reg.Register(m); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{conditionDesc, lastReadDesc, imagesDesc, infoDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := m.last()
	for c, read := range s.Reads {
		if !read.Time.IsZero() {
			gauge(lastReadDesc, float64(read.Time.UnixMilli())/1000, Call(c).String())
		}
	}
	for _, c := range []Condition{s.Status.Runtime, s.Status.Network} {
		if c.Type == "" {
			continue
		}
		value := 0.0
		if c.Status {
			value = 1
		}
		gauge(conditionDesc, value, c.Type)
	}
	if !s.Reads[CallListImages].Time.IsZero() {
		gauge(imagesDesc, float64(len(s.Images)))
	}
	if !s.Reads[CallVersion].Time.IsZero() {
		gauge(infoDesc, 1, s.Version.RuntimeName, s.Version.RuntimeVersion)
	}
}
