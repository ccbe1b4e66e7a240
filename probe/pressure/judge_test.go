package pressure

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

func rules(t testing.TB, when ...string) []Rule {
	t.Helper()
	r := Rule{Type: "example.com/Bad", Reason: "Bad", OKReason: "Good"}
	for _, text := range when {
		clause, err := ParseClause(text)
		if err != nil {
			t.Fatal(err)
		}
		r.When = append(r.When, clause)
	}
	return []Rule{r}
}

// node is a snapshot of a healthy node.
func node(after time.Duration) *probe.Snapshot {
	s := &probe.Snapshot{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(after)}
	s.Signals[probe.MemoryAvailable] = probe.Observation{Available: 8 << 30, Capacity: 16 << 30, OK: true}
	s.Pressure[probe.MemoryResource] = probe.Stall{OK: true, FullOK: true}
	s.NodeFs = probe.Filesystem{Path: "/", Mount: probe.Mount{ID: 1, MountPoint: "/", Options: "rw", SuperOptions: "rw"}}
	return s
}

func noVerdicts() *[NumConditions]Verdict {
	var v [NumConditions]Verdict
	for c := range v {
		v[c] = Verdict{Condition: Condition(c), Status: False}
	}
	return &v
}

// What each kind of term is true of, and what is said about it.
func TestJudgeTerms(t *testing.T) {
	for _, test := range []struct {
		when    string
		change  func(*probe.Snapshot, *[NumConditions]Verdict)
		status  Status
		reason  string
		message string
	}{
		{"MemoryPressure", nil, False, "Good", "does not hold: MemoryPressure"},
		{"MemoryPressure", func(_ *probe.Snapshot, v *[NumConditions]Verdict) {
			v[MemoryPressure] = Verdict{
				Status: True, Threshold: Threshold{Signal: probe.MemoryAvailable, Value: Value{Quantity: 100 << 20}},
				Observation: probe.Observation{Available: 98765432, Capacity: 16 << 30, OK: true}, Limit: 100 << 20,
			}
		}, True, "Bad", "memory.available is 94.2Mi, below 100Mi"},
		{"MemoryPressure", func(_ *probe.Snapshot, v *[NumConditions]Verdict) { v[MemoryPressure].Status = True }, True, "Bad", "MemoryPressure is True"},
		{"MemoryPressure", func(s *probe.Snapshot, v *[NumConditions]Verdict) {
			v[MemoryPressure].Frozen = true
			s.Signals[probe.MemoryAvailable] = probe.Observation{Err: errors.New("read /proc/meminfo: gone")}
		}, Unknown, "SignalUnavailable", "MemoryPressure cannot be read: read /proc/meminfo: gone"},
		{"memory.available < 50%", nil, False, "Good", "does not hold: memory.available < 50%"},
		{"memory.available < 50%", func(s *probe.Snapshot, _ *[NumConditions]Verdict) {
			s.Signals[probe.MemoryAvailable].Available--
		}, True, "Bad", "memory.available is 8Gi, below 8Gi"},
		{"nodefs.available < 1Gi", nil, Unknown, "SignalUnavailable", "nodefs.available is not known on this node"},
		{"memory.full.avg60 > 20% and memory.full.avg10 > 20%", func(s *probe.Snapshot, _ *[NumConditions]Verdict) {
			s.Pressure[probe.MemoryResource].Full = probe.StallLine{Avg10: 0.2, Avg60: 0.9}
		}, False, "Good", "does not hold: memory.full.avg60 > 20% and memory.full.avg10 > 20%"},
		{"memory.full.avg60 > 20% and memory.full.avg10 > 20%", func(s *probe.Snapshot, _ *[NumConditions]Verdict) {
			s.Pressure[probe.MemoryResource].Full = probe.StallLine{Avg10: 0.2001, Avg60: 0.337}
		}, True, "Bad", "memory.full.avg60 is 34%, above 20%, memory.full.avg10 is 20%, above 20%"},
		{"cpu.some.avg300 > 10%", nil, Unknown, "SignalUnavailable", "cpu.some.avg300 is not known on this node"},
		{"cpu.some.avg300 > 10%", func(s *probe.Snapshot, _ *[NumConditions]Verdict) {
			s.Pressure[probe.CPU].Err = errors.New("read /proc/pressure/cpu: gone")
		}, Unknown, "SignalUnavailable", "cpu.some.avg300 cannot be read: read /proc/pressure/cpu: gone"},
		{"nodefs.readonly", nil, False, "Good", "does not hold: nodefs.readonly"},
		{"nodefs.readonly", func(s *probe.Snapshot, _ *[NumConditions]Verdict) { s.NodeFs.Mount.SuperOptions = "ro" }, True, "Bad", "nodefs at / is read-only"},
		{"nodefs.readonly", func(s *probe.Snapshot, _ *[NumConditions]Verdict) { s.NodeFs.GaveUp = true }, True, "Bad", "nodefs at / is read-only"},
		{"imagefs.readonly", nil, Unknown, "SignalUnavailable", "imagefs is not known on this node"},
		// One that is known to be false decides, and one that is true.
		{"memory.available < 1Gi and cpu.some.avg10 > 10%", nil, False, "Good", "does not hold: memory.available < 1Gi and cpu.some.avg10 > 10%"},
	} {
		s, v := node(0), noVerdicts()
		if test.change != nil {
			test.change(s, v)
		}
		findings, changed := NewJudge(rules(t, test.when)).Observe(s, v)
		f := findings[0]
		if !changed || f.Status != test.status || f.Reason != test.reason || f.Message != test.message || !f.Since.Equal(s.Time) {
			t.Errorf("%s: %+v, changed %v; want %v %s %s", test.when, f, changed, test.status, test.reason, test.message)
		}
	}
}

// A condition over time: M is memory short, ? not readable, + enough; at each
// second what it says.
func TestJudgeOverTime(t *testing.T) {
	for name, test := range map[string]struct {
		wait, hold     time.Duration
		every          time.Duration
		memory, status string
	}{
		"at once":                 {0, 0, time.Second, "+MM+M+", "FTTFTF"},
		"held":                    {0, 2 * time.Second, time.Second, "+M+++M+M+++", "FTTFFTTTTFF"},
		"for":                     {2 * time.Second, 0, time.Second, "+MM+MMMM+", "FFFFFFTTF"},
		"for and held":            {2 * time.Second, 2 * time.Second, time.Second, "MMM++M+", "FFTTFFF"},
		"unreadable at first":     {0, 0, 10 * time.Second, "????????M", "UUUUUUUUT"},
		"unreadable for a moment": {0, 0, 10 * time.Second, "M?????M+?????+", "TTTTTTTFFFFFFF"},
		"unreadable for a minute": {0, 0, 10 * time.Second, "M?????????M", "TTTTTTUUUUT"},
	} {
		r := rules(t, "memory.available < 1Gi")
		r[0].For, r[0].Hold = test.wait, test.hold
		j := NewJudge(r)
		got := ""
		for i, memory := range test.memory {
			s := node(time.Duration(i) * test.every)
			switch memory {
			case 'M':
				s.Signals[probe.MemoryAvailable].Available = 1
			case '?':
				s.Signals[probe.MemoryAvailable] = probe.Observation{Err: errors.New("gone")}
			}
			findings, changed := j.Observe(s, noVerdicts())
			letter := findings[0].Status.String()[:1]
			if changed != (i == 0 || !strings.HasSuffix(got, letter)) {
				t.Errorf("%s: at %d: changed is %v", name, i, changed)
			}
			got += letter
		}
		if got != test.status {
			t.Errorf("%s: %s gives %s, want %s", name, test.memory, got, test.status)
		}
	}
}

// The words are those of the change, whatever is measured later.
func TestJudgeDoesNotChurn(t *testing.T) {
	j := NewJudge(rules(t, "memory.available < 1Gi"))
	s := node(0)
	s.Signals[probe.MemoryAvailable].Available = 900 << 20
	first, _ := j.Observe(s, noVerdicts())
	before := first[0]
	for i := range 100 {
		s = node(time.Duration(i) * time.Second)
		s.Signals[probe.MemoryAvailable].Available = int64(i) << 20
		if after, changed := j.Observe(s, noVerdicts()); changed || after[0] != before {
			t.Fatalf("at %d: %+v, was %+v", i, after[0], before)
		}
	}
}

func TestJudgeSeed(t *testing.T) {
	r := rules(t, "memory.available < 1Gi")
	r[0].Hold = 10 * time.Second
	j := NewJudge(r)
	j.Seed("example.com/Other", "X", "y", node(0).Time)
	j.Seed("example.com/Bad", "Bad", "memory.available is 5Mi, below 1Gi", node(0).Time)
	for i, want := range []Status{True, True, False} {
		findings, _ := j.Observe(node(time.Duration(i)*9*time.Second), noVerdicts())
		if f := findings[0]; f.Status != want || want == True && f.Message != "memory.available is 5Mi, below 1Gi" {
			t.Errorf("at %d: %+v, want %v", i, f, want)
		}
	}
}

// Another configuration: a rule that stays keeps what is known, one that changed is
// judged and said anew, and one that is gone is gone.
func TestJudgeChange(t *testing.T) {
	named := func(kind, when string) Rule {
		r := rules(t, when)[0]
		r.Type, r.Hold = kind, time.Minute
		return r
	}
	short := func(after time.Duration) *probe.Snapshot {
		s := node(after)
		s.Signals[probe.MemoryAvailable].Available = 100
		return s
	}
	j := NewJudge([]Rule{named("a", "memory.available < 1Gi"), named("b", "memory.available < 1Gi"), named("c", "memory.available < 1Gi")})
	first, _ := j.Observe(short(0), noVerdicts())
	was := first[0]
	j.Change([]Rule{named("a", "memory.available < 1Gi"), named("c", "memory.available < 2Gi"), named("d", "nodefs.readonly")})
	got, changed := j.Observe(short(time.Second), noVerdicts())
	if len(got) != 3 || !changed || got[0] != was {
		t.Errorf("changed %v: %+v", changed, got)
	}
	if c := got[1]; c.Type != "c" || c.Status != True || c.Message != "memory.available is 100, below 2Gi" {
		t.Errorf("a rule that changed: %+v", c)
	}
	if d := got[2]; d.Type != "d" || d.Status != False {
		t.Errorf("a new rule: %+v", d)
	}
	// The hold goes on.
	got, _ = j.Observe(node(10*time.Second), noVerdicts())
	if got[0].Status != True || got[1].Status != True {
		t.Errorf("within the hold: %+v", got)
	}
	if got, _ = j.Observe(node(62*time.Second), noVerdicts()); got[0].Status != False || got[1].Status != False {
		t.Errorf("after it: %+v", got)
	}
}

func TestJudgeRelease(t *testing.T) {
	r := rules(t, "memory.available < 1Gi")
	r[0].For, r[0].Hold = 5*time.Second, 20*time.Second
	j := NewJudge(r)
	for _, step := range []struct {
		at     time.Duration
		memory int64
		want   time.Duration
	}{
		{0, 8 << 30, -1},
		{time.Second, 1, 5 * time.Second},
		{4 * time.Second, 1, 2 * time.Second},
		{6 * time.Second, 1, -1}, // True
		{7 * time.Second, 8 << 30, 19 * time.Second},
		{30 * time.Second, 8 << 30, -1},
	} {
		s := node(step.at)
		s.Signals[probe.MemoryAvailable].Available = step.memory
		j.Observe(s, noVerdicts())
		if got := j.Release(s.Time); got != step.want {
			t.Errorf("at %s: %s, want %s", step.at, got, step.want)
		}
	}
}

func TestJudgeDoesNotAllocate(t *testing.T) {
	j := NewJudge(rules(t, "MemoryPressure", "memory.available < 1Gi and memory.full.avg60 > 20%", "nodefs.readonly"))
	s, v := node(0), noVerdicts()
	if n := testing.AllocsPerRun(100, func() { j.Observe(s, v) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
