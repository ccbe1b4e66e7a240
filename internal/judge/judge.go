// Package judge turns each snapshot of a node into verdicts, findings and estimates.
package judge

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
	"github.com/nodeprobe/nodeprobe/status"
)

// LimitWatcher is the kernel's part in noticing limits; see [arm.Limits].
type LimitWatcher interface {
	Update(s *probe.Snapshot, estimates []pressure.Estimate, settled []bool) (relied []bool, again time.Duration)
}

// Judge turns each snapshot into verdicts, findings and estimates, and keeps the latest
// of all. Its methods may be called from any goroutine.
type Judge struct {
	log    *slog.Logger
	limits LimitWatcher // owned by Observe

	transitions *prometheus.CounterVec

	mu         sync.Mutex // guards the rest
	interval   time.Duration
	transition time.Duration
	evaluator  *pressure.Evaluator
	rules      *pressure.Judge
	lines      *pressure.Limits // of both
	forecaster *pressure.Forecaster
	latest     Assessment          // its slices are reused
	names      []string            // of the thresholds of the estimates, in metrics
	polled     []pressure.Estimate // reused: of thresholds that only samples can tell of
	before     []pressure.Status   // reused: of the findings
	next       time.Duration       // what the pace was last
	sent       map[series]sent
}

// Policy is what a Judge goes by.
type Policy struct {
	// Interval is the time between two samples while no limit is near.
	Interval time.Duration
	// Thresholds and TransitionPeriod decide the kubelet's conditions, Rules our own.
	Thresholds       []pressure.Threshold
	TransitionPeriod time.Duration
	Rules            []pressure.Rule
}

// Assessment is what a snapshot comes to.
type Assessment struct {
	Snapshot  probe.Snapshot
	Verdicts  [pressure.NumConditions]pressure.Verdict
	Findings  []pressure.Finding
	Rules     []pressure.Rule // of the findings; they do not change
	Estimates []pressure.Estimate
}

// New returns a Judge that has seen no snapshot, and registers its metrics.
func New(policy Policy, limits LimitWatcher, log *slog.Logger, reg prometheus.Registerer) *Judge {
	j := &Judge{
		log: log, limits: limits,
		interval: policy.Interval, transition: policy.TransitionPeriod,
		evaluator: pressure.NewEvaluator(policy.Thresholds, policy.TransitionPeriod),
		rules:     pressure.NewJudge(policy.Rules),
		lines:     pressure.NewLimits(policy.Thresholds, policy.Rules),
		names:     thresholdNames(policy.Thresholds),
		sent:      map[series]sent{},
	}
	j.forecaster = pressure.NewForecaster(j.lines.Thresholds())
	j.latest.Rules = policy.Rules
	j.latest.Estimates = make([]pressure.Estimate, len(policy.Thresholds))
	j.transitions = promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "nodeprobe_condition_transitions_total",
		Help: "Changes of a condition's status, a kubelet's condition or one of our own; from Unknown to False does not count.",
	}, []string{"condition"})
	for i := range j.latest.Verdicts {
		j.latest.Verdicts[i].Condition = pressure.Condition(i)
		j.transitions.WithLabelValues(pressure.Condition(i).String())
	}
	j.countFromZero(policy.Rules)
	reg.MustRegister(j)
	return j
}

// Observe judges a snapshot. It returns whether a status changed, and when the next
// sample is wanted: the sooner the nearer a limit, or the end of a transition period.
func (j *Judge) Observe(s *probe.Snapshot) (changed bool, next time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.latest.Snapshot = *s
	changed = j.decide()
	estimates := j.forecaster.Observe(s)
	copy(j.latest.Estimates, estimates) // those of the thresholds come first
	relied, again := j.limits.Update(s, estimates, j.lines.Settled(s, &j.latest.Verdicts, j.latest.Findings))
	j.polled = j.polled[:0]
	for i := range j.latest.Estimates {
		if i >= len(relied) || !relied[i] {
			j.polled = append(j.polled, j.latest.Estimates[i])
		}
	}
	pace := pressure.Pace{Base: j.interval}
	pace.Soonest = j.lines.Soonest(s, &j.latest.Verdicts, estimates, relied, pace)
	j.next = pressure.NextSample(j.polled, j.next, pace)
	next = min(j.next, j.release())
	if left := j.rules.Release(s.Time); left >= 0 {
		next = min(next, left)
	}
	if again > 0 {
		next = min(next, again)
	}
	return changed, next
}

// Reload takes over other thresholds, conditions and periods; they are in force
// with the next snapshot.
func (j *Judge) Reload(policy Policy) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.transition, j.interval = policy.TransitionPeriod, policy.Interval
	j.evaluator.Change(policy.Thresholds, j.transition)
	j.rules.Change(policy.Rules)
	j.latest.Rules, j.latest.Findings = policy.Rules, j.rules.Findings()
	j.countFromZero(policy.Rules)
	j.lines = pressure.NewLimits(policy.Thresholds, policy.Rules)
	j.forecaster.Change(j.lines.Thresholds())
	j.latest.Estimates = slices.Clone(j.forecaster.Observe(&j.latest.Snapshot)[:len(policy.Thresholds)])
	j.names = thresholdNames(policy.Thresholds)
	clear(j.sent)
}

// countFromZero makes the series of conditions of our own: a rate needs the value
// before the first change.
func (j *Judge) countFromZero(rules []pressure.Rule) {
	for i := range rules {
		j.transitions.WithLabelValues(rules[i].Type)
	}
}

// thresholdNames formats the thresholds once, not at each scrape.
func thresholdNames(thresholds []pressure.Threshold) []string {
	names := make([]string, len(thresholds))
	for i, t := range thresholds {
		names[i] = t.String()
	}
	return names
}

// release returns how long it is until a condition that is only held may end.
func (j *Judge) release() time.Duration {
	left := time.Duration(math.MaxInt64)
	for i := range j.latest.Verdicts {
		if v := &j.latest.Verdicts[i]; v.Held {
			left = min(left, j.transition-j.latest.Snapshot.Time.Sub(v.LastMet))
		}
	}
	return max(left, time.Millisecond)
}

// decide judges the latest snapshot, and logs and counts what changed. The caller
// holds the lock.
func (j *Judge) decide() (changed bool) {
	for i, v := range j.evaluator.Observe(&j.latest.Snapshot) {
		before := j.latest.Verdicts[i].Status
		j.latest.Verdicts[i] = v
		if v.Status == before {
			continue
		}
		changed = true
		if onlyBecameKnown(before, v.Status) {
			continue
		}
		j.transitions.WithLabelValues(v.Condition.String()).Inc()
		attrs := []any{"condition", v.Condition.String(), "status", v.Status.String()}
		if v.Met {
			attrs = append(attrs, "threshold", v.Threshold.String(),
				"available", v.Observation.Available, "limit", v.Limit, "unit", v.Threshold.Signal.Unit())
		}
		j.log.Info("condition changed", attrs...)
	}
	return j.applyRules() || changed
}

// applyRules judges the conditions of our own. The caller holds the lock.
func (j *Judge) applyRules() (changed bool) {
	j.before = j.before[:0]
	for _, f := range j.rules.Findings() {
		j.before = append(j.before, f.Status)
	}
	j.latest.Findings, changed = j.rules.Observe(&j.latest.Snapshot, &j.latest.Verdicts)
	if !changed {
		return false
	}
	for i := range j.latest.Findings {
		f := &j.latest.Findings[i]
		before := j.before[i]
		transition := f.Status != before && !onlyBecameKnown(before, f.Status)
		if transition {
			j.transitions.WithLabelValues(f.Type).Inc()
		}
		if transition || f.Since.Equal(j.latest.Snapshot.Time) && f.Status != pressure.False {
			j.log.Info("condition changed", "condition", f.Type, "status", f.Status.String(), "reason", f.Reason, "message", f.Message)
		}
	}
	return true
}

// onlyBecameKnown reports whether a status has only become known, as False, as after
// the first look.
func onlyBecameKnown(before, now pressure.Status) bool {
	return before == pressure.Unknown && now == pressure.False
}

// Assess returns a copy of the latest assessment.
func (j *Judge) Assess() Assessment {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.latest
	a.Findings, a.Estimates = slices.Clone(a.Findings), slices.Clone(a.Estimates)
	return a
}

// Unjudged returns on one line which conditions could not be judged since the start,
// and why; nil if all could.
func (j *Judge) Unjudged() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var texts []string
	for _, err := range slices.Concat(j.evaluator.Unjudged(&j.latest.Snapshot), j.rules.Unjudged(&j.latest.Snapshot, &j.latest.Verdicts)) {
		texts = append(texts, err.Error())
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// Seed seeds the evaluators from an existing Node: a restart of this program is no
// reason for a condition to be False for a moment, nor to end before its transition
// period. A reboot is: it frees memory and PIDs. Only the kubelet's conditions are
// seeded with builtIn, only our own without.
func (j *Judge) Seed(node *v1.Node, builtIn bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if booted := j.latest.Snapshot.Machine.BootID; booted != "" && booted != node.Status.NodeInfo.BootID {
		return
	}
	for _, c := range node.Status.Conditions {
		// The API server refuses any other reason from us.
		if c.Status == v1.ConditionTrue && status.CheckReason(c.Reason) == nil {
			j.rules.Seed(string(c.Type), c.Reason, c.Message, j.latest.Snapshot.Time)
		}
	}
	if builtIn {
		j.seedBuiltIn(node)
	}
	j.decide()
}

func (j *Judge) seedBuiltIn(node *v1.Node) {
	for i := range j.latest.Verdicts {
		c := pressure.Condition(i)
		isTrue := func(existing v1.NodeCondition) bool {
			return string(existing.Type) == c.String() && existing.Status == v1.ConditionTrue
		}
		if j.latest.Verdicts[i].Status != pressure.True && slices.ContainsFunc(node.Status.Conditions, isTrue) {
			j.evaluator.Seed(c, pressure.True, j.latest.Snapshot.Time)
			j.latest.Verdicts[i].Status = pressure.True // as it was: no transition
			j.log.Info("condition taken over from the node", "condition", c.String(), "status", pressure.True.String())
		}
	}
}

// EachVerdict calls f with each of the latest verdicts, and the time of their snapshot.
// It does not allocate.
func (j *Judge) EachVerdict(f func(v *pressure.Verdict, at time.Time)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.latest.Verdicts {
		f(&j.latest.Verdicts[i], j.latest.Snapshot.Time)
	}
}
