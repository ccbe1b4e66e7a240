package pressure

import (
	"reflect"
	"time"
)

// Change replaces the thresholds and the transition period, from the next snapshot
// on. A threshold that stays keeps its history, and a condition its status: one that is
// True only because it is held stays so for the new transition period after it was last
// met, and ends if it has no thresholds any more.
func (e *Evaluator) Change(thresholds []Threshold, transitionPeriod time.Duration) {
	known := make(map[Threshold]watch, len(e.watches))
	for _, w := range e.watches {
		known[w.Threshold] = w
	}
	next := NewEvaluator(thresholds, transitionPeriod)
	for i := range next.watches {
		if w, ok := known[next.watches[i].Threshold]; ok {
			next.watches[i] = w
		}
	}
	for c := range next.holds {
		next.holds[c].Verdict, next.holds[c].judged = e.holds[c].Verdict, e.holds[c].judged
	}
	next.verdicts = e.verdicts
	*e = *next
}

// Change replaces the rules, from the next snapshot on. A condition that stays keeps
// its status until the new rule decides otherwise, with the new rule's reasons.
func (j *Judge) Change(rules []Rule) {
	next := NewJudge(rules)
	for i, r := range rules {
		for k, old := range j.rules {
			if old.Type != r.Type {
				continue
			}
			next.states[i], next.findings[i] = j.states[k], j.findings[k]
			if !reflect.DeepEqual(old, r) {
				next.findings[i].Since = time.Time{} // its words are to be posted again
			}
		}
	}
	*j = *next
}

// Change replaces the thresholds, from the next snapshot on. What is known about
// the signals that still have one is kept.
func (f *Forecaster) Change(thresholds []Threshold) {
	next := NewForecaster(thresholds)
	for _, signal := range next.signals {
		next.trends[signal] = f.trends[signal] // of one that had none: nothing
	}
	for i := range next.estimates {
		for _, e := range f.estimates {
			if e.Threshold == next.estimates[i].Threshold {
				next.estimates[i] = e
			}
		}
	}
	*f = *next
}
