package pressure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Rule defines when a condition of your own is True. True is bad.
type Rule struct {
	// Type is the condition's, such as "nodeprobe.dev/MemoryContention".
	Type string
	// When makes it True: any of these clauses.
	When []Clause
	// For is how long a clause must hold before the condition is True, and Hold how
	// long it stays True after a clause last held.
	For, Hold time.Duration
	// Reason and OKReason are the reasons of True and of False.
	Reason, OKReason string
}

// RepeatsVerdict reports whether the rule only repeats one of the kubelet's conditions
// under another name, without a For or a Hold.
func (r *Rule) RepeatsVerdict() bool {
	return r.For == 0 && r.Hold == 0 && len(r.When) == 1 && len(r.When[0]) == 1 && r.When[0][0].kind == termVerdict
}

// Clause is a list of terms that must all hold.
type Clause []Term

// Term is a statement about a node.
type Term struct {
	kind     termKind
	verdict  Condition      // of termVerdict
	signal   probe.Signal   // of termSignal; of termReadOnly, one of the filesystem's
	value    Value          // of termSignal
	resource probe.Resource // of termStall, as what follows
	full     bool
	window   time.Duration
	share    float64 // from 0 to 1
}

type termKind uint8

const (
	termVerdict  termKind = iota // the condition of the kubelet's name is True
	termSignal                   // less is available than so much: a limit
	termStall                    // tasks stall for more than a share of the time
	termReadOnly                 // a filesystem is read-only
)

// String returns the clause as ParseClause reads it.
func (c Clause) String() string {
	texts := make([]string, len(c))
	for i, t := range c {
		texts[i] = t.String()
	}
	return strings.Join(texts, " and ")
}

// String returns the term as ParseClause reads it.
func (t Term) String() string {
	switch t.kind {
	case termVerdict:
		return t.verdict.String()
	case termReadOnly:
		return t.filesystem() + ".readonly"
	case termSignal:
		return t.name() + " < " + t.value.format(t.signal.Unit())
	default:
		return t.name() + " > " + formatShare(t.share)
	}
}

// name returns what the term is about.
func (t Term) name() string {
	switch t.kind {
	case termVerdict:
		return t.verdict.String()
	case termReadOnly:
		return t.filesystem()
	case termSignal:
		return t.signal.String()
	}
	kind := "some"
	if t.full {
		kind = "full"
	}
	return fmt.Sprintf("%s.%s.avg%d", t.resource, kind, int(t.window.Seconds()))
}

func (t Term) filesystem() string {
	if t.signal == probe.ImageFsAvailable {
		return "imagefs"
	}
	return "nodefs"
}

func formatShare(share float64) string { return strconv.FormatFloat(share*100, 'f', -1, 64) + "%" }

// ParseClause reads terms that are joined by "and":
//
//	MemoryPressure, DiskPressure, PIDPressure   by the thresholds
//	memory.available < 100Mi                    any signal of a threshold, in its unit, or a share
//	memAvailable < 500Mi                        MemAvailable of /proc/meminfo; and swap.available
//	memory.some.avg60 > 20%                     cpu, memory or io; some or full; avg10, avg60 or avg300
//	nodefs.readonly                             or imagefs.readonly
func ParseClause(text string) (Clause, error) {
	var clause Clause
	for part := range strings.SplitSeq(text, " and ") {
		term, err := parseTerm(strings.Fields(part))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.TrimSpace(part), err)
		}
		clause = append(clause, term)
	}
	return clause, nil
}

var errTerm = errors.New(`not a term such as "memory.available < 100Mi", "io.full.avg60 > 20%", "nodefs.readonly" or "MemoryPressure"`)

func parseTerm(words []string) (Term, error) {
	switch len(words) {
	case 1:
		return parseWord(words[0])
	case 3:
		if signal, ok := parseObserved(words[0]); ok {
			return parseBelow(signal, words[1], words[2])
		}
		return parseStall(words[0], words[1], words[2])
	}
	return Term{}, errTerm
}

// parseObserved is probe.ParseSignal for the signals that a Snapshot can hold.
func parseObserved(name string) (probe.Signal, bool) {
	signal, ok := probe.ParseSignal(name)
	unobserved := signal == probe.ContainerFsAvailable || signal == probe.ContainerFsInodesFree
	return signal, ok && !unobserved
}

func parseWord(word string) (Term, error) {
	for c := range Condition(NumConditions) {
		if word == c.String() {
			return Term{kind: termVerdict, verdict: c}, nil
		}
	}
	switch word {
	case "nodefs.readonly":
		return Term{kind: termReadOnly, signal: probe.NodeFsAvailable}, nil
	case "imagefs.readonly":
		return Term{kind: termReadOnly, signal: probe.ImageFsAvailable}, nil
	}
	return Term{}, errTerm
}

func parseBelow(signal probe.Signal, operator, text string) (Term, error) {
	if operator != "<" {
		return Term{}, fmt.Errorf("%s can only be compared with <", signal)
	}
	value, some, err := parseThreshold(signal, text)
	if err != nil {
		return Term{}, err
	}
	if !some || value == (Value{}) {
		return Term{}, errors.New("this never holds")
	}
	return Term{kind: termSignal, signal: signal, value: value}, nil
}

var windows = map[string]time.Duration{"avg10": 10 * time.Second, "avg60": time.Minute, "avg300": 5 * time.Minute}

func parseStall(name, operator, text string) (Term, error) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 {
		return Term{}, fmt.Errorf("unknown signal %s", name)
	}
	t := Term{kind: termStall, full: parts[1] == "full", window: windows[parts[2]]}
	resource := slices.IndexFunc([]probe.Resource{probe.CPU, probe.MemoryResource, probe.IO}, func(r probe.Resource) bool { return r.String() == parts[0] })
	if resource < 0 || t.window == 0 || !t.full && parts[1] != "some" {
		return Term{}, fmt.Errorf("unknown signal %s", name)
	}
	t.resource = probe.Resource(resource)
	if operator != ">" {
		return Term{}, fmt.Errorf("%s can only be compared with >", name)
	}
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !strings.HasSuffix(text, "%") || !(percent >= 0 && percent < 100) {
		return Term{}, fmt.Errorf("%q is not a share from 0%% to below 100%%", text)
	}
	t.share = percent / 100
	return t, nil
}
