package main

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// reasonForm is what the API server takes for a reason.
var reasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// parseConditions reads the rows of conditions of our own, in the order of their
// types. Those that nothing makes True are left out.
func (p *policy) parseConditions(c *config) []problem {
	var problems []problem
	for _, kind := range slices.Sorted(maps.Keys(c.Conditions)) {
		row := c.Conditions[kind]
		if len(row.When) == 0 {
			continue
		}
		rule, errs := row.parse(kind)
		for _, err := range errs {
			problems = append(problems, problem{field: "conditions", key: kind, err: err})
		}
		p.rules = append(p.rules, rule)
	}
	if n := len(p.rules); n > status.MaxConditions {
		problems = append(problems, problem{field: "conditions", err: fmt.Errorf("%d conditions are more than %d", n, status.MaxConditions)})
	}
	return problems
}

func (r *conditionRow) parse(kind string) (pressure.Rule, []error) {
	rule := pressure.Rule{Type: kind, For: r.For, Hold: r.Hold, Reason: r.Reason, OKReason: r.OKReason}
	var errs []error
	if slices.Contains(status.BuiltIn, v1.NodeConditionType(kind)) {
		errs = append(errs, errors.New("this condition is the kubelet's; choose a type of your own, such as example.com/"+kind))
	}
	for _, reason := range validation.IsQualifiedName(kind) {
		errs = append(errs, errors.New(reason))
	}
	for _, text := range r.When {
		clause, err := pressure.ParseClause(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("when: %w", err))
			continue
		}
		rule.When = append(rule.When, clause)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"for", r.For}, {"hold", r.Hold}} {
		if err := atLeast(d.value, 0); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.name, err))
		}
	}
	for _, reason := range []struct{ name, value string }{{"reason", r.Reason}, {"okReason", r.OKReason}} {
		if err := checkReason(reason.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", reason.name, err))
		}
	}
	return rule, errs
}

func checkReason(reason string) error {
	switch {
	case !reasonForm.MatchString(reason):
		return fmt.Errorf("%q is not one word such as MemoryIsShort", reason)
	case len(reason) > status.MaxReason:
		return fmt.Errorf("%d characters are more than %d", len(reason), status.MaxReason)
	}
	return nil
}

// judgeRules applies the rules of our own conditions, and counts and logs what
// changed. The caller holds the lock.
func (m *monitor) judgeRules() (changed bool) {
	m.was = m.was[:0]
	for _, f := range m.rules.Findings() {
		m.was = append(m.was, f.Status)
	}
	findings, changed := m.rules.Observe(&m.snapshot, &m.verdicts)
	if !changed {
		return false
	}
	for i := range findings {
		f := &findings[i]
		if was := m.was[i]; f.Status != was && !foundNothing(was, f.Status) {
			m.transitions.WithLabelValues(f.Type).Inc()
		}
		if f.Since.Equal(m.snapshot.Time) && f.Status != pressure.False {
			m.log.Info("condition changed", "condition", f.Type, "status", f.Status.String(), "reason", f.Reason, "message", f.Message)
		}
	}
	return true
}

// findings returns what our own conditions say now.
func (m *monitor) findings() []pressure.Finding {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.rules.Findings())
}

// adoptRules takes over what our own conditions on an existing Node say; see adopt.
func (m *monitor) adoptRules(node *v1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rebooted(node) {
		return
	}
	for _, c := range node.Status.Conditions {
		// The API server would refuse any other reason from us.
		if c.Status == v1.ConditionTrue && checkReason(c.Reason) == nil {
			m.rules.Seed(string(c.Type), c.Reason, c.Message, m.snapshot.Time)
		}
	}
}
