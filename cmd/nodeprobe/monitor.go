package main

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// monitor stands between the sampler and whoever wants to know: it has each
// snapshot judged, and keeps the latest of both.
type monitor struct {
	healthy func() error
	log     *slog.Logger
	changed func() // called when a verdict changed; must not block

	transitions [pressure.NumConditions]prometheus.Counter

	mu        sync.Mutex // guards the rest
	evaluator *pressure.Evaluator
	snapshot  probe.Snapshot
	verdicts  [pressure.NumConditions]pressure.Verdict
}

func newMonitor(thresholds []pressure.Threshold, transition time.Duration, healthy func() error, log *slog.Logger, reg prometheus.Registerer) *monitor {
	m := &monitor{
		healthy:   healthy,
		log:       log,
		changed:   func() {},
		evaluator: pressure.NewEvaluator(thresholds, transition),
	}
	auto := promauto.With(reg)
	transitions := auto.NewCounterVec(prometheus.CounterOpts{
		Name: "nodeprobe_condition_transitions_total",
		Help: "Changes of a condition's status.",
	}, []string{"condition"})
	for i := range m.transitions {
		name := pressure.Condition(i).String()
		m.transitions[i] = transitions.WithLabelValues(name)
		m.verdicts[i].Condition = pressure.Condition(i)
		if reg == nil {
			continue
		}
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "nodeprobe_condition_status",
			Help:        "Status of a condition: 1 is True, 0 is False, -1 is Unknown.",
			ConstLabels: prometheus.Labels{"condition": name},
		}, func() float64 { return statusValue(m.verdict(i).Status) }))
	}
	return m
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

// observe judges a snapshot.
func (m *monitor) observe(s *probe.Snapshot) {
	m.mu.Lock()
	m.snapshot = *s
	changed := m.judge()
	m.mu.Unlock()
	if changed {
		m.changed()
	}
}

// judge has the latest snapshot judged, and logs what changed.
func (m *monitor) judge() (changed bool) {
	for i, v := range m.evaluator.Observe(&m.snapshot) {
		was := m.verdicts[i].Status
		m.verdicts[i] = v
		if v.Status == was {
			continue
		}
		changed = true
		if was == pressure.Unknown && v.Status == pressure.False {
			continue // the first look found nothing
		}
		m.transitions[i].Inc()
		attrs := []any{"condition", v.Condition.String(), "status", v.Status.String()}
		if v.Met {
			attrs = append(attrs, "threshold", v.Threshold.String(),
				"available", v.Observation.Available, "limit", v.Limit, "unit", v.Threshold.Signal.Unit())
		}
		m.log.Info("condition changed", attrs...)
	}
	return changed
}

func (m *monitor) verdict(i int) pressure.Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.verdicts[i]
}

// facts returns the latest snapshot and what was made of it.
func (m *monitor) facts() status.Facts {
	unhealthy := m.healthy()
	m.mu.Lock()
	defer m.mu.Unlock()
	return status.Facts{Snapshot: m.snapshot, Verdicts: m.verdicts, Unhealthy: unhealthy}
}

// adopt takes over what an existing Node's conditions say: a restart of this
// program is no reason for a condition to be False for a moment, nor to end
// before its transition period. A reboot is: it frees memory and PIDs.
func (m *monitor) adopt(node *v1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A boot ID that could not be read is no reboot.
	if booted := m.snapshot.Machine.BootID; booted != "" && booted != node.Status.NodeInfo.BootID {
		return
	}
	for i := range m.verdicts {
		c := pressure.Condition(i)
		for _, existing := range node.Status.Conditions {
			if string(existing.Type) == c.String() && existing.Status == v1.ConditionTrue && m.verdicts[i].Status != pressure.True {
				m.evaluator.Seed(c, pressure.True, m.snapshot.Time)
				m.verdicts[i].Status = pressure.True // as it was: no transition
				m.log.Info("condition taken over from the node", "condition", c.String(), "status", pressure.True.String())
			}
		}
	}
	m.judge()
}
