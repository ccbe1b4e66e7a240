package pressure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/probe"
)

// Value is an amount of a signal: either so many of its units, or a share of
// its capacity. At most one field is set; the zero Value is none.
type Value struct {
	// Quantity is in the signal's unit.
	Quantity int64
	// Percentage is from 0 to 1 in a threshold; a minimum reclaim may exceed 1.
	// It is a float32 because the kubelet's is, and the rounding shows: 5% of
	// 10Gi is 536870920, not 536870912.
	Percentage float32
}

// Of returns the amount in the signal's unit, given the signal's capacity. A
// result that does not fit is the nearest that does.
func (v Value) Of(capacity int64) int64 {
	if v.Percentage == 0 {
		return v.Quantity
	}
	amount := float64(capacity) * float64(v.Percentage)
	switch {
	// A float64 holds 2^63 but not 2^63-1, and Go leaves it to the CPU what a
	// conversion that overflows gives.
	case amount >= 1<<63:
		return math.MaxInt64
	case amount < -1<<63:
		return math.MinInt64
	default:
		return int64(amount)
	}
}

// String returns the value as a user would write it: "100Mi" or "10%". For a
// Value that Parse returned it reads back as the same Value.
func (v Value) String() string { return v.format("bytes") }

// format is String for a known unit. Like the kubelet, it counts bytes in
// powers of 1024 and everything else in powers of 1000.
func (v Value) format(unit string) string {
	if v.Percentage != 0 {
		return formatPercentage(v.Percentage)
	}
	format := resource.DecimalSI
	if unit == "bytes" {
		format = resource.BinarySI
	}
	return resource.NewQuantity(v.Quantity, format).String()
}

// formatPercentage writes the shortest number that parsePercentage reads back
// as p, which is what the user wrote: p is rounded, so 100*p is 10.000000149.
func formatPercentage(p float32) string {
	hundredfold := float64(p) * 100
	for decimals := range 10 {
		s := strconv.FormatFloat(hundredfold, 'f', decimals, 64) + "%"
		if back, err := parsePercentage(s); err == nil && back == p {
			return s
		}
	}
	return strconv.FormatFloat(hundredfold, 'g', 17, 64) + "%"
}

// parsePercentage is the kubelet's function of that name, to the last bit.
func parsePercentage(s string) (float32, error) {
	number, err := strconv.ParseFloat(strings.TrimRight(s, "%"), 32)
	if err != nil {
		return 0, err
	}
	return float32(number) / 100, nil
}

// Threshold is one line of the kubelet's eviction configuration: the signal is
// short when less than Value is available. A Threshold is comparable; equal
// thresholds mean the same.
type Threshold struct {
	Signal probe.Signal
	Value  Value
	// Grace is how long the threshold must be met before the kubelet would
	// evict. It does not delay the node condition; all it does here is to delay
	// MinReclaim.
	Grace time.Duration
	// MinReclaim is what must be available beyond Value before a threshold that
	// has been met for Grace counts as no longer met.
	MinReclaim Value
}

// Hard reports whether the kubelet would evict at once.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// Condition returns the node condition that the threshold's signal is about.
func (t Threshold) Condition() Condition { return conditionOf[t.Signal] }

// String returns, for example, "memory.available<1Gi+500Mi (grace 2m0s)", with
// the minimum reclaim behind the plus sign.
func (t Threshold) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v<%s", t.Signal, t.Value.format(t.Signal.Unit()))
	if t.MinReclaim != (Value{}) {
		fmt.Fprintf(&b, "+%s", t.MinReclaim.format(t.Signal.Unit()))
	}
	if !t.Hard() {
		fmt.Fprintf(&b, " (grace %v)", t.Grace)
	}
	return b.String()
}

// Validate returns what is wrong with a threshold wherever it is used, or nil. Parse
// returns none of that kind.
func (t Threshold) Validate() error {
	switch {
	case int(t.Signal) >= probe.NumSignals:
		return fmt.Errorf("there is no signal %d; take one of package probe", t.Signal)
	case !t.Signal.Evicts():
		return fmt.Errorf("%v: not an eviction signal; rules can use it", t.Signal)
	case t.Grace < 0:
		return fmt.Errorf("%v: grace period %v is negative", t.Signal, t.Grace)
	case !t.Value.valid() || t.Value.Percentage > 1:
		return fmt.Errorf("%v: value must be a quantity, or a percentage from 0 to 1, and not be negative", t.Signal)
	case !t.MinReclaim.valid():
		return fmt.Errorf("%v: minimum reclaim must be a quantity or a percentage, and not be negative", t.Signal)
	}
	return nil
}

// valid reports whether at most one field is set, and none is negative.
func (v Value) valid() bool {
	return v.Quantity >= 0 && v.Percentage >= 0 && (v.Quantity == 0 || v.Percentage == 0) && !math.IsInf(float64(v.Percentage), 0)
}

// Check returns what is wrong with a threshold on a node with the observed capacity: it
// would always be met, or never, or could not be left again. The kubelet silently
// accepts all three. Check returns nil if the signal was not observed.
func (t Threshold) Check(obs probe.Observation) error {
	if !obs.OK {
		return nil
	}
	var (
		unit     = t.Signal.Unit()
		amount   = t.Value.Of(obs.Capacity)
		release  = plus(amount, t.MinReclaim.Of(obs.Capacity))
		capacity = Value{Quantity: obs.Capacity}.format(unit)
	)
	switch {
	case amount <= 0:
		return fmt.Errorf("%v: threshold %s comes to 0 of the capacity %s: the condition would never be true",
			t.Signal, t.Value.format(unit), capacity)
	case amount > obs.Capacity:
		return fmt.Errorf("%v: threshold %s is above the capacity %s: the condition would always be true",
			t.Signal, t.Value.format(unit), capacity)
	case release > obs.Capacity:
		return fmt.Errorf("%v: threshold %s plus minimum reclaim %s is above the capacity %s: the condition would never end",
			t.Signal, t.Value.format(unit), t.MinReclaim.format(unit), capacity)
	default:
		return nil
	}
}

// plus returns the limit raised by extra, if extra is more than nothing, or the
// greatest int64 if that is less.
func plus(limit, extra int64) int64 {
	switch {
	case extra <= 0:
		return limit
	case limit > math.MaxInt64-extra:
		return math.MaxInt64
	default:
		return limit + extra
	}
}
