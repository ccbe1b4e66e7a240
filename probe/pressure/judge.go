package pressure

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// staleAfter is how long a condition keeps its status while no figure confirms or
// refutes it. After that it is Unknown.
const staleAfter = time.Minute

// Finding is a Judge's decision on one Rule.
type Finding struct {
	Type   string
	Status Status
	// Reason and Message explain Status. They are from the moment at which it changed,
	// so that a moving figure does not change them.
	Reason, Message string
	// Since is the time of the snapshot at which Status last changed; of the first
	// one if it has not.
	Since time.Time
}

// Judge applies rules to snapshots. It is not safe for concurrent use.
type Judge struct {
	rules    []Rule
	states   []state
	findings []Finding
}

// state is one rule over time.
type state struct {
	holding time.Time // since when a clause has held; zero while none does
	held    time.Time // when one last held
	known   time.Time // when it was last known whether one does; the first snapshot before that
	judged  bool      // it was known once
}

// NewJudge returns a Judge with every condition Unknown.
func NewJudge(rules []Rule) *Judge {
	j := &Judge{rules: rules, states: make([]state, len(rules)), findings: make([]Finding, len(rules))}
	for i, r := range rules {
		j.findings[i] = Finding{Type: r.Type}
	}
	return j
}

// Seed marks a condition as True, with this reason and message, because it was when the
// program ended: a restart does not change it. One that is already True is left as it
// is.
func (j *Judge) Seed(condition, reason, message string, at time.Time) {
	for i, r := range j.rules {
		if r.Type == condition && j.findings[i].Status != True {
			j.states[i].held = at
			j.findings[i] = Finding{Type: r.Type, Status: True, Reason: reason, Message: message, Since: at}
		}
	}
}

// Findings returns what the latest Observe found; see there.
func (j *Judge) Findings() []Finding { return j.findings }

// Observe judges a snapshot, given the verdicts on it, and reports whether a status has
// changed. The findings belong to the Judge and are valid until the next call;
// they are in the order of the rules. In steady state nothing is allocated.
func (j *Judge) Observe(s *probe.Snapshot, verdicts *[NumConditions]Verdict) (findings []Finding, changed bool) {
	for i := range j.rules {
		if j.observe(i, s, verdicts) {
			changed = true
		}
	}
	return j.findings, changed
}

func (j *Judge) observe(i int, s *probe.Snapshot, verdicts *[NumConditions]Verdict) bool {
	rule, st, f := &j.rules[i], &j.states[i], &j.findings[i]
	now := s.Time
	if st.known.IsZero() {
		st.known = now
	}
	truth, clause := rule.evaluate(s, verdicts)
	st.judged = st.judged || truth != Unknown
	status := f.Status
	switch truth {
	case True:
		st.known, st.held = now, now
		if st.holding.IsZero() {
			st.holding = now
		}
		if now.Sub(st.holding) >= rule.For {
			status = True
		} else if status != True {
			status = False
		}
	case False:
		st.known, st.holding = now, time.Time{}
		if status != True || now.Sub(st.held) >= rule.Hold {
			status = False
		}
	default:
		if now.Sub(st.known) >= staleAfter {
			status = Unknown
		}
	}
	if status == f.Status && !f.Since.IsZero() {
		return false
	}
	f.Since, f.Status = now, status
	switch status {
	case True:
		f.Reason, f.Message = rule.Reason, clause.evidence(s, verdicts)
	case False:
		f.Reason, f.Message = rule.OKReason, "does not hold: "+rule.text()
	default:
		f.Reason, f.Message = "SignalUnavailable", rule.doubt(s, verdicts)
	}
	return true
}

// Release returns how long after a snapshot a status may change by time alone, when a
// Hold or a For ends; no signal announces that. It is negative if none may.
func (j *Judge) Release(now time.Time) time.Duration {
	left := time.Duration(-1)
	for i := range j.rules {
		st, status := &j.states[i], j.findings[i].Status
		var wait time.Duration
		switch {
		case status == True && st.holding.IsZero():
			wait = j.rules[i].Hold - now.Sub(st.held)
		case status != True && !st.holding.IsZero():
			wait = j.rules[i].For - now.Sub(st.holding)
		default:
			continue
		}
		if wait = max(wait, time.Millisecond); left < 0 || wait < left {
			left = wait
		}
	}
	return left
}

// evaluate returns True and the first clause that holds, False, or Unknown if one
// may hold.
func (r *Rule) evaluate(s *probe.Snapshot, verdicts *[NumConditions]Verdict) (Status, Clause) {
	all := False
	for _, c := range r.When {
		switch c.evaluate(s, verdicts) {
		case True:
			return True, c
		case Unknown:
			all = Unknown
		}
	}
	return all, nil
}

func (c Clause) evaluate(s *probe.Snapshot, verdicts *[NumConditions]Verdict) Status {
	all := True
	for i := range c {
		switch c[i].evaluate(s, verdicts) {
		case False:
			return False
		case Unknown:
			all = Unknown
		}
	}
	return all
}

func (t *Term) evaluate(s *probe.Snapshot, verdicts *[NumConditions]Verdict) Status {
	switch t.kind {
	case termVerdict:
		if v := &verdicts[t.verdict]; v.Frozen {
			return Unknown
		}
		return verdicts[t.verdict].Status
	case termSignal:
		o := &s.Signals[t.signal]
		if !o.OK {
			return Unknown
		}
		return truth(o.Available < t.value.Of(o.Capacity))
	case termReadOnly:
		_, readOnly, known := t.mount(s).ReadOnly()
		if !known {
			return Unknown
		}
		return truth(readOnly)
	default:
		share, ok := t.stalled(s)
		if !ok {
			return Unknown
		}
		return truth(share > t.share)
	}
}

func truth(holds bool) Status {
	if holds {
		return True
	}
	return False
}

func (t *Term) mount(s *probe.Snapshot) *probe.Filesystem {
	if t.signal == probe.ImageFsAvailable {
		return &s.ImageFs
	}
	return &s.NodeFs
}

func (t *Term) stalled(s *probe.Snapshot) (share float64, ok bool) {
	stall := &s.Pressure[t.resource]
	line, ok := &stall.Some, stall.OK
	if t.full {
		line, ok = &stall.Full, stall.FullOK
	}
	switch t.window {
	case 10 * time.Second:
		return line.Avg10, ok
	case time.Minute:
		return line.Avg60, ok
	default:
		return line.Avg300, ok
	}
}

// text is the rule's clauses as a user writes them.
func (r *Rule) text() string {
	texts := make([]string, len(r.When))
	for i, c := range r.When {
		texts[i] = c.String()
	}
	return strings.Join(texts, "; ")
}

// evidence describes what was measured for a clause that holds, with its limits.
func (c Clause) evidence(s *probe.Snapshot, verdicts *[NumConditions]Verdict) string {
	texts := make([]string, len(c))
	for i := range c {
		texts[i] = c[i].evidence(s, verdicts)
	}
	return strings.Join(texts, ", ")
}

func (t *Term) evidence(s *probe.Snapshot, verdicts *[NumConditions]Verdict) string {
	switch t.kind {
	case termVerdict:
		v := &verdicts[t.verdict]
		if v.Threshold == (Threshold{}) {
			return t.verdict.String() + " is True"
		}
		return below(v.Threshold.Signal, v.Observation.Available, v.Limit)
	case termSignal:
		o := s.Signals[t.signal]
		return below(t.signal, o.Available, t.value.Of(o.Capacity))
	case termReadOnly:
		return fmt.Sprintf("%s at %s is read-only", t.filesystem(), t.mount(s).Mount.MountPoint)
	default:
		share, _ := t.stalled(s)
		return fmt.Sprintf("%s is %s%%, above %s", t.name(), strconv.FormatFloat(share*100, 'f', 0, 64), formatShare(t.share))
	}
}

func below(signal probe.Signal, available, limit int64) string {
	return fmt.Sprintf("%s is %s, below %s", signal, rounded(available, signal.Unit()), rounded(limit, signal.Unit()))
}

// rounded writes an amount with three digits.
func rounded(amount int64, unit string) string {
	value, base, prefixes := float64(amount), 1000.0, []string{"", "k", "M", "G", "T", "P", "E"}
	if unit == "bytes" {
		base, prefixes = 1024, []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	}
	i := 0
	for ; (value >= base || value <= -base) && i < len(prefixes)-1; i++ {
		value /= base
	}
	return strconv.FormatFloat(value, 'g', 3, 64) + prefixes[i]
}

// doubt describes what could not be read.
func (r *Rule) doubt(s *probe.Snapshot, verdicts *[NumConditions]Verdict) string {
	for _, c := range r.When {
		for i := range c {
			if c[i].evaluate(s, verdicts) != Unknown {
				continue
			}
			if err := c[i].why(s); err != nil {
				return fmt.Sprintf("%s cannot be read: %v", c[i].name(), err)
			}
			return c[i].name() + " is not known on this node"
		}
	}
	return "no clause"
}

// why returns why a figure is missing, or nil if the machine does not have it.
func (t *Term) why(s *probe.Snapshot) error {
	switch t.kind {
	case termVerdict:
		for signal, c := range conditionOf {
			if err := s.Signals[signal].Err; c == t.verdict && err != nil && probe.Signal(signal).Evicts() {
				return err
			}
		}
		return nil
	case termSignal:
		return s.Signals[t.signal].Err
	case termReadOnly:
		return cmp.Or(s.Errors[probe.SourceMounts], s.Signals[t.signal].Err) // where there is no filesystem, there is no mount to look for
	default:
		return s.Pressure[t.resource].Err
	}
}
