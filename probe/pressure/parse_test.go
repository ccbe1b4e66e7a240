package pressure

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/probe"
)

type entries = map[string]string

// The cases are those of the kubelet's TestParseThresholdConfig, with the exact
// values, and some on the corners of the grammar.
func TestParse(t *testing.T) {
	const memory, nodefs, imagefs = probe.MemoryAvailable, probe.NodeFsAvailable, probe.ImageFsAvailable
	for _, test := range []struct {
		name   string
		config Config
		want   []Threshold
		notes  []string
	}{
		{name: "no values"},
		{
			name: "all memory eviction values",
			config: Config{
				Hard: entries{"memory.available": "150Mi"}, Soft: entries{"memory.available": "300Mi"},
				SoftGracePeriod: entries{"memory.available": "30s"}, MinimumReclaim: entries{"memory.available": "0"},
				EnforceNodeAllocatable: []string{"system-reserved", "pods"},
			},
			want: []Threshold{
				{Signal: memory, Value: Value{Quantity: 150 * mi}},
				{Signal: memory, Value: Value{Quantity: 300 * mi}, Grace: 30 * time.Second},
				{Signal: probe.AllocatableMemoryAvailable, Value: Value{Quantity: 150 * mi}},
			},
		},
		{
			name: "the same twice",
			config: Config{
				Hard: entries{"memory.available": "1Gi", "allocatableMemory.available": "1Gi"}, Soft: entries{"memory.available": "1024Mi"},
				SoftGracePeriod: entries{"memory.available": "0s"}, EnforceNodeAllocatable: []string{"pods"},
			},
			want: []Threshold{
				{Signal: memory, Value: Value{Quantity: 1024 * mi}},
				{Signal: probe.AllocatableMemoryAvailable, Value: Value{Quantity: 1024 * mi}},
			},
			notes: []string{"evictionSoft[memory.available]: a soft threshold without a grace period is a hard one"},
		},
		{
			name: "all memory eviction values in percentages",
			config: Config{
				Hard: entries{"memory.available": "10%"}, Soft: entries{"memory.available": "30%"},
				SoftGracePeriod: entries{"memory.available": "30s"}, MinimumReclaim: entries{"memory.available": "5%"},
			},
			want: []Threshold{
				{Signal: memory, Value: Value{Percentage: 0.1}, MinReclaim: Value{Percentage: 0.05}},
				{Signal: memory, Value: Value{Percentage: 0.3}, Grace: 30 * time.Second, MinReclaim: Value{Percentage: 0.05}},
			},
		},
		{
			name: "disk eviction values",
			config: Config{
				Hard:            entries{"imagefs.available": "150Mi", "nodefs.available": "10.5%"},
				Soft:            entries{"imagefs.available": "300Mi", "nodefs.available": "20.5%"},
				SoftGracePeriod: entries{"imagefs.available": "30s", "nodefs.available": "1m30s"},
				MinimumReclaim:  entries{"imagefs.available": "2Gi", "nodefs.available": "150%"},
			},
			want: []Threshold{
				{Signal: nodefs, Value: Value{Percentage: 0.105}, MinReclaim: Value{Percentage: 1.5}},
				{Signal: nodefs, Value: Value{Percentage: 0.205}, Grace: 90 * time.Second, MinReclaim: Value{Percentage: 1.5}},
				{Signal: imagefs, Value: Value{Quantity: 150 * mi}, MinReclaim: Value{Quantity: 2 * gi}},
				{Signal: imagefs, Value: Value{Quantity: 300 * mi}, Grace: 30 * time.Second, MinReclaim: Value{Quantity: 2 * gi}},
			},
		},
		{
			name:   "inodes and PIDs",
			config: Config{Hard: entries{"nodefs.inodesFree": "1k", "imagefs.inodesFree": "5%", "pid.available": "1e3"}},
			want: []Threshold{
				{Signal: probe.NodeFsInodesFree, Value: Value{Quantity: 1000}},
				{Signal: probe.ImageFsInodesFree, Value: Value{Percentage: 0.05}},
				{Signal: probe.PIDAvailable, Value: Value{Quantity: 1000}},
			},
		},
		{
			name: "0% and 100% drop the entry, even without a grace period",
			config: Config{
				Hard: entries{"memory.available": "0%", "nodefs.available": "100%"},
				Soft: entries{"memory.available": "100%", "nodefs.available": "0%"},
			},
		},
		{
			name:   "0.0% and its like do not",
			config: Config{Hard: entries{"memory.available": "0.0%", "nodefs.available": "NaN%", "imagefs.available": "-0%", "pid.available": "0%%"}},
			want:   []Threshold{{Signal: memory}, {Signal: nodefs}, {Signal: imagefs}, {Signal: probe.PIDAvailable}},
			notes: []string{
				"evictionHard[imagefs.available]: a threshold of nothing is never met; write 0% for no threshold",
				"evictionHard[memory.available]: a threshold of nothing is never met; write 0% for no threshold",
				"evictionHard[nodefs.available]: a threshold of nothing is never met; write 0% for no threshold",
				"evictionHard[pid.available]: a threshold of nothing is never met; write 0% for no threshold",
			},
		},
		{
			name:   "100.0% does not either",
			config: Config{Hard: entries{"memory.available": "100.0%"}},
			want:   []Threshold{{Signal: memory, Value: Value{Percentage: 1}}},
		},
		{
			name:   "fractions count as the next whole",
			config: Config{Hard: entries{"memory.available": "1500m", "nodefs.available": "1e-999"}},
			want:   []Threshold{{Signal: memory, Value: Value{Quantity: 2}}, {Signal: nodefs, Value: Value{Quantity: 1}}},
		},
		{
			name:   "more than an int64",
			config: Config{Hard: entries{"memory.available": "9223372036854775808", "nodefs.available": "1e20", "imagefs.available": "100Ei"}},
			want: []Threshold{
				{Signal: memory, Value: Value{Quantity: math.MaxInt64}},
				{Signal: nodefs, Value: Value{Quantity: math.MaxInt64}},
				{Signal: imagefs, Value: Value{Quantity: math.MaxInt64}},
			},
		},
		{
			name: "soft with no grace is hard, and is copied as such",
			config: Config{
				Soft: entries{"memory.available": "1Gi"}, SoftGracePeriod: entries{"memory.available": "0s"},
				EnforceNodeAllocatable: []string{"pods"},
			},
			want: []Threshold{
				{Signal: memory, Value: Value{Quantity: gi}},
				{Signal: probe.AllocatableMemoryAvailable, Value: Value{Quantity: gi}},
			},
			notes: []string{"evictionSoft[memory.available]: a soft threshold without a grace period is a hard one"},
		},
		{
			name: "allocatable memory of its own",
			config: Config{
				Hard:                   entries{"memory.available": "2Gi", "allocatableMemory.available": "1Gi"},
				EnforceNodeAllocatable: []string{"pods"},
			},
			want: []Threshold{
				{Signal: memory, Value: Value{Quantity: 2 * gi}},
				{Signal: probe.AllocatableMemoryAvailable, Value: Value{Quantity: gi}},
				{Signal: probe.AllocatableMemoryAvailable, Value: Value{Quantity: 2 * gi}},
			},
		},
		{
			name: "containerfs is ignored",
			config: Config{
				Hard:            entries{"containerfs.available": "10%", "nodefs.available": "10%"},
				Soft:            entries{"containerfs.inodesFree": "5%"},
				SoftGracePeriod: entries{"containerfs.inodesFree": "1m"},
			},
			want: []Threshold{{Signal: nodefs, Value: Value{Percentage: 0.1}}},
			notes: []string{
				"evictionHard[containerfs.available]: ignored, as by the kubelet: the thresholds of nodefs and imagefs apply instead",
				"evictionSoft[containerfs.inodesFree]: ignored, as by the kubelet: the thresholds of nodefs and imagefs apply instead",
			},
		},
		{
			name: "grace periods and minimum reclaims without a threshold",
			config: Config{
				SoftGracePeriod: entries{"memory.available": "1m"},
				MinimumReclaim:  entries{"memory.available": "1Gi"},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 10 { // maps have no order; the result has
				got, notes, err := Parse(test.config)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Fatalf("thresholds: -want +got:\n%s", diff)
				}
				var texts []string
				for _, note := range notes {
					texts = append(texts, note.String())
				}
				if diff := cmp.Diff(test.notes, texts); diff != "" {
					t.Fatalf("notes: -want +got:\n%s", diff)
				}
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	const memory = "memory.available"
	format := resource.ErrFormatWrong.Error()
	hard := func(value string) Config { return Config{Hard: entries{memory: value}} }
	soft := func(value, grace string) Config {
		return Config{Soft: entries{memory: value}, SoftGracePeriod: entries{memory: grace}}
	}
	reclaim := func(value string) Config { return Config{MinimumReclaim: entries{memory: value}} }
	for _, test := range []struct {
		name   string
		config Config
		want   string
	}{
		{"unknown hard signal", Config{Hard: entries{"mem.available": "junk"}}, "evictionHard[mem.available]: unsupported eviction signal mem.available"},
		{"unknown soft signal", Config{Soft: entries{"mem.available": "0%"}}, "evictionSoft[mem.available]: unsupported eviction signal mem.available"},
		{"unknown grace signal", Config{SoftGracePeriod: entries{"mem.available": "30s"}}, "evictionSoftGracePeriod[mem.available]: unsupported eviction signal mem.available"},
		{"unknown reclaim signal", Config{MinimumReclaim: entries{"mem.available": "300Mi"}}, "evictionMinimumReclaim[mem.available]: unsupported eviction signal mem.available"},
		{"signals are case-sensitive", Config{Hard: entries{"Memory.available": "1Gi"}}, "evictionHard[Memory.available]: unsupported eviction signal Memory.available"},

		{"negative percentage", hard("-15%"), "evictionHard[memory.available]: eviction percentage threshold memory.available must be >= 0%: -15%"},
		{"percentage above 100", hard("110%"), "evictionHard[memory.available]: eviction percentage threshold memory.available must be <= 100%: 110%"},
		{"infinite percentage", hard("Inf%"), "evictionHard[memory.available]: eviction percentage threshold memory.available must be <= 100%: Inf%"},
		{"junk percentage", hard("10..5%"), `evictionHard[memory.available]: strconv.ParseFloat: parsing "10..5": invalid syntax`},
		{"percentage without a number", hard("%"), `evictionHard[memory.available]: strconv.ParseFloat: parsing "": invalid syntax`},
		{"percentage out of range", hard("1e99%"), `evictionHard[memory.available]: strconv.ParseFloat: parsing "1e99": value out of range`},
		{"percent sign in the middle", hard("12%345"), "evictionHard[memory.available]: " + format},

		{"negative quantity", hard("-150Mi"), "evictionHard[memory.available]: eviction threshold memory.available must be positive: -150Mi"},
		{"negative fraction", hard("-0.5"), "evictionHard[memory.available]: eviction threshold memory.available must be positive: -500m"},
		{"zero quantity", hard("0"), "evictionHard[memory.available]: eviction threshold memory.available must be positive: 0"},
		{"zero bytes", hard("0Mi"), "evictionHard[memory.available]: eviction threshold memory.available must be positive: 0"},
		{"empty quantity", hard(""), "evictionHard[memory.available]: " + format},
		{"junk quantity", hard("1 Gi"), "evictionHard[memory.available]: " + format},
		{"endless quantity", hard("1e-999999999"), "evictionHard[memory.available]: " + resource.ErrSuffix.Error()},

		{"soft quantity", soft("-150Mi", "30s"), "evictionSoft[memory.available]: eviction threshold memory.available must be positive: -150Mi"},
		{"soft without grace", Config{Soft: entries{memory: "1Gi"}}, "evictionSoft[memory.available]: grace period must be specified for the soft eviction threshold memory.available"},
		{"soft with grace of another", Config{Soft: entries{memory: "1Gi"}, SoftGracePeriod: entries{"nodefs.available": "1m"}}, "evictionSoft[memory.available]: grace period must be specified for the soft eviction threshold memory.available"},
		{"soft containerfs without grace", Config{Soft: entries{"containerfs.available": "1Gi"}}, "evictionSoft[containerfs.available]: grace period must be specified for the soft eviction threshold containerfs.available"},
		{"negative grace", soft("1Gi", "-30s"), "evictionSoftGracePeriod[memory.available]: invalid eviction grace period specified: -30s, must be a positive value"},
		{"junk grace", soft("1Gi", "30mins"), `evictionSoftGracePeriod[memory.available]: time: unknown unit "mins" in duration "30mins"`},

		{"zero reclaim percentage", reclaim("0%"), "evictionMinimumReclaim[memory.available]: eviction percentage minimum reclaim memory.available must be positive: 0%"},
		{"negative reclaim percentage", reclaim("-15%"), "evictionMinimumReclaim[memory.available]: eviction percentage minimum reclaim memory.available must be positive: -15%"},
		{"junk reclaim percentage", reclaim("10..5%"), `evictionMinimumReclaim[memory.available]: strconv.ParseFloat: parsing "10..5": invalid syntax`},
		{"negative reclaim", reclaim("-300Mi"), "evictionMinimumReclaim[memory.available]: negative eviction minimum reclaim specified for memory.available"},
		{"empty reclaim", reclaim(""), "evictionMinimumReclaim[memory.available]: " + format},

		{"negative transition period", Config{TransitionPeriod: -time.Second}, "evictionPressureTransitionPeriod: -1s is negative"},
		{
			"all of them, in order",
			Config{
				Hard:            entries{"pid.available": "0", "memory.available": "0", "x": "1", "nodefs.available": "10%"},
				Soft:            entries{"memory.available": "1Gi", "imagefs.available": "1Gi"},
				SoftGracePeriod: entries{"memory.available": "-1s"},
				MinimumReclaim:  entries{"memory.available": "-1"},
			},
			strings.Join([]string{
				"evictionSoft[imagefs.available]: grace period must be specified for the soft eviction threshold imagefs.available",
				"evictionHard[memory.available]: eviction threshold memory.available must be positive: 0",
				"evictionMinimumReclaim[memory.available]: negative eviction minimum reclaim specified for memory.available",
				"evictionSoftGracePeriod[memory.available]: invalid eviction grace period specified: -1s, must be a positive value",
				"evictionHard[pid.available]: eviction threshold pid.available must be positive: 0",
				"evictionHard[x]: unsupported eviction signal x",
			}, "\n"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 10 {
				thresholds, _, err := Parse(test.config)
				if err == nil || thresholds != nil {
					t.Fatalf("got %v, %v; want only an error", thresholds, err)
				}
				if diff := cmp.Diff(test.want, err.Error()); diff != "" {
					t.Fatalf("-want +got:\n%s", diff)
				}
			}
		})
	}
}

// A caller that knows the line of each entry must be able to find it.
func TestParseErrorFields(t *testing.T) {
	_, _, err := Parse(Config{Hard: entries{"pid.available": "0", "memory.available": "0"}})
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T is not a join of errors", err)
	}
	var keys []string
	for _, err := range joined.Unwrap() {
		field, ok := errors.AsType[*FieldError](err)
		if !ok || field.Field != FieldHard {
			t.Fatalf("%v: %T is not a FieldError of %s", err, err, FieldHard)
		}
		keys = append(keys, field.Key)
	}
	if diff := cmp.Diff([]string{"memory.available", "pid.available"}, keys); diff != "" {
		t.Errorf("keys: -want +got:\n%s", diff)
	}
}
