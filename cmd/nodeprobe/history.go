package main

import (
	"slices"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

const (
	// historyStep is the least time between two points of the history, and
	// historyPoints is how many are kept: ten minutes at least.
	historyStep   = 5 * time.Second
	historyPoints = 120
	historyPeriod = historyPoints * historyStep
)

// history keeps the last ten minutes for those who come to look. It is a ring of
// values, 17 KB in all, because it is written to by every sample: that must not
// allocate.
type history struct {
	points [historyPoints]point
	count  int
	last   int // index of the latest point
}

// point is the worst of what was seen from its time on until the next point's.
type point struct {
	time      time.Time
	cpu       time.Duration // that this process had used
	available [probe.NumSignals]int64
	stalls    [probe.NumResources]stallPoint
	has       [probe.NumSignals]bool
}

// stallPoint holds shares of ten seconds.
type stallPoint struct {
	some, full       float32
	hasSome, hasFull bool
}

// observe adds a snapshot to the latest point, or begins the next.
func (h *history) observe(s *probe.Snapshot) {
	if h.count == 0 || s.Time.Sub(h.points[h.last].time) >= historyStep {
		if h.count > 0 {
			h.last = (h.last + 1) % historyPoints
		}
		h.count = min(h.count+1, historyPoints)
		h.points[h.last] = point{time: s.Time}
		h.points[h.last].cpu, _ = cpuTime()
	}
	h.points[h.last].merge(s)
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

// past returns what there is of the ten minutes before now, the oldest first.
func (h *history) past(now time.Time) []point {
	points := make([]point, 0, h.count)
	for i := range h.count {
		points = append(points, h.points[(h.last+historyPoints-h.count+1+i)%historyPoints])
	}
	return slices.DeleteFunc(points, func(p point) bool { return now.Sub(p.time) > historyPeriod })
}

// historyView is what GET /api/v1/history answers: columns, of which each has one
// entry per time. An entry is null where the figure could not be read.
type historyView struct {
	Time       []time.Time             `json:"time"`
	Available  map[string][]*int64     `json:"available"`
	Pressure   map[string]stallHistory `json:"pressure"`
	CPUSeconds []float64               `json:"cpuSeconds"`
}

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

// column returns one figure of each point, nil where it is absent; ok says that it
// is not absent everywhere.
func column[T any](points []point, figure func(*point) (*T, bool)) (figures []*T, ok bool) {
	figures = make([]*T, len(points))
	for i := range points {
		if value, has := figure(&points[i]); has {
			figures[i], ok = value, true
		}
	}
	return figures, ok
}
