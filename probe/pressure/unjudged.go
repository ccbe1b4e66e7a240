package pressure

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Unjudged returns an error for each condition that no snapshot since the start could
// decide because a signal cannot be read: a path may be wrong. A signal that this
// machine does not have is no reason. The snapshot is the latest that Observe got.
func (e *Evaluator) Unjudged(s *probe.Snapshot) []error {
	var errs []error
	for c := range e.holds {
		if e.holds[c].judged {
			continue
		}
		var why []string
		for i := range e.watches {
			w := &e.watches[i]
			if w.Condition() == Condition(c) {
				why = appendUnread(why, w.Signal.String(), s.Signals[w.Signal].Err)
			}
		}
		errs = appendUnjudged(errs, Condition(c).String(), why)
	}
	return errs
}

// Unjudged is as that of the Evaluator. A condition that needs a verdict only is not
// reported; the verdict's condition is.
func (j *Judge) Unjudged(s *probe.Snapshot, verdicts *[NumConditions]Verdict) []error {
	var errs []error
	for i := range j.rules {
		if j.states[i].judged {
			continue
		}
		var why []string
		for _, c := range j.rules[i].When {
			for k := range c {
				t := &c[k]
				if t.kind == termVerdict || t.evaluate(s, verdicts) != Unknown {
					continue
				}
				why = appendUnread(why, t.name(), t.why(s))
			}
		}
		errs = appendUnjudged(errs, j.rules[i].Type, why)
	}
	return errs
}

// Lacks reports whether a condition is Unknown only because this machine does not have
// what decides it: there is nothing to repair.
func (e *Evaluator) Lacks(c Condition, s *probe.Snapshot) bool {
	if e.verdicts[c].Status != Unknown {
		return false
	}
	lacks := false
	for i := range e.watches {
		w := &e.watches[i]
		if o := &s.Signals[w.Signal]; w.Condition() == c && !o.OK && o.Err != nil {
			if !errors.Is(o.Err, errors.ErrUnsupported) {
				return false
			}
			lacks = true
		}
	}
	return lacks
}

// Lacks is as that of the Evaluator, of the rule with that index.
func (j *Judge) Lacks(i int, s *probe.Snapshot, verdicts *[NumConditions]Verdict) bool {
	if j.findings[i].Status != Unknown {
		return false
	}
	lacks := false
	for _, c := range j.rules[i].When {
		for k := range c {
			if c[k].evaluate(s, verdicts) != Unknown {
				continue
			}
			if err := c[k].why(s); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				return false
			}
			lacks = true
		}
	}
	return lacks
}

// appendUnread adds why a figure cannot be read, if this machine has it.
func appendUnread(why []string, name string, err error) []string {
	if err == nil || errors.Is(err, errors.ErrUnsupported) {
		return why
	}
	return append(why, name+": "+strings.ReplaceAll(err.Error(), "\n", ", "))
}

func appendUnjudged(errs []error, condition string, why []string) []error {
	if len(why) == 0 {
		return errs
	}
	slices.Sort(why)
	return append(errs, fmt.Errorf("%s could not be judged yet: %s", condition, strings.Join(slices.Compact(why), "; ")))
}
