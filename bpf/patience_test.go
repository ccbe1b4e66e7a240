//go:build linux && (amd64 || arm64)

package bpf

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// wait is struct wait in testdata/decide.bpf.c.
type wait struct {
	Looked   uint64
	Before   int64
	Moved    uint64
	To       int64
	Spent    uint64
	Now      uint64
	Distance int64
	NS       uint64
	Result   uint64
}

func TestPatience(t *testing.T) {
	coll := testPrograms(t, "decide.bpf.c")
	const (
		ms, s    = uint64(time.Millisecond), uint64(time.Second)
		mib, all = 1 << 20, uint64(1) << 19 * 250 * uint64(time.Millisecond)
	)
	// A look at so many seconds, a tenth of a second after the one before, at a figure that
	// was at 40 MiB all the time since it moved at 100 s.
	rest := func(at uint64) wait {
		return wait{Looked: at - 100*ms, Before: 40 * mib, Moved: 100 * s, To: 40 * mib, Now: at, Distance: 40 * mib, NS: ms / 2}
	}
	for name, tt := range map[string]struct {
		at     uint64
		change func(*wait)
		want   uint64
		moved  uint64 // at that time; 0 if not
	}{
		"far":                     {200 * s, func(w *wait) { w.NS = 100 * ms }, 100 * ms, 200 * s},
		"near for the first time": {200 * s, func(w *wait) { w.Moved, w.To = 0, 0 }, ms / 2, 200 * s},
		"on its threshold":        {200 * s, func(w *wait) { w.Moved, w.To, w.Distance, w.Before = 0, 0, 0, 0 }, ms / 2, 200 * s},
		"moved":                   {200 * s, func(w *wait) { w.Distance -= 5 * mib }, ms / 2, 200 * s},
		"moved up":                {200 * s, func(w *wait) { w.Distance += 5 * mib }, ms / 2, 200 * s},
		"moved too often":         {200 * s, func(w *wait) { w.Distance += 5 * mib; w.Spent = all + 100*ms }, 100 * ms, 0},
		"not as often":            {200 * s, func(w *wait) { w.Distance += 5 * mib; w.Spent = all }, ms / 2, 200 * s},
		"crossed":                 {200 * s, func(w *wait) { w.NS, w.Distance = 10*ms, 50*mib }, 10 * ms, 200 * s},

		"rests for two seconds":    {102 * s, func(*wait) {}, ms / 2, 0},
		"for nine":                 {109 * s, func(*wait) {}, 9 * ms, 0},
		"for eighteen":             {118 * s, func(*wait) {}, 36 * ms, 0},
		"for half a minute":        {130 * s, func(*wait) {}, 100 * ms, 0},
		"for a year":               {32_000_000 * s, func(*wait) {}, 100 * ms, 0},
		"not yet there":            {109 * s, func(w *wait) { w.NS = 20 * ms }, 20 * ms, 0},
		"under pressure":           {130 * s, func(w *wait) { w.NS = 10 * ms }, 100 * ms, 0},
		"rises a little":           {130 * s, func(w *wait) { w.Distance += mib }, 100 * ms, 0},
		"falls by a little":        {130 * s, func(w *wait) { w.Distance -= mib }, 100 * ms, 0},
		"has fallen a little":      {130 * s, func(w *wait) { w.Distance -= 2 * mib; w.Before = 40 * mib }, 100 * ms, 0},
		"fell back":                {130 * s, func(w *wait) { w.Before = 60 * mib }, 50 * ms, 0},
		"fell back, in an instant": {130 * s, func(w *wait) { w.Before, w.Looked = 60*mib, w.Now-10*ms }, 5 * ms, 0},
		"fell as fast as it can":   {130 * s, func(w *wait) { w.Before, w.NS = 440*mib, 10*ms }, 10 * ms, 0},
		"fell onto its threshold":  {130 * s, func(w *wait) { w.Distance, w.Spent = 0, 2*all }, ms / 2, 0},
		"fell below it":            {130 * s, func(w *wait) { w.Distance, w.Spent = -mib, 2*all }, 100 * ms, 0},
		"no overflow":              {130 * s, func(w *wait) { w.Looked, w.To, w.Distance, w.Before = 1, 1<<40, 1<<40, 1<<40+1 }, 100 * ms, 0},
	} {
		w := rest(tt.at)
		tt.change(&w)
		got := runDecision(t, coll, "test_patience", w)
		if got.Result != tt.want || got.Moved != max(tt.moved, w.Moved) || got.Looked != w.Now || got.Before != w.Distance {
			t.Errorf("%s: sleeps %v, want %v; %+v", name, time.Duration(got.Result), time.Duration(tt.want), got)
		}
		if tt.moved != 0 && got.To != w.Distance || tt.moved == 0 && got.To != w.To {
			t.Errorf("%s: moved to %d", name, got.To)
		}
		spent := w.Spent - min(w.Spent, w.Now-w.Looked)
		if got.Result < 100*ms {
			spent += 250 * ms
		}
		if got.Spent != spent {
			t.Errorf("%s: %v spent, want %v", name, time.Duration(got.Spent), time.Duration(spent))
		}
	}
}

// A figure goes its way before the timer, as look_at sets that, from the threshold at 0.
type patient struct {
	programs *ebpf.Collection
	spent    uint64 // at the start
	distance func(time.Duration) int64
	ticks    []time.Duration
}

func (p *patient) run(t *testing.T, until time.Duration) {
	t.Helper()
	const start = time.Hour // since boot
	w := wait{Looked: uint64(start), Spent: p.spent, NS: MaxRate(FreeBytes, 2)}
	for now := time.Duration(0); now < until; now += time.Duration(w.Result) {
		p.ticks = append(p.ticks, now)
		w.Now, w.Distance = uint64(start+now), p.distance(now)
		w = runDecision(t, p.programs, "test_sleep", w)
	}
}

// count returns how many ticks there were in a span.
func (p *patient) count(from, to time.Duration) int {
	n := 0
	for _, at := range p.ticks {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// After a minute beside its threshold a figure that rests costs no more than 20 ticks a
// second, and so does one that has moved there for so long that it has no ticks left.
func TestTicksBesideThreshold(t *testing.T) {
	coll := testPrograms(t, "decide.bpf.c")
	const (
		mib  = 1 << 20
		none = uint64(1<<19) * uint64(250*time.Millisecond)
	)
	noise := rand.New(rand.NewPCG(1, 2))
	for name, tt := range map[string]struct {
		spent    uint64
		distance func(time.Duration) int64
	}{
		"still":    {0, func(time.Duration) int64 { return mib }},
		"right at": {0, func(time.Duration) int64 { return 0 }},
		"noise":    {none, func(time.Duration) int64 { return noise.Int64N(mib) }},
		"a log": {none, func(at time.Duration) int64 {
			return mib + mib/50 - int64(at%time.Second)*mib/int64(time.Second)
		}},
	} {
		p := patient{programs: coll, spent: tt.spent, distance: tt.distance}
		p.run(t, 3*time.Minute)
		first, later := p.count(0, time.Minute), p.count(time.Minute, 3*time.Minute)
		if first > 15_000 || later > 120*20 {
			t.Errorf("%s: %d ticks in the first minute, and then %.1f a second", name, first, float64(later)/120)
		}
	}
}

// After a minute beside its threshold a figure falls from 200 MiB: that is seen coming,
// except a fall that takes no longer than a sleep.
func TestFastCrossingAfterPatience(t *testing.T) {
	coll := testPrograms(t, "decide.bpf.c")
	const headroom = 200 << 20
	for _, tt := range []struct {
		perSecond int64
		late      time.Duration
	}{
		{50 << 20, 500 * time.Microsecond},
		{400 << 20, 500 * time.Microsecond},
		{1 << 30, 500 * time.Microsecond},
		{4 << 30, 100 * time.Millisecond},
		{1 << 40, 100 * time.Millisecond}, // fallocate
	} {
		var worst time.Duration
		for range 5 {
			begins := time.Minute + rand.N(time.Second)
			crosses := begins + time.Duration(float64(headroom)/float64(tt.perSecond)*1e9)
			p := patient{programs: coll, distance: func(at time.Duration) int64 {
				return headroom - int64(max(0, at-begins).Seconds()*float64(tt.perSecond))
			}}
			p.run(t, crosses+200*time.Millisecond)
			next := slices.IndexFunc(p.ticks, func(at time.Duration) bool { return at > crosses })
			worst = max(worst, p.ticks[next]-crosses)
		}
		if worst > tt.late {
			t.Errorf("a fall of %d MiB a second is noticed %v late", tt.perSecond>>20, worst)
		}
	}
}
