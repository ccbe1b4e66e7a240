package page

import (
	"encoding/json"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/probe"
)

// at is a snapshot with so much memory, of 100.
func at(after time.Duration, memory int64) *probe.Snapshot {
	s := &probe.Snapshot{Time: begin.Add(after)}
	s.Signals[probe.MemoryAvailable] = probe.Observation{Available: memory, Capacity: 100, OK: true}
	s.Signals[probe.PIDAvailable] = probe.Observation{Available: 100, Capacity: 100, OK: true}
	return s
}

// stalled sets the shares of time stalled on memory, in percent.
func stalled(s *probe.Snapshot, some, full float64) *probe.Snapshot {
	s.Pressure[probe.MemoryResource] = probe.Stall{
		Some: probe.StallLine{Avg10: some / 100}, Full: probe.StallLine{Avg10: full / 100}, OK: true, FullOK: full >= 0,
	}
	return s
}

// A point has the worst of its five seconds, and absent stays absent.
func TestHistory(t *testing.T) {
	var h History
	if past := h.points(); len(past) != 0 {
		t.Errorf("before the first sample: %v", past)
	}
	absent := at(13*time.Second, 0)
	absent.Signals[probe.MemoryAvailable] = probe.Observation{}
	for _, s := range []*probe.Snapshot{
		stalled(at(0, 50), 25, 0),
		stalled(at(2*time.Second, 40), 50, 12.5),
		stalled(at(4999*time.Millisecond, 60), 0, 0),
		at(5*time.Second, 70), // the next point; no stalls
		absent,
		stalled(at(20*time.Second, 80), 75, -1),
	} {
		h.Observe(s)
	}
	past := h.points()
	for i := range past {
		past[i].cpu = time.Duration(i) * time.Second
	}
	v := newHistoryView(past)
	got, err := json.Marshal(&v)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"time":["2026-01-02T03:04:05Z","2026-01-02T03:04:10Z","2026-01-02T03:04:18Z","2026-01-02T03:04:25Z"],` +
		`"available":{"memory.available":[40,70,null,80],"pid.available":[100,100,100,100]},` +
		`"pressure":{"memory":{"some":[0.5,null,null,0.75],"full":[0.125,null,null,null]}},` +
		`"cpuSeconds":[0,1,2,3]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEmptyHistory(t *testing.T) {
	v := newHistoryView(nil)
	got, err := json.Marshal(&v)
	if want := `{"time":[],"available":{},"pressure":{},"cpuSeconds":[]}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

// At any rate of samples, the history has the last ten minutes and no more, in order, and
// in the same memory.
func TestHistoryIsBounded(t *testing.T) {
	if size := unsafe.Sizeof(History{}); size > 20<<10 {
		t.Errorf("it takes %d bytes", size)
	}
	for _, step := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, 7 * time.Second, 10 * time.Second, time.Hour} {
		var h History
		var now time.Time
		for i := range 20000 {
			s := at(time.Duration(i)*step, 50)
			now = s.Time
			h.Observe(s)
			if i%997 != 0 {
				continue
			}
			past := h.points()
			first := past[0].time
			if span := now.Sub(first); span > historyPeriod || span < min(historyPeriod-max(step, historyStep), time.Duration(i)*step) {
				t.Errorf("every %s, after %d: the first is %s old", step, i, span)
			}
			for j := 1; j < len(past); j++ {
				if apart := past[j].time.Sub(past[j-1].time); apart < historyStep || apart > max(step, historyStep+step) {
					t.Errorf("every %s, after %d: points %s apart", step, i, apart)
				}
			}
		}
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	var h History
	i := 0
	snapshots := []*probe.Snapshot{stalled(at(0, 50), 1, 1), stalled(at(0, 51), 2, 0)}
	if n := testing.AllocsPerRun(1000, func() {
		s := snapshots[i%2]
		s.Time = begin.Add(time.Duration(i) * 3 * time.Second)
		i++
		h.Observe(s)
	}); n != 0 {
		t.Errorf("%v allocations per sample, want 0", n)
	}
	if past := h.points(); len(past) < 100 {
		t.Errorf("only %d points", len(past))
	}
}

func BenchmarkObserve(b *testing.B) {
	var h History
	s := stalled(at(0, 50), 1, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.Time = s.Time.Add(time.Second)
		h.Observe(s)
	}
}
