package status

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Shadow compares what a kubelet says of the node's pressure with what we would
// say. Time is divided into episodes: one begins when either of the two says True,
// and ends when neither does. Its methods are safe for concurrent use.
type Shadow struct {
	lead     *prometheus.HistogramVec
	episodes *prometheus.CounterVec

	mu  sync.Mutex // guards what follows
	per [pressure.NumConditions]episode
}

// The two sides of a comparison, which are labels.
const (
	sideNodeprobe = iota
	sideKubelet
	numSides
)

var sideNames = [numSides]string{"nodeprobe", "kubelet"}

// episode is one condition.
type episode struct {
	status [numSides]pressure.Status
	first  [numSides]time.Time // that it was True in this episode; zero if it was not
}

var descShadow = prometheus.NewDesc("nodeprobe_shadow_agrees",
	"Whether the kubelet and nodeprobe say the same of a condition: 1 or 0. Absent while one of them has said nothing.", []string{"condition"}, nil)

// NewShadow makes a Shadow, whose metrics go to reg unless that is nil.
func NewShadow(reg prometheus.Registerer) *Shadow {
	s := &Shadow{
		lead: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nodeprobe_shadow_lead_seconds",
			Help:    "How much earlier than the kubelet's condition nodeprobe's was True; negative if later.",
			Buckets: []float64{-10, -1, 0, 0.1, 1, 2.5, 5, 7.5, 10, 15, 20, 30, 60},
		}, []string{"condition"}),
		episodes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeprobe_shadow_episodes_total",
			Help: "Times of pressure that are over, by who has seen them: both, nodeprobe alone, or the kubelet alone.",
		}, []string{"condition", "seen_by"}),
	}
	for c := range pressure.Condition(pressure.NumConditions) {
		s.lead.WithLabelValues(c.String())
		for _, by := range []string{"both", sideNames[sideNodeprobe], sideNames[sideKubelet]} {
			s.episodes.WithLabelValues(c.String(), by)
		}
	}
	if reg != nil {
		reg.MustRegister(s)
	}
	return s
}

// Ours takes note of our verdicts, as of now.
func (s *Shadow) Ours(verdicts *[pressure.NumConditions]pressure.Verdict, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range verdicts {
		s.note(pressure.Condition(i), sideNodeprobe, verdicts[i].Status, now)
	}
}

// Theirs takes note of a Node that was seen now.
func (s *Shadow) Theirs(node *v1.Node, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range pressure.Condition(pressure.NumConditions) {
		status := pressure.Unknown // nor is there a kubelet where a controller says so
		switch statusOf(node.Status.Conditions, v1.NodeConditionType(c.String())) {
		case v1.ConditionTrue:
			status = pressure.True
		case v1.ConditionFalse:
			status = pressure.False
		}
		s.note(c, sideKubelet, status, now)
	}
}

// note is one side's status. What is not known ends nothing.
func (s *Shadow) note(c pressure.Condition, side int, status pressure.Status, now time.Time) {
	e := &s.per[c]
	if status == pressure.Unknown || e.status[side] == status {
		return
	}
	before := e.status[side]
	e.status[side] = status
	other := 1 - side
	switch {
	case status == pressure.True && before == pressure.Unknown, status == pressure.True && e.status[other] == pressure.Unknown:
		// It was so before anybody looked: nothing can be said about who was first.
	case status == pressure.True && e.first[side].IsZero():
		e.first[side] = now
		if !e.first[other].IsZero() {
			s.lead.WithLabelValues(c.String()).Observe(e.first[sideKubelet].Sub(e.first[sideNodeprobe]).Seconds())
		}
	case e.status[other] != pressure.True:
		s.end(c, e)
	}
}

// end counts an episode in which somebody was seen to begin.
func (s *Shadow) end(c pressure.Condition, e *episode) {
	ours, theirs := !e.first[sideNodeprobe].IsZero(), !e.first[sideKubelet].IsZero()
	by := ""
	switch {
	case ours && theirs:
		by = "both"
	case ours:
		by = sideNames[sideNodeprobe]
	case theirs:
		by = sideNames[sideKubelet]
	}
	if by != "" {
		s.episodes.WithLabelValues(c.String(), by).Inc()
	}
	e.first = [numSides]time.Time{}
}

// Describe implements prometheus.Collector.
func (s *Shadow) Describe(ch chan<- *prometheus.Desc) {
	ch <- descShadow
	s.lead.Describe(ch)
	s.episodes.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Shadow) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	for c := range s.per {
		ours, theirs := s.per[c].status[sideNodeprobe], s.per[c].status[sideKubelet]
		if ours == pressure.Unknown || theirs == pressure.Unknown {
			continue
		}
		value := 0.0
		if ours == theirs {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(descShadow, prometheus.GaugeValue, value, pressure.Condition(c).String())
	}
	s.mu.Unlock()
	s.lead.Collect(ch)
	s.episodes.Collect(ch)
}
