package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

var crossed = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// logOf returns records so many milliseconds after the crossing: "1.5 event",
// "2 off", "3 True", "3 False", "4 patched".
func logOf(t *testing.T, script string) []agent.Record {
	t.Helper()
	var log []agent.Record
	for entry := range strings.SplitSeq(script, ",") {
		var ms float64
		var what string
		if script == "" {
			break
		}
		if _, err := fmt.Sscan(entry, &ms, &what); err != nil {
			t.Fatal(entry, err)
		}
		r := agent.Record{Time: crossed.Add(time.Duration(ms * float64(time.Millisecond)))}
		switch what {
		case "event", "off":
			r.Msg, r.Line = kernelEvent, fmt.Sprintf(`{"kind":"crossing","watch":0,"on":%t,"value":1,"limit":2,"happened":%q,"age":30000}`,
				what == "event", r.Time.Add(-30*time.Microsecond).Format(time.RFC3339Nano))
			// The line is written later.
			r.Time = r.Time.Add(100 * time.Millisecond)
		case "patched":
			r.Msg, r.Line = nodePatched, `{"reason":"changed"}`
		case "posted":
			r.Msg, r.Line = nodePatched, `{"reason":"period"}`
		default:
			r.Msg, r.Line = conditionChanged, fmt.Sprintf(`{"condition":"MemoryPressure","status":%q}`, what)
		}
		log = append(log, r)
	}
	return log
}

func TestTrace(t *testing.T) {
	const ms = float64(time.Millisecond)
	timeout := float64(noticeTimeout) / ms
	for _, test := range []struct {
		name, log string
		seen      float64 // ms after the crossing; 0 for never
		notice    notice
		toGo      float64
		toNode    float64
	}{
		{"as it should be", "0.5 event, 0.75 True, 3 patched", 3.5, byEvent, 0.5, 3.5},
		{"in another order", "0.75 True, 3 patched, 0.5 event", 3.5, byEvent, 0.5, 3.5},
		{"noticed before us", "-0.125 event, 0.25 True, 3 patched", 3, byEvent, -0.125, 3},
		{"earlier rounds", "-9000 event, -8999 True, -8998 patched, -2000 off, -1500 False, -1499 patched, 1 event, 2 True, 3 patched", 4, byEvent, 1, 4},
		{"a dip before", "-20 event, -19 off, 0.5 event, 0.75 True, 3 patched", 3.5, byEvent, 0.5, 3.5},
		{"a dip after", "0.5 event, 0.75 True, 1 off, 2 event, 3 patched", 3.5, byEvent, 0.5, 3.5},
		{"the sample did not agree", "0.5 event, 9000 True, 9003 patched", 9004, afterEvent, 0.5, 9004},
		{"no event", "9000 True, 9003 patched", 9004, byOther, 9000, 9004},
		{"something else was faster", "1 True, 2 event, 3 patched", 4, beforeEvent, 1, 4},
		{"an event that came late", "1 True, 3 patched, 900 event", 4, byOther, 1, 4},
		{"an event about the other way", "1 off, 2 True, 3 patched", 4, byOther, 2, 4},
		{"another condition's patch first", "0.5 event, 0.6 patched, 0.7 True, 3 patched", 4, byEvent, 0.5, 4},
		{"an event that nothing came of", "0.5 event", 0, byNone, 0.5, timeout},
		{"nothing at all", "", 0, byNone, timeout, timeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := trace{crossed: pressure.Crossing{Above: crossed, Below: crossed.Add(time.Millisecond)}}
			if test.seen != 0 {
				tr.seen = crossed.Add(time.Duration(test.seen * ms))
			}
			must.OK(t, tr.follow(logOf(t, test.log), "MemoryPressure", crossed.Add(-time.Second)))
			if got := tr.notice(); got != test.notice {
				t.Errorf("noticed %q, want %q", got, test.notice)
			}
			if goMS, nodeMS := program.Millis(tr.toGo()), program.Millis(tr.toNode()); goMS != test.toGo || nodeMS != test.toNode {
				t.Errorf("to Go %g ms, to Node %g ms, want %g and %g", goMS, nodeMS, test.toGo, test.toNode)
			}
			if test.notice == byEvent && tr.event.Sub(tr.happened) != 30*time.Microsecond {
				t.Errorf("the kernel noticed at %s, Go at %s", tr.happened, tr.event)
			}
			if test.notice != byNone && program.Millis(tr.answered.Sub(crossed)) < program.Millis(tr.changed.Sub(crossed)) {
				t.Errorf("answered at %s, changed at %s", tr.answered, tr.changed)
			}
		})
	}
	var tr trace
	if err := tr.follow([]agent.Record{{Time: crossed, Msg: kernelEvent, Line: "{"}}, "MemoryPressure", crossed); err == nil {
		t.Error("a line that is no JSON: no error")
	}
}

func TestLastStatus(t *testing.T) {
	for log, want := range map[string]string{
		"": "", "1 event, 2 patched": "", "1 True, 2 patched": "True", "1 True, 2 patched, 3 False, 4 event": "False",
	} {
		other, err := lastStatus(logOf(t, log), "DiskPressure")
		if got := must.Get(lastStatus(logOf(t, log), "MemoryPressure"))(t); got != want || other != "" || err != nil {
			t.Errorf("%q: %q and, about another condition, %q, %v; want %q", log, got, other, err, want)
		}
	}
}

func TestPosts(t *testing.T) {
	for _, test := range []struct {
		log  string
		at   float64 // ms
		want int
	}{
		{"0 posted, 1 posted, 2 posted", 3, 3}, // these are free
		{"0 patched, 500 patched, 1000 patched", 9999, 0},
		{"0 patched, 500 patched, 1000 patched", 20001, 2},
		{"0 patched, 500 patched, 1000 patched", 1e6, 3},
		// The ten seconds begin when the three are no longer all there.
		{"0 patched, 60000 patched, 60500 patched", 69999, 1},
		{"0 patched, 60000 patched, 60500 patched", 70001, 2},
	} {
		now := crossed.Add(time.Duration(test.at * float64(time.Millisecond)))
		if got := agent.PostsLeft(logOf(t, test.log), now); got != test.want {
			t.Errorf("%s, at %g: %d, want %d", test.log, test.at, got, test.want)
		}
	}
}
