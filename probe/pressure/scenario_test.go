package pressure

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// TestScenarios plays testdata/*.txt. A file says what it proves, configures an
// evaluator, and then shows it one snapshot per "at" line:
//
//	# What this proves.
//	hard memory.available 100Mi           an entry of evictionHard
//	soft memory.available 1Gi             ... of evictionSoft
//	grace memory.available 2m             ... of evictionSoftGracePeriod
//	minreclaim memory.available 500Mi     ... of evictionMinimumReclaim
//	enforce pods                          ... of enforceNodeAllocatable
//	transition 5m                         evictionPressureTransitionPeriod
//	seed MemoryPressure True -1m          Evaluator.Seed
//
//	at 10s memory.available=90Mi/8Gi nodefs.available=absent imagefs.available=none
//	  MemoryPressure=True@10s (met memory.available<100Mi) DiskPressure=...
//
// Times count from the start and may go backwards. A signal keeps its last
// reading until a line gives it a new one: available/capacity, "absent" for one
// that could not be read, "none" for one that is not there, which is also how
// all of them start. "at 10s..290s/10s" stands for a snapshot every 10 s, all
// with the same verdicts but for the time since when. The indented line holds
// the verdicts; after the @ stands Verdict.Since, in parentheses why.
func TestScenarios(t *testing.T) {
	playFiles(t, "testdata/*.txt", func() command {
		s := scenario{config: Config{
			Hard: map[string]string{}, Soft: map[string]string{},
			SoftGracePeriod: map[string]string{}, MinimumReclaim: map[string]string{},
		}}
		return s.command
	})
}

// start is when scenarios begin. It has no monotonic reading, so that a script
// can set the clock back.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var errAbsent = errors.New("could not be read")

// scenario is the state of one script as it is played.
type scenario struct {
	config    Config
	seeds     []func(*Evaluator)
	evaluator *Evaluator
	snapshot  probe.Snapshot
}

func (s *scenario) command(name string, args []string) (verdicts string, err error) {
	maps := map[string]map[string]string{
		"hard": s.config.Hard, "soft": s.config.Soft,
		"grace": s.config.SoftGracePeriod, "minreclaim": s.config.MinimumReclaim,
	}
	switch {
	case name == "at" && len(args) > 0:
		return s.at(args[0], args[1:])
	case s.evaluator != nil:
		return "", errors.New("configuration after the first snapshot")
	case maps[name] != nil && len(args) == 2:
		maps[name][args[0]] = args[1]
		return "", nil
	case name == "enforce" && len(args) == 1:
		s.config.EnforceNodeAllocatable = args
		return "", nil
	case name == "transition" && len(args) == 1:
		s.config.TransitionPeriod, err = time.ParseDuration(args[0])
		return "", err
	case name == "seed" && len(args) == 3:
		return "", s.seed(args[0], args[1], args[2])
	default:
		return "", errors.New("no such command")
	}
}

func (s *scenario) seed(condition, status, at string) error {
	offset, err := time.ParseDuration(at)
	for c := range Condition(NumConditions) {
		for st := Unknown; st <= True; st++ {
			if c.String() == condition && st.String() == status {
				s.seeds = append(s.seeds, func(e *Evaluator) { e.Seed(c, st, start.Add(offset)) })
				return err
			}
		}
	}
	return errors.New("no such condition or status")
}

func (s *scenario) at(when string, readings []string) (string, error) {
	if s.evaluator == nil {
		thresholds, _, err := Parse(s.config)
		if err != nil {
			return "", err
		}
		s.evaluator = NewEvaluator(thresholds, s.config.TransitionPeriod)
		for _, seed := range s.seeds {
			seed(s.evaluator)
		}
	}
	for _, reading := range readings {
		name, text, _ := strings.Cut(reading, "=")
		signal, ok := probe.ParseSignal(name)
		if !ok {
			return "", fmt.Errorf("no signal %q", name)
		}
		var err error
		if s.snapshot.Signals[signal], err = parseObservation(text); err != nil {
			return "", err
		}
	}
	times, err := parseTimes(when)
	if err != nil {
		return "", err
	}
	var verdicts string
	for i, offset := range times {
		s.snapshot.Time = start.Add(offset)
		got := formatVerdicts(s.evaluator.Observe(&s.snapshot))
		if i > 0 && got != verdicts {
			return "", fmt.Errorf("at %v the verdicts change from %q to %q", offset, verdicts, got)
		}
		verdicts = got
	}
	return "  " + verdicts + "\n", nil
}

// parseTimes reads "10s", or "10s..290s/10s".
func parseTimes(text string) ([]time.Duration, error) {
	first, rest, isRange := strings.Cut(text, "..")
	from, err := time.ParseDuration(first)
	if err != nil || !isRange {
		return []time.Duration{from}, err
	}
	last, every, _ := strings.Cut(rest, "/")
	to, errTo := time.ParseDuration(last)
	step, errStep := time.ParseDuration(every)
	if err := errors.Join(errTo, errStep); err != nil {
		return nil, err
	}
	var times []time.Duration
	for ; from <= to && step > 0; from += step {
		times = append(times, from)
	}
	return times, nil
}

// parseObservation reads "90Mi/8Gi", "14%/100Gi", "absent" or "none".
func parseObservation(text string) (probe.Observation, error) {
	switch text {
	case "none":
		return probe.Observation{}, nil
	case "absent":
		return probe.Observation{Err: errAbsent}, nil
	}
	available, capacity, _ := strings.Cut(text, "/")
	c, err := parseAmount(capacity, 0)
	if err != nil {
		return probe.Observation{}, err
	}
	a, err := parseAmount(available, c)
	return probe.Observation{Available: a, Capacity: c, OK: true}, err
}

func parseAmount(text string, capacity int64) (int64, error) {
	if strings.HasSuffix(text, "%") {
		p, err := parsePercentage(text)
		return Value{Percentage: p}.Of(capacity), err
	}
	q, err := ParseQuantity(text)
	return q.Value(), err
}

func formatVerdicts(verdicts []Verdict) string {
	texts := make([]string, len(verdicts))
	for i, v := range verdicts {
		texts[i] = fmt.Sprintf("%v=%v@%v", v.Condition, v.Status, v.Since.Sub(start))
		if why := formatWhy(v); why != "" {
			texts[i] += " (" + why + ")"
		}
	}
	return strings.Join(texts, " ")
}

func formatWhy(v Verdict) string {
	var words []string
	for word, is := range map[string]bool{"met": v.Met, "held": v.Held, "frozen": v.Frozen} {
		if is { // never more than one, so the map's order does not show
			words = append(words, word)
		}
	}
	switch {
	case v.Status != True:
	case v.Threshold == (Threshold{}):
		words = append(words, "seed")
	default:
		unit := v.Threshold.Signal.Unit()
		words = append(words, fmt.Sprintf("%v: %s<%s", v.Threshold.Signal,
			Value{Quantity: v.Observation.Available}.format(unit), Value{Quantity: v.Limit}.format(unit)))
	}
	return strings.Join(words, " ")
}
