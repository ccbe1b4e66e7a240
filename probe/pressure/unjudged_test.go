package pressure

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// parseRules returns rules of a clause each, which is their type.
func parseRules(t *testing.T, clauses ...string) (rules []Rule) {
	t.Helper()
	for _, when := range clauses {
		clause, err := ParseClause(when)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, Rule{Type: when, When: []Clause{clause}})
	}
	return rules
}

// Which conditions could not be judged since the start, by what could be read: at the
// first snapshot, and at a second one.
func TestUnjudged(t *testing.T) {
	thresholds, _, err := Parse(Config{Hard: map[string]string{"memory.available": "5", "nodefs.available": "5", "imagefs.available": "5"}})
	if err != nil {
		t.Fatal(err)
	}
	rules := parseRules(t, "MemoryPressure", "memory.available < 10", "io.full.avg10 > 20%", "nodefs.available < 10 and io.full.avg10 > 20%")
	fine := probe.Observation{Available: 50, Capacity: 100, OK: true}
	low := probe.Observation{Available: 1, Capacity: 100, OK: true}
	gone := errors.New("no such file")
	unread := probe.Observation{Err: gone}
	stalls := probe.Stall{OK: true, FullOK: true}
	type reading struct {
		memory, nodefs, imagefs probe.Observation
		io                      probe.Stall
	}
	well, nothing := reading{fine, fine, fine, stalls}, reading{unread, unread, unread, probe.Stall{Err: gone}}
	noImages := reading{fine, fine, unread, stalls}
	joined := probe.Observation{Err: errors.Join(gone, errors.New("no controller"))}
	for name, test := range map[string]struct {
		first, second reading
		want          []string
	}{
		"all is well": {well, well, nil},
		"nothing can be read": {
			nothing, nothing, []string{
				"MemoryPressure could not be judged yet: memory.available: no such file",
				"DiskPressure could not be judged yet: imagefs.available: no such file; nodefs.available: no such file",
				"memory.available < 10 could not be judged yet: memory.available: no such file",
				"io.full.avg10 > 20% could not be judged yet: io.full.avg10: no such file",
				"nodefs.available < 10 and io.full.avg10 > 20% could not be judged yet: io.full.avg10: no such file; nodefs.available: no such file",
			},
		},
		"no more than at first":  {nothing, well, nil},
		"not any more":           {well, nothing, nil},
		"no such things here":    {reading{fine, fine, probe.Observation{}, probe.Stall{}}, reading{fine, fine, probe.Observation{}, probe.Stall{}}, nil},
		"a kernel without PSI":   {reading{fine, fine, fine, probe.Stall{Err: fmt.Errorf("psi=0: %w", errors.ErrUnsupported)}}, reading{fine, fine, fine, probe.Stall{Err: errors.ErrUnsupported}}, nil},
		"what is read is enough": {reading{fine, low, unread, stalls}, reading{fine, low, unread, stalls}, nil},
		"what is read is not enough": {
			noImages, noImages, []string{"DiskPressure could not be judged yet: imagefs.available: no such file"},
		},
		"several reasons": {
			reading{joined, fine, fine, stalls}, reading{joined, fine, fine, stalls}, []string{
				"MemoryPressure could not be judged yet: memory.available: no such file, no controller",
				"memory.available < 10 could not be judged yet: memory.available: no such file, no controller",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, j := NewEvaluator(thresholds, time.Minute), NewJudge(rules)
			// What a Node says from before is not what was read.
			e.Seed(MemoryPressure, True, time.Unix(900, 0))
			var s probe.Snapshot
			var verdicts [NumConditions]Verdict
			for i, r := range []reading{test.first, test.second} {
				s = probe.Snapshot{Time: time.Unix(1000+int64(i), 0)}
				s.Signals[probe.MemoryAvailable], s.Signals[probe.NodeFsAvailable], s.Signals[probe.ImageFsAvailable] = r.memory, r.nodefs, r.imagefs
				s.Pressure[probe.IO] = r.io
				copy(verdicts[:], e.Observe(&s))
				j.Observe(&s, &verdicts)
			}
			// A reload starts nothing anew.
			e.Change(thresholds, time.Minute)
			j.Change(rules)
			var got []string
			for _, err := range append(e.Unjudged(&s), j.Unjudged(&s, &verdicts)...) {
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A condition is unsupported if the machine does not have what decides it, and not if
// some of that cannot be read.
func TestLacks(t *testing.T) {
	gone, none := errors.New("no such file"), fmt.Errorf("psi=0: %w", errors.ErrUnsupported)
	pids, _, err := Parse(Config{Hard: map[string]string{"pid.available": "10%"}})
	if err != nil {
		t.Fatal(err)
	}
	rules := parseRules(t, "io.full.avg10 > 20%", "nodefs.available < 10 and io.full.avg10 > 20%", "swap.available < 10")
	for name, test := range map[string]struct {
		pids, nodefs, io error
		pid              bool
		want             []bool
	}{
		"all is read":                 {nil, nil, nil, false, []bool{false, false, true}},
		"no PSI":                      {nil, nil, none, false, []bool{true, true, true}},
		"PSI cannot be read":          {nil, nil, gone, false, []bool{false, false, true}},
		"no PSI, and a disk is gone":  {nil, gone, none, false, []bool{true, false, true}},
		"a node that is a container":  {none, nil, nil, true, []bool{false, false, true}},
		"pid_max that cannot be read": {gone, nil, nil, false, []bool{false, false, true}},
	} {
		e, j := NewEvaluator(pids, time.Minute), NewJudge(rules)
		var verdicts [NumConditions]Verdict
		var s probe.Snapshot
		for i := range 2 {
			s = probe.Snapshot{Time: time.Unix(1000, 0).Add(time.Duration(i) * time.Hour)}
			s.Signals[probe.PIDAvailable] = probe.Observation{Available: 100, Capacity: 100, OK: test.pids == nil, Err: test.pids}
			s.Signals[probe.NodeFsAvailable] = probe.Observation{Available: 1, Capacity: 100, OK: test.nodefs == nil, Err: test.nodefs}
			s.Pressure[probe.IO] = probe.Stall{OK: test.io == nil, FullOK: test.io == nil, Err: test.io}
			copy(verdicts[:], e.Observe(&s))
			j.Observe(&s, &verdicts)
		}
		var got []bool
		for i := range rules {
			got = append(got, j.Lacks(i, &s, &verdicts))
		}
		if pid := e.Lacks(PIDPressure, &s); pid != test.pid || !slices.Equal(got, test.want) || e.Lacks(MemoryPressure, &s) {
			t.Errorf("%s: PIDPressure %t, rules %v; want %t, %v", name, pid, got, test.pid, test.want)
		}
	}
}
