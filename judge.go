package nodeprobe

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
)

// limitWatcher is the kernel's part in noticing limits; see [arm.Limits].
type limitWatcher interface {
	Update(*probe.Snapshot, []pressure.Estimate, []pressure.Verdict) (watched []bool, again time.Duration)
}

// judge turns each snapshot into verdicts, findings and estimates, and keeps the
// latest of all. Its methods may be called from any goroutine.
type judge struct {
	log    *slog.Logger
	limits limitWatcher // owned by observe

	transitions *prometheus.CounterVec

	mu         sync.Mutex // guards the rest
	interval   time.Duration
	transition time.Duration
	evaluator  *pressure.Evaluator
	rules      *pressure.Judge
	forecaster *pressure.Forecaster
	latest     assessment
	names      []string            // of the thresholds of the estimates, in metrics
	polled     []pressure.Estimate // reused: of limits that only samples can tell of
	before     []pressure.Status   // reused: of the findings
	next       time.Duration       // what the pace was last
}

// assessment is what the latest snapshot comes to. Its slices belong to the judge.
type assessment struct {
	snapshot  probe.Snapshot
	verdicts  [pressure.NumConditions]pressure.Verdict
	findings  []pressure.Finding
	rules     []pressure.Rule // of the findings; they do not change
	estimates []pressure.Estimate
}

func newJudge(cfg *Config, limits limitWatcher, reg prometheus.Registerer) *judge {
	j := &judge{
		log: cfg.Logger, limits: limits,
		interval: cfg.SampleInterval, transition: cfg.TransitionPeriod,
		evaluator:  pressure.NewEvaluator(cfg.Thresholds, cfg.TransitionPeriod),
		rules:      pressure.NewJudge(cfg.Conditions),
		forecaster: pressure.NewForecaster(cfg.Thresholds),
		names:      thresholdNames(cfg.Thresholds),
	}
	j.latest.rules = cfg.Conditions
	j.latest.estimates = make([]pressure.Estimate, len(cfg.Thresholds))
	j.transitions = promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "nodeprobe_condition_transitions_total",
		Help: "Changes of a condition's status, a kubelet's condition or one of our own; from Unknown to False does not count.",
	}, []string{"condition"})
	for i := range j.latest.verdicts {
		j.latest.verdicts[i].Condition = pressure.Condition(i)
		j.transitions.WithLabelValues(pressure.Condition(i).String())
	}
	j.countFromZero(cfg.Conditions)
	reg.MustRegister(j)
	return j
}

// observe judges a snapshot. It returns whether a status changed, and when the next
// sample is wanted: the sooner the nearer a limit, or the end of a transition period.
func (j *judge) observe(s *probe.Snapshot) (changed bool, next time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.latest.snapshot = *s
	changed = j.decide()
	copy(j.latest.estimates, j.forecaster.Observe(s))
	watched, again := j.limits.Update(s, j.latest.estimates, j.latest.verdicts[:])
	j.polled = j.polled[:0]
	for i := range j.latest.estimates {
		if i >= len(watched) || !watched[i] {
			j.polled = append(j.polled, j.latest.estimates[i])
		}
	}
	j.next = pressure.NextSample(j.polled, j.next, pressure.Pace{Base: j.interval})
	next = min(j.next, j.release())
	if left := j.rules.Release(s.Time); left >= 0 {
		next = min(next, left)
	}
	if again > 0 {
		next = min(next, again)
	}
	return changed, next
}

// reload takes over other thresholds, conditions and periods; they are in force
// with the next snapshot.
func (j *judge) reload(cfg *Config) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.transition, j.interval = cfg.TransitionPeriod, cfg.SampleInterval
	j.evaluator.Change(cfg.Thresholds, j.transition)
	j.rules.Change(cfg.Conditions)
	j.latest.rules, j.latest.findings = cfg.Conditions, j.rules.Findings()
	j.countFromZero(cfg.Conditions)
	j.forecaster.Change(cfg.Thresholds)
	j.latest.estimates = slices.Clone(j.forecaster.Observe(&j.latest.snapshot))
	j.names = thresholdNames(cfg.Thresholds)
}

// countFromZero makes the series of conditions of our own: a rate needs the value
// before the first change.
func (j *judge) countFromZero(rules []pressure.Rule) {
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
func (j *judge) release() time.Duration {
	left := time.Duration(math.MaxInt64)
	for i := range j.latest.verdicts {
		if v := &j.latest.verdicts[i]; v.Held {
			left = min(left, j.transition-j.latest.snapshot.Time.Sub(v.LastMet))
		}
	}
	return max(left, time.Millisecond)
}

// decide judges the latest snapshot, and logs and counts what changed. The caller
// holds the lock.
func (j *judge) decide() (changed bool) {
	for i, v := range j.evaluator.Observe(&j.latest.snapshot) {
		before := j.latest.verdicts[i].Status
		j.latest.verdicts[i] = v
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
func (j *judge) applyRules() (changed bool) {
	j.before = j.before[:0]
	for _, f := range j.rules.Findings() {
		j.before = append(j.before, f.Status)
	}
	j.latest.findings, changed = j.rules.Observe(&j.latest.snapshot, &j.latest.verdicts)
	if !changed {
		return false
	}
	for i := range j.latest.findings {
		f := &j.latest.findings[i]
		if before := j.before[i]; f.Status != before && !onlyBecameKnown(before, f.Status) {
			j.transitions.WithLabelValues(f.Type).Inc()
		}
		if f.Since.Equal(j.latest.snapshot.Time) && f.Status != pressure.False {
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

// assess returns a copy of the latest assessment.
func (j *judge) assess() assessment {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.latest
	a.findings, a.estimates = slices.Clone(a.findings), slices.Clone(a.estimates)
	return a
}

// unjudged returns on one line which conditions could not be judged since the start,
// and why; nil if all could.
func (j *judge) unjudged() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var texts []string
	for _, err := range slices.Concat(j.evaluator.Unjudged(&j.latest.snapshot), j.rules.Unjudged(&j.latest.snapshot, &j.latest.verdicts)) {
		texts = append(texts, err.Error())
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// seed seeds the evaluators from an existing Node: a restart of this program is no
// reason for a condition to be False for a moment, nor to end before its transition
// period. A reboot is: it frees memory and PIDs. Only the kubelet's conditions are
// seeded with builtIn, only our own without.
func (j *judge) seed(node *v1.Node, builtIn bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if booted := j.latest.snapshot.Machine.BootID; booted != "" && booted != node.Status.NodeInfo.BootID {
		return
	}
	for _, c := range node.Status.Conditions {
		// The API server refuses any other reason from us.
		if c.Status == v1.ConditionTrue && checkReason(c.Reason) == nil {
			j.rules.Seed(string(c.Type), c.Reason, c.Message, j.latest.snapshot.Time)
		}
	}
	if builtIn {
		j.seedBuiltIn(node)
	}
	j.decide()
}

func (j *judge) seedBuiltIn(node *v1.Node) {
	for i := range j.latest.verdicts {
		c := pressure.Condition(i)
		isTrue := func(existing v1.NodeCondition) bool {
			return string(existing.Type) == c.String() && existing.Status == v1.ConditionTrue
		}
		if j.latest.verdicts[i].Status != pressure.True && slices.ContainsFunc(node.Status.Conditions, isTrue) {
			j.evaluator.Seed(c, pressure.True, j.latest.snapshot.Time)
			j.latest.verdicts[i].Status = pressure.True // as it was: no transition
			j.log.Info("condition taken over from the node", "condition", c.String(), "status", pressure.True.String())
		}
	}
}

// eachVerdict calls f with each of the latest verdicts, and the time of their snapshot.
// It does not allocate.
func (j *judge) eachVerdict(f func(v *pressure.Verdict, at time.Time)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.latest.verdicts {
		f(&j.latest.verdicts[i], j.latest.snapshot.Time)
	}
}
