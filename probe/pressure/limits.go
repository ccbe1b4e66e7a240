package pressure

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Limits is all that a node is held against: the thresholds, and the terms of rules that
// are about a signal. A term is a limit like a threshold: it can be forecast, and watched
// in the kernel.
type Limits struct {
	thresholds []Threshold
	configured int // how many of them are the evaluator's
	rules      []Rule
	terms      [][][]int // by rule, clause and term: the limit; -1 if the term is none
	settled    []bool    // reused
}

// NewLimits returns the limits of an Evaluator with these thresholds and of a Judge with
// these rules.
func NewLimits(thresholds []Threshold, rules []Rule) *Limits {
	l := &Limits{thresholds: slices.Clone(thresholds), configured: len(thresholds), rules: rules}
	for _, rule := range rules {
		clauses := make([][]int, len(rule.When))
		for c, clause := range rule.When {
			for k := range clause {
				clauses[c] = append(clauses[c], l.add(&clause[k]))
			}
		}
		l.terms = append(l.terms, clauses)
	}
	l.settled = make([]bool, len(l.thresholds))
	return l
}

// add returns the index of a term's limit, and adds that if no other term has it; -1 if the
// term is about no signal.
func (l *Limits) add(t *Term) int {
	if t.kind != termSignal {
		return -1
	}
	limit := Threshold{Signal: t.signal, Value: t.value}
	i := slices.Index(l.thresholds, limit)
	if i < 0 {
		i = len(l.thresholds)
		l.thresholds = append(l.thresholds, limit)
	}
	return i
}

// Thresholds returns each limit once: first the thresholds that NewLimits was given, in
// their order, then those of terms. They are for a [Forecaster], whose estimates have the
// same order.
func (l *Limits) Thresholds() []Threshold { return l.thresholds }

// Settled returns for each limit whether a crossing would change nothing: whatever it
// decides is True already, or needs another term too, that does not hold; once that does,
// there is a snapshot which tells. It is valid until the next call. The findings are those
// of the rules on the snapshot.
func (l *Limits) Settled(s *probe.Snapshot, verdicts *[NumConditions]Verdict, findings []Finding) []bool {
	for i := range l.settled {
		l.settled[i] = i >= l.configured || verdicts[l.thresholds[i].Condition()].Status == True
	}
	for r := range l.rules {
		if findings[r].Status == True {
			continue
		}
		for c, clause := range l.rules[r].When {
			l.unsettle(clause, l.terms[r][c], s, verdicts)
		}
	}
	return l.settled
}

// unsettle marks the limits of a clause that decide whether it holds.
func (l *Limits) unsettle(clause Clause, limits []int, s *probe.Snapshot, verdicts *[NumConditions]Verdict) {
	missing, last := 0, 0
	for k := range clause {
		if clause[k].evaluate(s, verdicts) != True {
			missing++
			last = k
		}
	}
	for k, limit := range limits {
		if limit >= 0 && (missing == 0 || missing == 1 && k == last) {
			l.settled[limit] = false
		}
	}
}

// never is later than any sample.
const never = time.Duration(math.MaxInt64)

// Soonest returns how long after a snapshot the next one is due for the rules, given the
// estimates of the limits, and which of those announce a crossing by themselves. A clause
// that does not hold begins with the last of its terms, and one that holds ends with the
// first that does not; so if one term is far from its limit, the others are not looked
// at more often for this clause.
func (l *Limits) Soonest(s *probe.Snapshot, verdicts *[NumConditions]Verdict, estimates []Estimate, relied []bool, p Pace) time.Duration {
	p = p.complete()
	soonest := never
	for r := range l.rules {
		for c, clause := range l.rules[r].When {
			holds := clause.evaluate(s, verdicts) == True
			begins, ends := time.Duration(0), never
			for k := range clause {
				truth := clause[k].evaluate(s, verdicts)
				if truth == True && !holds {
					continue
				}
				due := never // more samples do not help where nothing is known
				if truth != Unknown {
					due = l.due(&clause[k], l.terms[r][c][k], s, estimates, relied, &p)
				}
				begins, ends = max(begins, due), min(ends, due)
			}
			if holds {
				begins = ends
			}
			soonest = min(soonest, begins)
		}
	}
	return soonest
}

// due returns how soon a sample is due for a term alone.
func (l *Limits) due(t *Term, limit int, s *probe.Snapshot, estimates []Estimate, relied []bool, p *Pace) time.Duration {
	switch {
	case t.kind == termStall:
		return max(t.surprise(s), p.Ceiling)
	case limit >= 0 && (limit >= len(relied) || !relied[limit]):
		return estimates[limit].due(*p)
	}
	return never // it announces itself
}

// surprise returns how soon the average of a stall may pass its share: as if everything
// stalled from now on, or nothing. The kernel's averages decay by 1/e in their window.
func (t *Term) surprise(s *probe.Snapshot) time.Duration {
	share, ok := t.stalled(s)
	if !ok {
		return never
	}
	ratio := share / t.share
	if share <= t.share {
		ratio = (1 - share) / (1 - t.share)
	}
	seconds := t.window.Seconds() * math.Log(ratio)
	if seconds > Horizon.Seconds() {
		return Horizon
	}
	return time.Duration(seconds * float64(time.Second))
}

// StallLimit is what rules say about stalls of one kind.
type StallLimit struct {
	Resource probe.Resource
	Full     bool
	Share    float64 // the lowest of any term, from 0 to 1
}

// StallLimits returns one for each kind of stall that a rule has a term about, in a fixed
// order.
func StallLimits(rules []Rule) (limits []StallLimit) {
	for _, rule := range rules {
		for _, clause := range rule.When {
			for _, t := range clause {
				if t.kind != termStall {
					continue
				}
				same := func(l StallLimit) bool { return l.Resource == t.resource && l.Full == t.full }
				if i := slices.IndexFunc(limits, same); i >= 0 {
					limits[i].Share = min(limits[i].Share, t.share)
				} else {
					limits = append(limits, StallLimit{t.resource, t.full, t.share})
				}
			}
		}
	}
	slices.SortFunc(limits, func(a, b StallLimit) int {
		if c := cmp.Compare(a.Resource, b.Resource); c != 0 {
			return c
		}
		if a.Full {
			return 1
		}
		return -1
	})
	return limits
}
