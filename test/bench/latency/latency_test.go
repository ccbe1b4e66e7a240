package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(m.Run())
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		env  map[string]string
		want options // none: an error
	}{
		{"defaults", nil, nil, options{crossings: 50, peerCrossings: 6}},
		{"environment", nil, map[string]string{"CROSSINGS": "7", "PEER": "kubelet", "PEER_CROSSINGS": "2"}, options{crossings: 7, peerCrossings: 2, peer: "kubelet"}},
		{
			"flags win",
			[]string{"-crossings", "8", "-peer", "", "-only", "disk"},
			map[string]string{"CROSSINGS": "7", "PEER": "kubelet"},
			options{crossings: 8, peerCrossings: 6, only: "disk"},
		},
		{"no number", nil, map[string]string{"CROSSINGS": "many"}, options{}},
		{"no crossing", []string{"-crossings", "0"}, nil, options{}},
		{"another peer", []string{"-peer", "cadvisor"}, nil, options{}},
		{"another load", []string{"-only", "cpu"}, nil, options{}},
	} {
		var got options
		err := program.Run(t.Context(), "test", test.args, io.Discard, io.Discard, func(p *program.P) {
			got = parse(p, func(name string) string { return test.env[name] })
		})
		if got != test.want || (err != nil) != (test.want == options{}) {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
	}
}

// Of the loads, nobody else on the machine presses on the filesystem.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	program.Test(t, run, []string{
		`latency_disk_go_p50=-?\d+\.\d+ ms budget=0.5`,
		`latency_disk_go_p99=-?\d+\.\d+ ms budget=5`,
		`latency_disk_node_p50=\d+\.\d+ ms budget=5 peer=floor:\d+\.\d+`,
		`latency_disk_node_p99=\d+\.\d+ ms budget=25 peer=floor:\d+\.\d+`,
		`latency_disk_missed_by_kernel=\d of_2 budget=0`,
	}, "-only", "disk", "-crossings", "2", "-peer", "")
}

// slope is a Ramp by arithmetic.
type slope struct {
	available int64
	read      time.Duration // what it takes to read, after the reading
	step      time.Duration // what a step takes, before it has an effect
	jitter    []int64       // what others take before each reading
	err       error
}

func (s *slope) Available() (int64, error) {
	if len(s.jitter) > 0 {
		s.available -= s.jitter[0]
		s.jitter = s.jitter[1:]
	}
	available := s.available
	time.Sleep(s.read)
	return available, s.err
}

func (s *slope) Take(n int64) error {
	time.Sleep(s.step)
	s.available -= n
	return nil
}

func (s *slope) Give(n int64) error { return s.Take(-n) }
func (s *slope) Close() error       { return nil }

func TestCross(t *testing.T) {
	const ms = time.Millisecond
	broken := errors.New("broken")
	for _, test := range []struct {
		name         string
		slope        slope
		above, below time.Duration // since the beginning
		left         int64
		err          error
	}{
		// 100, 90, 80: the limit itself is enough. 70 is not.
		{"by a step", slope{available: 100, read: 1 * ms, step: 4 * ms}, 10 * ms, 16 * ms, 70, nil},
		{"at the first step", slope{available: 80, read: 1 * ms, step: 4 * ms}, 0, 6 * ms, 70, nil},
		{"by others, meanwhile", slope{available: 100, read: 1 * ms, step: 4 * ms, jitter: []int64{0, 15}}, 0, 6 * ms, 75, nil},
		{"by others, before", slope{available: 79}, 0, 0, 79, errForeign},
		{"cannot be read", slope{available: 100, err: broken}, 0, 0, 100, broken},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				c, err := cross(&test.slope, 80, 10)
				if !errors.Is(err, test.err) || test.slope.available != test.left {
					t.Errorf("%d left, %v", test.slope.available, err)
				}
				if err == nil && (c.Above.Sub(begin) != test.above || c.Below.Sub(begin) != test.below) {
					t.Errorf("between %s and %s, want %s and %s", c.Above.Sub(begin), c.Below.Sub(begin), test.above, test.below)
				}
			})
		})
	}
	if _, err := cross(&slope{available: 1}, 0, 0); err == nil || errors.Is(err, errForeign) {
		t.Errorf("steps of nothing: %v", err)
	}
}

func TestApproach(t *testing.T) {
	for _, test := range []struct {
		available, want int64
		there           bool
	}{
		{1000, 900, false}, // a stride
		{190, 150, false},  // what is left of one
		{170, 170, true},
		{160, 160, true},
		{140, 140, true},
		{130, 130, true},
		{120, 150, false},
		{20, 150, false}, // all of it, at once
	} {
		s := &slope{available: test.available}
		there, err := approach(s, 130, 170, 100)
		if there != test.there || s.available != test.want || err != nil {
			t.Errorf("%d: %v at %d (%v), want %v at %d", test.available, there, s.available, err, test.there, test.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	numbers := func(n int) []time.Duration {
		var all []time.Duration
		for i := range n {
			all = append(all, time.Duration(i+1))
		}
		return all
	}
	for _, test := range []struct {
		n    int
		p    float64
		want time.Duration
	}{
		{0, 50, 0},
		{1, 50, 1},
		{1, 99, 1},
		{2, 50, 1},
		{3, 50, 2},
		{50, 50, 25},
		{50, 99, 50},
		{50, 100, 50},
		{100, 50, 50},
		{100, 99, 99},
		{100, 100, 100},
		{101, 99, 100},
		{6, 0, 1},
	} {
		if got := percentile(numbers(test.n), test.p); got != test.want {
			t.Errorf("percentile %g of 1 to %d: %d, want %d", test.p, test.n, got, test.want)
		}
	}
}

func TestSummarize(t *testing.T) {
	unsorted := []time.Duration{3, -1, 2}
	if got, want := summarize(unsorted), (summary{2, 3, 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if unsorted[0] != 3 {
		t.Error("the durations were sorted in place")
	}
	if got := summarize(nil); got != (summary{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestFigures(t *testing.T) {
	var out strings.Builder
	program.Print(&out, figures("go", summary{123456, 4 * time.Millisecond, time.Second}, goBudget, nil))
	program.Print(&out, figures("node", summary{1, 2, 3}, nodeBudget, []time.Duration{time.Millisecond, 2 * time.Millisecond}))
	const want = `RESULT go_p50=0.123 ms budget=0.5
RESULT go_p99=4.000 ms budget=5
RESULT go_max=1000.000 ms
RESULT node_p50=0.000 ms budget=5 peer=floor:1.000
RESULT node_p99=0.000 ms budget=25 peer=floor:2.000
RESULT node_max=0.000 ms peer=floor:2.000
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

func TestIdle(t *testing.T) {
	then, err := parseCPUTime("cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 1 2 3\n")
	if err != nil || then != (cpuTime{100, 70}) {
		t.Errorf("got %+v, %v", then, err)
	}
	now, err := parseCPUTime("cpu  20 10 20 120 10 5 5 10 7 0\n")
	if err != nil || now.idleSince(then) != 0.6 {
		t.Errorf("got %+v, %v, idle %g", now, err, now.idleSince(then))
	}
	if got := then.idleSince(then); got != 0 {
		t.Errorf("within no time: %g", got)
	}
	if _, err := parseCPUTime("intr 1 2\n"); err == nil {
		t.Error("another line: no error")
	}
	if _, err := readCPUTime(); err != nil {
		t.Error(err)
	}
}
