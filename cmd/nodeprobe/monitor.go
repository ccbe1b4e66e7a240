package main

import (
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// monitor stands between the sampler and whoever wants to know: it has each
// snapshot judged, and keeps the latest of both.
type monitor struct {
	healthy func() error
	log     *slog.Logger
	changed func() // called when a verdict changed; must not block
	// compare is told all verdicts; nil where nobody compares.
	compare func(*[pressure.NumConditions]pressure.Verdict, time.Time)
	// watch says which estimates' limits the kernel watches, so that they need no
	// early sample, and when the next sample is due all the same if it is not 0;
	// nil means none.
	watch      func(*probe.Snapshot, []pressure.Estimate, []pressure.Verdict) (watched []bool, again time.Duration)
	transition time.Duration
	interval   time.Duration // between samples while no limit is near

	transitions *prometheus.CounterVec

	mu         sync.Mutex // guards the rest
	evaluator  *pressure.Evaluator
	rules      *pressure.Judge // of conditions of our own
	forecaster *pressure.Forecaster
	snapshot   probe.Snapshot
	verdicts   [pressure.NumConditions]pressure.Verdict
	estimates  []pressure.Estimate
	thresholds []string            // as metrics call those of the estimates
	leaving    error               // why the node is not ready although all is well
	left       []pressure.Estimate // reused by polled
	was        []pressure.Status   // reused by judgeRules
	next       time.Duration       // what the pace was last
	history    *history
}

func newMonitor(cfg *config, p *policy, healthy func() error, log *slog.Logger, reg prometheus.Registerer) *monitor {
	m := &monitor{
		healthy:    healthy,
		log:        log,
		changed:    func() {},
		transition: cfg.EvictionPressureTransitionPeriod,
		interval:   cfg.SampleInterval,
		history:    new(history),
		evaluator:  pressure.NewEvaluator(p.thresholds, cfg.EvictionPressureTransitionPeriod),
		rules:      pressure.NewJudge(p.rules),
		forecaster: pressure.NewForecaster(p.thresholds),
		estimates:  make([]pressure.Estimate, len(p.thresholds)),
	}
	m.name(p.thresholds)
	m.transitions = promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "nodeprobe_condition_transitions_total",
		Help: "Changes of a condition's status, the kubelet's or our own; from Unknown to False is none.",
	}, []string{"condition"})
	for i := range m.verdicts {
		m.verdicts[i].Condition = pressure.Condition(i)
		m.transitions.WithLabelValues(pressure.Condition(i).String())
	}
	m.countFrom0(p.rules)
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

// observe judges a snapshot, and returns when it wants the next: the sooner the
// nearer a limit, or the end of a transition period.
func (m *monitor) observe(s *probe.Snapshot) (next time.Duration) {
	m.mu.Lock()
	m.snapshot = *s
	changed := m.judge()
	m.history.observe(s)
	copy(m.estimates, m.forecaster.Observe(s))
	polled, again := m.polled(s)
	m.next = pressure.NextSample(polled, m.next, pressure.Pace{Base: m.interval})
	next = min(m.next, m.release())
	if left := m.rules.Release(s.Time); left >= 0 {
		next = min(next, left)
	}
	if again > 0 {
		next = min(next, again)
	}
	m.mu.Unlock()
	if changed {
		m.changed()
	}
	return next
}

// change has other thresholds, another transition period and another interval
// taken over by the next snapshot.
func (m *monitor) change(cfg *config, p *policy) {
	m.mu.Lock()
	m.transition, m.interval = cfg.EvictionPressureTransitionPeriod, cfg.SampleInterval
	m.evaluator.Change(p.thresholds, m.transition)
	m.rules.Change(p.rules)
	m.countFrom0(p.rules)
	m.forecaster.Change(p.thresholds)
	m.estimates = slices.Clone(m.forecaster.Observe(&m.snapshot))
	m.name(p.thresholds)
	m.mu.Unlock()
	m.changed() // a condition of ours may be gone
}

// countFrom0 makes the series of our own conditions: a rate needs the value before
// the first change.
func (m *monitor) countFrom0(rules []pressure.Rule) {
	for i := range rules {
		m.transitions.WithLabelValues(rules[i].Type)
	}
}

// name makes the names of the thresholds once, and not at each scrape.
func (m *monitor) name(thresholds []pressure.Threshold) {
	m.thresholds = make([]string, len(thresholds))
	for i, t := range thresholds {
		m.thresholds[i] = t.String()
	}
}

// polled returns the estimates of limits that nothing but samples can tell of.
func (m *monitor) polled(s *probe.Snapshot) (left []pressure.Estimate, again time.Duration) {
	if m.watch == nil {
		return m.estimates, 0
	}
	watched, again := m.watch(s, m.estimates, m.verdicts[:])
	m.left = m.left[:0]
	for i := range watched {
		if !watched[i] {
			m.left = append(m.left, m.estimates[i])
		}
	}
	return m.left, again
}

// release returns how long it is until a condition that is only held may end.
func (m *monitor) release() time.Duration {
	left := time.Duration(math.MaxInt64)
	for i := range m.verdicts {
		if v := &m.verdicts[i]; v.Held {
			left = min(left, m.transition-m.snapshot.Time.Sub(v.LastMet))
		}
	}
	return max(left, time.Millisecond)
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
		if foundNothing(was, v.Status) {
			continue
		}
		m.transitions.WithLabelValues(v.Condition.String()).Inc()
		attrs := []any{"condition", v.Condition.String(), "status", v.Status.String()}
		if v.Met {
			attrs = append(attrs, "threshold", v.Threshold.String(),
				"available", v.Observation.Available, "limit", v.Limit, "unit", v.Threshold.Signal.Unit())
		}
		m.log.Info("condition changed", attrs...)
	}
	if m.judgeRules() {
		changed = true
	}
	if m.compare != nil {
		m.compare(&m.verdicts, m.snapshot.Time)
	}
	return changed
}

// foundNothing reports whether a status has only become known, as False, as after the
// first look.
func foundNothing(was, now pressure.Status) bool {
	return was == pressure.Unknown && now == pressure.False
}

// forecast returns when each limit will be reached, in the order of the
// thresholds.
func (m *monitor) forecast() []pressure.Estimate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.estimates)
}

// past returns the last ten minutes, the oldest first.
func (m *monitor) past() []point {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.history.past(m.snapshot.Time)
}

// judged returns on one line which conditions could not be judged since the start, and
// why.
func (m *monitor) judged() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var texts []string
	for _, err := range slices.Concat(m.evaluator.Unjudged(&m.snapshot), m.rules.Unjudged(&m.snapshot, &m.verdicts)) {
		texts = append(texts, err.Error())
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// facts returns the latest snapshot and what was made of it.
func (m *monitor) facts() node.Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return node.Facts{Snapshot: m.snapshot, Verdicts: m.verdicts, Leaving: m.leaving}
}

// leave has the node say that it is not ready, and why; nil takes that back.
func (m *monitor) leave(why error) {
	m.mu.Lock()
	m.leaving = why
	m.mu.Unlock()
	m.changed()
}

// adopt takes over what an existing Node's conditions say: a restart of this
// program is no reason for a condition to be False for a moment, nor to end
// before its transition period. A reboot is: it frees memory and PIDs.
func (m *monitor) adopt(node *v1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rebooted(node) {
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

// rebooted says whether the machine was, since the Node was last posted. A boot ID
// that could not be read is no reboot.
func (m *monitor) rebooted(node *v1.Node) bool {
	booted := m.snapshot.Machine.BootID
	return booted != "" && booted != node.Status.NodeInfo.BootID
}
