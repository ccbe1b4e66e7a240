package pressure

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Config holds the kubelet's eviction settings as they are written in a
// KubeletConfiguration. The maps are keyed by signal name. No defaults are
// applied: an empty map means no thresholds.
type Config struct {
	// Hard is evictionHard.
	Hard map[string]string
	// Soft is evictionSoft. Each of its signals needs a SoftGracePeriod.
	Soft map[string]string
	// SoftGracePeriod is evictionSoftGracePeriod.
	SoftGracePeriod map[string]string
	// MinimumReclaim is evictionMinimumReclaim. It goes with both the hard and
	// the soft threshold of its signal.
	MinimumReclaim map[string]string
	// EnforceNodeAllocatable is the list of that name. If "pods" is in it, each
	// hard threshold on memory.available is repeated for
	// allocatableMemory.available.
	EnforceNodeAllocatable []string
	// TransitionPeriod is evictionPressureTransitionPeriod: how long a condition
	// stays True after a threshold was last met. Zero means not at all.
	TransitionPeriod time.Duration
}

// The fields of a KubeletConfiguration that a FieldError or a Note is about.
const (
	FieldHard             = "evictionHard"
	FieldSoft             = "evictionSoft"
	FieldSoftGracePeriod  = "evictionSoftGracePeriod"
	FieldMinimumReclaim   = "evictionMinimumReclaim"
	FieldTransitionPeriod = "evictionPressureTransitionPeriod"
)

// FieldError is about an entry of the configuration that is wrong.
type FieldError struct {
	// Field is one of the Field constants. Key is the key in that map, or "".
	Field, Key string
	// Err has the text that the kubelet would fail with.
	Err error
}

func (e *FieldError) Error() string { return place(e.Field, e.Key) + ": " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *FieldError) Unwrap() error { return e.Err }

// Note is about an entry that is valid but does not do what it seems to.
type Note struct {
	// Field and Key are those of a FieldError.
	Field, Key string
	Text       string
}

func (n Note) String() string { return place(n.Field, n.Key) + ": " + n.Text }

func place(field, key string) string {
	if key == "" {
		return field
	}
	return field + "[" + key + "]"
}

// Parse reads the configuration by the kubelet's rules (v1.36,
// pkg/kubelet/eviction.ParseThresholdConfig), except that it reports every
// error and not just one of them. The error, if any, is a join of *FieldError.
// Thresholds are sorted by signal, hard before soft; notes and errors by key,
// then field. All three are the same for equal configurations.
//
// A soft threshold whose grace period is 0s comes out as a hard one, but the
// kubelet reserves no memory or disk for it. For the thresholds that count
// towards the reservation, parse a Config that holds nothing but Hard.
func Parse(c Config) ([]Threshold, []Note, error) {
	var p parser
	graces := map[probe.Signal]time.Duration{}
	p.each(FieldSoftGracePeriod, c.SoftGracePeriod, func(signal probe.Signal, text string) (err error) {
		// Also stored if it is wrong: one mistake, one error.
		graces[signal], err = parseGrace(text)
		return err
	})
	reclaims := map[probe.Signal]Value{}
	p.each(FieldMinimumReclaim, c.MinimumReclaim, func(signal probe.Signal, text string) (err error) {
		reclaims[signal], err = parseReclaim(signal, text)
		return err
	})
	p.each(FieldHard, c.Hard, func(signal probe.Signal, text string) error {
		value, keep, err := parseThreshold(signal, text)
		if keep {
			p.add(FieldHard, Threshold{Signal: signal, Value: value, MinReclaim: reclaims[signal]})
		}
		return err
	})
	p.each(FieldSoft, c.Soft, func(signal probe.Signal, text string) error {
		value, keep, err := parseThreshold(signal, text)
		if !keep {
			return err
		}
		grace, ok := graces[signal]
		if !ok {
			return fmt.Errorf("grace period must be specified for the soft eviction threshold %v", signal)
		}
		p.add(FieldSoft, Threshold{Signal: signal, Value: value, Grace: grace, MinReclaim: reclaims[signal]})
		return nil
	})
	if c.TransitionPeriod < 0 {
		p.fail(FieldTransitionPeriod, "", fmt.Errorf("%v is negative", c.TransitionPeriod))
	}
	if slices.Contains(c.EnforceNodeAllocatable, "pods") {
		p.addAllocatable()
	}
	return p.result()
}

// parser collects what Parse returns.
type parser struct {
	thresholds []Threshold
	notes      []Note
	errs       []*FieldError
}

// each calls parse for every entry of a map that is keyed by signal. Maps have
// no order, so nothing that parse does may depend on it; result sorts.
func (p *parser) each(field string, entries map[string]string, parse func(probe.Signal, string) error) {
	for key, text := range entries {
		signal, ok := probe.ParseSignal(key)
		if !ok || !signal.Evicts() {
			p.fail(field, key, fmt.Errorf("unsupported eviction signal %v", key))
			continue
		}
		if err := parse(signal, text); err != nil {
			p.fail(field, key, err)
		}
	}
}

func (p *parser) fail(field, key string, err error) {
	p.errs = append(p.errs, &FieldError{Field: field, Key: key, Err: err})
}

func (p *parser) note(field string, signal probe.Signal, text string) {
	p.notes = append(p.notes, Note{Field: field, Key: signal.String(), Text: text})
}

// add keeps a threshold that the kubelet would keep, unless it cannot matter.
func (p *parser) add(field string, t Threshold) {
	switch t.Signal {
	case probe.ContainerFsAvailable, probe.ContainerFsInodesFree:
		// The kubelet puts a copy of the nodefs or imagefs threshold in its
		// place. That copy watches the same filesystem for the same condition
		// as the original, so it is not needed here.
		p.note(field, t.Signal, "ignored, as by the kubelet: the thresholds of nodefs and imagefs apply instead")
		return
	}
	if t.Value == (Value{}) {
		p.note(field, t.Signal, "a threshold of nothing is never met; write 0% for no threshold")
	}
	if field == FieldSoft && t.Hard() {
		p.note(field, t.Signal, "a soft threshold without a grace period is a hard one")
	}
	p.thresholds = append(p.thresholds, t)
}

// addAllocatable repeats the hard thresholds on the node's memory for the
// memory of all pods.
func (p *parser) addAllocatable() {
	for _, t := range p.thresholds {
		if t.Signal == probe.MemoryAvailable && t.Hard() {
			t.Signal = probe.AllocatableMemoryAvailable
			p.thresholds = append(p.thresholds, t)
		}
	}
}

func (p *parser) result() ([]Threshold, []Note, error) {
	slices.SortFunc(p.notes, func(a, b Note) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Field, b.Field), strings.Compare(a.Text, b.Text))
	})
	if len(p.errs) > 0 {
		slices.SortFunc(p.errs, func(a, b *FieldError) int {
			return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Field, b.Field))
		})
		errs := make([]error, len(p.errs))
		for i, err := range p.errs {
			errs[i] = err
		}
		return nil, p.notes, errors.Join(errs...)
	}
	slices.SortFunc(p.thresholds, func(a, b Threshold) int {
		// The amounts only distinguish duplicates of one signal.
		return cmp.Or(
			cmp.Compare(a.Signal, b.Signal),
			cmp.Compare(a.Grace, b.Grace),
			cmp.Compare(a.Value.Quantity, b.Value.Quantity),
			cmp.Compare(a.Value.Percentage, b.Value.Percentage),
			cmp.Compare(a.MinReclaim.Quantity, b.MinReclaim.Quantity),
			cmp.Compare(a.MinReclaim.Percentage, b.MinReclaim.Percentage),
		)
	})
	// The same from two fields is one: each has a series of metrics of its own.
	return slices.Compact(p.thresholds), p.notes, nil
}

// parseThreshold reads an entry of evictionHard or evictionSoft. It returns false for an
// entry that is wrong and for one that turns a threshold off.
func parseThreshold(signal probe.Signal, text string) (Value, bool, error) {
	if text == "0%" || text == "100%" {
		return Value{}, false, nil
	}
	if strings.HasSuffix(text, "%") {
		percentage, err := parsePercentage(text)
		switch {
		case err != nil:
			return Value{}, false, err
		case percentage < 0:
			return Value{}, false, fmt.Errorf("eviction percentage threshold %v must be >= 0%%: %s", signal, text)
		case percentage > 1:
			return Value{}, false, fmt.Errorf("eviction percentage threshold %v must be <= 100%%: %s", signal, text)
		}
		return percentageValue(percentage), true, nil
	}
	quantity, err := ParseQuantity(text)
	if err != nil {
		return Value{}, false, err
	}
	if quantity.Sign() <= 0 {
		return Value{}, false, fmt.Errorf("eviction threshold %v must be positive: %s", signal, &quantity)
	}
	return quantityValue(quantity), true, nil
}

// parseReclaim reads an entry of evictionMinimumReclaim.
func parseReclaim(signal probe.Signal, text string) (Value, error) {
	if strings.HasSuffix(text, "%") {
		percentage, err := parsePercentage(text)
		if err != nil {
			return Value{}, err
		}
		if percentage <= 0 {
			return Value{}, fmt.Errorf("eviction percentage minimum reclaim %v must be positive: %s", signal, text)
		}
		return percentageValue(percentage), nil
	}
	quantity, err := ParseQuantity(text)
	if err != nil {
		return Value{}, err
	}
	if quantity.Sign() < 0 {
		return Value{}, fmt.Errorf("negative eviction minimum reclaim specified for %v", signal)
	}
	return quantityValue(quantity), nil
}

// parseGrace reads an entry of evictionSoftGracePeriod.
func parseGrace(text string) (time.Duration, error) {
	grace, err := time.ParseDuration(text)
	if err != nil {
		return 0, err
	}
	if grace < 0 {
		return 0, fmt.Errorf("invalid eviction grace period specified: %v, must be a positive value", text)
	}
	return grace, nil
}

// percentageValue keeps a share that the checks let pass. NaN% and -0% are
// among them: the kubelet takes both and never finds them met, which is what a
// share of 0 means, and 0 equals itself.
func percentageValue(percentage float32) Value {
	if !(percentage > 0) {
		return Value{}
	}
	return Value{Percentage: percentage}
}

// quantityValue keeps a quantity that is not negative. What is available comes
// in whole units, so being below 1.5 is the same as being below 2.
func quantityValue(q resource.Quantity) Value {
	// Quantity.Value wraps around, and comparing a quantity of 1e999 takes
	// forever, so the approximation has to go first.
	if q.AsApproximateFloat64() > 2*math.MaxInt64 || q.CmpInt64(math.MaxInt64) > 0 {
		return Value{Quantity: math.MaxInt64}
	}
	return Value{Quantity: q.Value()}
}

// ParseQuantity is resource.ParseQuantity with bounded exponents: that one computes any
// power of 10, and "1e-999999999" would keep it busy for hours.
func ParseQuantity(text string) (resource.Quantity, error) {
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		if exponent := text[i+1:]; len(exponent) > len("-999") && strings.Trim(exponent, "+-0123456789") == "" {
			return resource.Quantity{}, resource.ErrSuffix
		}
	}
	return resource.ParseQuantity(text)
}
