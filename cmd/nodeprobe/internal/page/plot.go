package page

import (
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// plot is a small chart of the last ten minutes.
type plot struct {
	label    string // what it shows, for a screen reader
	now      time.Time
	gap      time.Duration // points further apart are not joined
	low, top float64       // of the scale
	lines    []plotLine
	limit    *float64 // drawn if it is on the scale
}

type plotLine struct {
	class   string
	filled  bool
	figures []plotFigure
}

// plotFigure is a value at a time.
type plotFigure struct {
	time  time.Time
	value float64
}

// The size before the browser scales it: one unit wide is a second.
const plotWidth, plotHeight = float64(historyPeriod / time.Second), 100.0

func (p *plot) x(t time.Time) float64 {
	return max(0, plotWidth-p.now.Sub(t).Seconds())
}

func (p *plot) y(value float64) float64 {
	if p.top <= p.low {
		return plotHeight
	}
	return plotHeight * (1 - (value-p.low)/(p.top-p.low))
}

// write draws the plot as SVG.
func (p *plot) write(m *markup) {
	m.f(`<svg class="plot" role="img" aria-label="%s" viewBox="0 -4 %.0f %.0f" preserveAspectRatio="none">`, p.label, plotWidth, plotHeight+8)
	if p.limit != nil && *p.limit >= p.low && *p.limit <= p.top {
		y := p.y(*p.limit)
		m.f(`<path class="limit" d="M0 %.1fH%.0f"/>`, y, plotWidth)
	}
	for _, line := range p.lines {
		if line.filled {
			m.f(`<path class="area %s" d="`, line.class)
			p.area(m, line.figures)
			m.f(`"/>`)
		}
		m.f(`<path class="line %s" d="`, line.class)
		p.line(m, line.figures)
		m.f(`"/>`)
	}
	m.f(`</svg>`)
}

// runs calls f for each run of figures that are joined.
func (p *plot) runs(figures []plotFigure, f func([]plotFigure)) {
	begin := 0
	for i := range figures {
		if i+1 == len(figures) || figures[i+1].time.Sub(figures[i].time) > p.gap {
			f(figures[begin : i+1])
			begin = i + 1
		}
	}
}

func (p *plot) line(m *markup, figures []plotFigure) {
	p.runs(figures, func(run []plotFigure) {
		for i, f := range run {
			m.f(`%c%.0f %.1f`, "ML"[min(i, 1)], p.x(f.time), p.y(f.value))
		}
		m.f(`h1`) // so that a run of one is a dot
	})
}

func (p *plot) area(m *markup, figures []plotFigure) {
	p.runs(figures, func(run []plotFigure) {
		m.f(`M%.0f %.0f`, p.x(run[0].time), plotHeight)
		for _, f := range run {
			m.f(`L%.0f %.1f`, p.x(f.time), p.y(f.value))
		}
		m.f(`V%.0fz`, plotHeight)
	})
}

// availableFigures returns what was available of a signal, with the least and the most.
func availableFigures(past []point, signal probe.Signal) (figures []plotFigure, least, most int64) {
	for i := range past {
		if !past[i].has[signal] {
			continue
		}
		value := past[i].available[signal]
		if len(figures) == 0 {
			least, most = value, value
		}
		least, most = min(least, value), max(most, value)
		figures = append(figures, plotFigure{past[i].time, float64(value)})
	}
	return figures, least, most
}

// stallFigures returns the shares of time in which some, or all, tasks stalled, and the
// highest of them.
func stallFigures(past []point, resource probe.Resource) (some, full []plotFigure, most float64) {
	for i := range past {
		stall := &past[i].stalls[resource]
		if stall.hasSome {
			some = append(some, plotFigure{past[i].time, float64(stall.some)})
			most = max(most, float64(stall.some))
		}
		if stall.hasFull {
			full = append(full, plotFigure{past[i].time, float64(stall.full)})
		}
	}
	return some, full, most
}
