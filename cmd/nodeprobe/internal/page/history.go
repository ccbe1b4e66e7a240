package page

import (
	"slices"
	"sync"
	"time"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/probe"
)

const (
	// historyStep is the least time between two points of a History, and
	// historyPoints is how many are kept: ten minutes at least.
	historyStep   = 5 * time.Second
	historyPoints = 120
	historyPeriod = historyPoints * historyStep
)

// History keeps the last ten minutes. Each of its points stands for five seconds, or
// for the time between two samples if that is longer, and holds the worst of the
// samples in that time: of each signal the least amount that was available, and of
// each pressure stall the highest avg10, which is itself an average over ten seconds.
// Its CPU time is what this process had used when the point began.
//
// It is a ring of values, 17 KB in all. The zero History is empty and ready to use, by
// several goroutines.
type History struct {
	mu     sync.Mutex // guards the rest
	ring   [historyPoints]point
	count  int
	last   int       // index of the latest point
	latest time.Time // of the latest sample
}

// point is the worst of what was seen from its time on until that of the next.
type point struct {
	time      time.Time
	cpu       time.Duration // used by this process until then
	available [probe.NumSignals]int64
	stalls    [probe.NumResources]stallPoint
	has       [probe.NumSignals]bool
}

// stallPoint holds shares of ten seconds, from 0 to 1.
type stallPoint struct {
	some, full       float32
	hasSome, hasFull bool
}

// Observe adds a sample. It does not allocate: every sample goes through it, as
// [nodeprobe.Config.OnSample].
func (h *History) Observe(s *probe.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest = s.Time
	if h.count == 0 || s.Time.Sub(h.ring[h.last].time) >= historyStep {
		if h.count > 0 {
			h.last = (h.last + 1) % historyPoints
		}
		h.count = min(h.count+1, historyPoints)
		h.ring[h.last] = point{time: s.Time}
		h.ring[h.last].cpu, _ = process.CPUTime()
	}
	h.ring[h.last].merge(s)
}

func (p *point) merge(s *probe.Snapshot) {
	for i := range s.Signals {
		if o := &s.Signals[i]; o.OK && (!p.has[i] || o.Available < p.available[i]) {
			p.available[i], p.has[i] = o.Available, true
		}
	}
	for i := range s.Pressure {
		from, to := &s.Pressure[i], &p.stalls[i]
		if from.OK {
			to.some, to.hasSome = max(to.some, float32(from.Some.Avg10)), true
		}
		if from.FullOK {
			to.full, to.hasFull = max(to.full, float32(from.Full.Avg10)), true
		}
	}
}

// points returns those of the ten minutes before the latest sample, oldest first.
func (h *History) points() []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	points := make([]point, 0, h.count)
	for i := range h.count {
		points = append(points, h.ring[(h.last+historyPoints-h.count+1+i)%historyPoints])
	}
	return slices.DeleteFunc(points, func(p point) bool { return h.latest.Sub(p.time) > historyPeriod })
}

// historyView is the response of GET /api/v1/history: columns with one entry for each
// time. An entry is null if the figure could not be read. [History] documents the
// figures.
type historyView struct {
	Time []time.Time `json:"time"`
	// Available is by signal, in the signal's unit.
	Available map[string][]*int64 `json:"available"`
	// Pressure is by resource: cpu, memory, io.
	Pressure map[string]stallHistory `json:"pressure"`
	// CPUSeconds is the CPU time of this process since it started.
	CPUSeconds []float64 `json:"cpuSeconds"`
}

// stallHistory holds shares of ten seconds, from 0 to 1.
type stallHistory struct {
	Some []*float32 `json:"some"`
	Full []*float32 `json:"full"`
}

// newHistoryView refers to points. A figure that was never read has no column.
func newHistoryView(points []point) historyView {
	v := historyView{Time: []time.Time{}, Available: map[string][]*int64{}, Pressure: map[string]stallHistory{}, CPUSeconds: []float64{}}
	for i := range points {
		v.Time = append(v.Time, points[i].time.Round(0))
		v.CPUSeconds = append(v.CPUSeconds, points[i].cpu.Seconds())
	}
	for i := range probe.NumSignals {
		column, ok := column(points, func(p *point) (*int64, bool) { return &p.available[i], p.has[i] })
		if ok {
			v.Available[probe.Signal(i).String()] = column
		}
	}
	for i := range probe.NumResources {
		some, hasSome := column(points, func(p *point) (*float32, bool) { return &p.stalls[i].some, p.stalls[i].hasSome })
		full, hasFull := column(points, func(p *point) (*float32, bool) { return &p.stalls[i].full, p.stalls[i].hasFull })
		if hasSome || hasFull {
			v.Pressure[probe.Resource(i).String()] = stallHistory{some, full}
		}
	}
	return v
}

// column returns one figure of each point, nil where it is absent. It is not ok if the
// figure is absent everywhere.
func column[T any](points []point, figure func(*point) (*T, bool)) (figures []*T, ok bool) {
	figures = make([]*T, len(points))
	for i := range points {
		if value, has := figure(&points[i]); has {
			figures[i], ok = value, true
		}
	}
	return figures, ok
}
