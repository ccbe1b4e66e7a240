// Package shadow compares a kubelet's pressure conditions with ours, in metrics: how often
// both see the same, and which is first.
package shadow

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// Comparison divides time into episodes: one begins when either of the two conditions is
// True, and ends when neither is. Its methods are safe for concurrent use.
type Comparison struct {
	lead     *prometheus.HistogramVec
	episodes *prometheus.CounterVec

	mu  sync.Mutex // guards what follows
	per [len(compared)]episode
}

// compared are the conditions that a kubelet and we both decide.
var compared = [...]v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure}

// The two sides of a comparison, which are labels.
const (
	sideNodeprobe = iota
	sideKubelet
	numSides
)

var sideNames = [numSides]string{"nodeprobe", "kubelet"}

// episode is the present episode of one condition.
type episode struct {
	status [numSides]v1.ConditionStatus // "" before the first
	first  [numSides]time.Time          // time at which it was True; zero if it was not
}

var descAgrees = prometheus.NewDesc("nodeprobe_shadow_agrees",
	"Whether the kubelet and nodeprobe agree on a condition: 1 or 0. Absent until both have reported it.", []string{"condition"}, nil)

// New returns a Comparison, whose metrics go to reg unless that is nil.
func New(reg prometheus.Registerer) *Comparison {
	s := &Comparison{
		lead: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nodeprobe_shadow_lead_seconds",
			Help:    "How much earlier nodeprobe's condition was True than the kubelet's; negative if later.",
			Buckets: []float64{-10, -1, 0, 0.1, 1, 2.5, 5, 7.5, 10, 15, 20, 30, 60},
		}, []string{"condition"}),
		episodes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeprobe_shadow_episodes_total",
			Help: "Past episodes of pressure by who reported them: both, nodeprobe alone, or the kubelet alone.",
		}, []string{"condition", "seen_by"}),
	}
	for _, kind := range compared {
		s.lead.WithLabelValues(string(kind))
		for _, by := range []string{"both", sideNames[sideNodeprobe], sideNames[sideKubelet]} {
			s.episodes.WithLabelValues(string(kind), by)
		}
	}
	if reg != nil {
		reg.MustRegister(s)
	}
	return s
}

// Ours records what we make of a condition at a time. Conditions other than the three
// pressure conditions are ignored.
func (s *Comparison) Ours(kind v1.NodeConditionType, status v1.ConditionStatus, at time.Time) {
	if i := slices.Index(compared[:], kind); i >= 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.record(i, sideNodeprobe, status, at)
	}
}

// Theirs records the conditions of a Node as seen at a time.
func (s *Comparison) Theirs(node *v1.Node, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, kind := range compared {
		var status v1.ConditionStatus // if there are two of a type, the last one counts
		for j := range node.Status.Conditions {
			if c := &node.Status.Conditions[j]; c.Type == kind {
				status = c.Status
			}
		}
		s.record(i, sideKubelet, status, at)
	}
}

// record records one side's status. Unknown, which a controller writes where there is no
// kubelet any more, ends nothing.
func (s *Comparison) record(i, side int, status v1.ConditionStatus, at time.Time) {
	e := &s.per[i]
	if status != v1.ConditionTrue && status != v1.ConditionFalse || e.status[side] == status {
		return
	}
	before := e.status[side]
	e.status[side] = status
	other := 1 - side
	switch {
	case status == v1.ConditionTrue && (before == "" || e.status[other] == ""):
		// It was True before both were seen: which was first is not known.
	case status == v1.ConditionTrue && e.first[side].IsZero():
		e.first[side] = at
		if !e.first[other].IsZero() {
			s.lead.WithLabelValues(string(compared[i])).Observe(e.first[sideKubelet].Sub(e.first[sideNodeprobe]).Seconds())
		}
	case e.status[other] != v1.ConditionTrue:
		s.end(i)
	}
}

// end counts an episode of which at least one begin was seen.
func (s *Comparison) end(i int) {
	e := &s.per[i]
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
		s.episodes.WithLabelValues(string(compared[i]), by).Inc()
	}
	e.first = [numSides]time.Time{}
}

// Describe implements prometheus.Collector.
func (s *Comparison) Describe(ch chan<- *prometheus.Desc) {
	ch <- descAgrees
	s.lead.Describe(ch)
	s.episodes.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Comparison) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	for i := range s.per {
		ours, theirs := s.per[i].status[sideNodeprobe], s.per[i].status[sideKubelet]
		if ours == "" || theirs == "" {
			continue
		}
		value := 0.0
		if ours == theirs {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(descAgrees, prometheus.GaugeValue, value, string(compared[i]))
	}
	s.mu.Unlock()
	s.lead.Collect(ch)
	s.episodes.Collect(ch)
}
