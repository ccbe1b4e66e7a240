package main

import (
	"errors"
	"os"
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

// Of the loads, nobody else on the machine presses on the filesystem.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a control plane; -short is set")
	}
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	program.Test(t, run, []string{
		`latency_ext4_go_p50=-?\d+\.\d+ ms budget=0.5`,
		`latency_ext4_go_p99=-?\d+\.\d+ ms budget=5`,
		`latency_ext4_node_p50=\d+\.\d+ ms budget=\d+\.?\d* peer=floor:\d+\.\d+`,
		`latency_ext4_node_p99=\d+\.\d+ ms budget=25 peer=floor:\d+\.\d+`,
		`latency_ext4_missed_by_kernel=\d of_2 budget=0`,
		`latency_ext4_far_go_p50=-?\d+\.\d+ ms budget=0.5`,
		`latency_ext4_burst_go_max=-?\d+\.\d+ ms budget=205`,
	}, "-only", "ext4", "-crossings", "2", "-peer", "")
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
		{"by others, before", slope{available: 79}, 0, 0, 79, pressure.ErrForeign},
		{"cannot be read", slope{available: 100, err: broken}, 0, 0, 100, broken},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				c, err := pressure.Cross(&test.slope, 80, 10)
				if !errors.Is(err, test.err) || test.slope.available != test.left {
					t.Errorf("%d left, %v", test.slope.available, err)
				}
				if err == nil && (c.Above.Sub(begin) != test.above || c.Below.Sub(begin) != test.below) {
					t.Errorf("between %s and %s, want %s and %s", c.Above.Sub(begin), c.Below.Sub(begin), test.above, test.below)
				}
			})
		})
	}
	if _, err := pressure.Cross(&slope{available: 1}, 0, 0); err == nil || errors.Is(err, pressure.ErrForeign) {
		t.Errorf("steps of nothing: %v", err)
	}
}

func TestSummarize(t *testing.T) {
	for n, want := range map[int]summary{
		0: {}, 1: {1, 1, 1}, 2: {1, 2, 2}, 3: {2, 3, 3}, 50: {25, 50, 50}, 100: {50, 99, 100}, 101: {51, 100, 101},
	} {
		var all []time.Duration
		for i := range n {
			all = append(all, time.Duration(n-i)*time.Millisecond)
		}
		if got := summarize(all); got != want {
			t.Errorf("of 1 to %d: %v, want %v", n, got, want)
		}
	}
}
