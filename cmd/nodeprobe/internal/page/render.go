package page

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/printable"
	"github.com/nodeprobe/nodeprobe/probe"
)

// markup is HTML under construction. It is made in one pass over the report, and keeps
// nothing: parsed templates would stay in memory for a page that is rarely looked at.
type markup struct{ buf bytes.Buffer }

// f formats markup. Arguments are text and are escaped, since names and errors may contain
// anything. In the format, attributes are in double quotes.
func (m *markup) f(format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case int, int64, uint64, byte, float64:
		case string:
			args[i] = escape(arg)
		default:
			args[i] = escape(fmt.Sprint(arg))
		}
	}
	fmt.Fprintf(&m.buf, format, args...)
}

// escaper is html.EscapeString without that package's table of two thousand entities,
// 110 KB.
var escaper = strings.NewReplacer("&", "&amp;", "'", "&#39;", "<", "&lt;", ">", "&gt;", `"`, "&#34;")

// escape keeps line breaks and replaces other control characters.
func escape(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = escaper.Replace(printable.Line(lines[i], -1))
	}
	return strings.Join(lines, "\n")
}

// page writes the whole page. It works without the script, which only fetches it again
// and updates what has changed.
func (m *markup) page(r *report, past []point) {
	verdict, _ := r.verdict()
	m.f(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s: %s</title>
<link rel="icon" href="data:,">
<noscript><meta http-equiv="refresh" content="10"></noscript>
<style>`, r.NodeName, verdict)
	m.buf.WriteString(pageStyle)
	m.f("</style>\n</head>\n<body>\n<p id=\"lost\" role=\"alert\" hidden></p>\n<main>\n")
	m.header(r)
	m.conditions(r)
	m.signals(r, past)
	m.stalls(r, past)
	m.facts(r)
	m.errors(r)
	m.f("</main>\n")
	m.f(`<footer>As text: <a href="metrics">metrics</a> <a href="api/v1/status">status</a> <a href="api/v1/history">history</a> <a href="readyz?verbose">readyz</a></footer>`)
	m.f("\n<script>")
	m.buf.WriteString(pageScript)
	m.f("</script>\n</body>\n</html>\n")
}

// verdict sums up the page in a few words, and as a status: that of the worst condition,
// which is True, then Unknown, then False.
func (r *report) verdict() (text, status string) {
	types := map[string][]string{}
	for _, c := range r.Snapshot.Conditions {
		types[c.Status] = append(types[c.Status], c.Type)
	}
	switch {
	case r.StoodDown != "":
		return "stood down", "True"
	case types["True"] != nil:
		return strings.Join(types["True"], ", "), "True"
	case types["Unknown"] != nil:
		return "unknown: " + strings.Join(types["Unknown"], ", "), "Unknown"
	default:
		return "no pressure", "False"
	}
}

func (m *markup) header(r *report) {
	m.f(`<header><div><h1>%s</h1>`, r.NodeName)
	m.f(`<p>nodeprobe %s <span>mode %s</span> <span>tier %s</span> <span>`, r.Version, r.Mode, r.Snapshot.Tier)
	m.time(r.Snapshot.Time, time.DateTime+" MST")
	verdict, status := r.verdict()
	m.f("</span></p></div>\n<p class=\"verdict %s\" role=\"status\">", status)
	m.icon(status)
	m.f("%s</p></header>\n", verdict)
	for _, c := range r.Checks {
		if c.Error != "" {
			m.f("<p class=\"alarm\">%s: %s</p>\n", c.Name, c.Error)
		}
	}
	if r.StoodDown != "" {
		m.f("<p class=\"alarm\">%s</p>\n", r.StoodDown)
	}
}

// icon repeats a status as a sign, for readers who skim.
func (m *markup) icon(status string) {
	sign := "?"
	switch status {
	case "True":
		sign = "!"
	case "False":
		sign = "✓"
	}
	m.f(`<i class="icon %s" aria-hidden="true">%s</i>`, status, sign)
}

func (m *markup) time(t time.Time, layout string) {
	m.f(`<time datetime="%s">%s</time>`, t.Format(time.RFC3339), t.Format(layout))
}

func (m *markup) conditions(r *report) {
	m.f("<section aria-labelledby=\"conditions\"><h2 id=\"conditions\">Conditions</h2>\n<ul class=\"cards\">\n")
	for _, c := range r.Snapshot.Conditions {
		m.f(`<li class="card %s"><h3>%s</h3><p class="status">`, c.Status, c.Type)
		m.icon(c.Status)
		m.f(`%s`, c.Status)
		if c.Why != "" {
			m.f(` <span>%s</span>`, c.Why)
		}
		m.f(`</p>`)
		if !c.Since.IsZero() {
			m.f(`<p class="faint">for %s, since `, since(c.Since, r.Snapshot.Time))
			m.time(c.Since, time.DateTime)
			m.f(`</p>`)
		}
		m.f("</li>\n")
	}
	m.f("</ul></section>\n")
}

func (m *markup) signals(r *report, past []point) {
	// The roles are explicit because display: block, on narrow screens, removes them.
	m.f(`<section aria-labelledby="signals"><h2 id="signals">Signals</h2>
<table role="table"><thead role="rowgroup"><tr role="row">`)
	for _, title := range []string{"Signal", "Available", "Left", "Limit", "Reached in", "Last 10 minutes"} {
		m.f(`<th role="columnheader" scope="col">%s</th>`, title)
	}
	m.f("</tr></thead>\n<tbody role=\"rowgroup\">\n")
	for i := range r.Snapshot.Signals {
		m.signal(&r.Snapshot.Signals[i], r.Snapshot.Time, past)
	}
	m.f("</tbody></table>\n")
	m.f(`<p class="note">Last 10 minutes: the lowest value in each 5 s, or of each sample if these are less frequent.</p></section>` + "\n")
}

func (m *markup) signal(s *signalView, now time.Time, past []point) {
	class := ""
	if s.reached() {
		class = "reached"
	}
	m.f(`<tr role="row" class="%s"><th role="rowheader" scope="row">%s</th>`, class, s.Name)
	if s.Available == nil {
		why := "not on this machine"
		if s.Error != "" {
			why = "cannot be read"
		}
		m.f("<td role=\"cell\" colspan=\"5\" class=\"faint\">%s</td></tr>\n", why)
		return
	}
	m.f(`<td role="cell" data-label="Available"><b>%s</b> <span class="faint">of %s</span></td><td role="cell" data-label="Left">`, amount(*s.Available, s.Unit), amount(*s.Capacity, s.Unit))
	m.bar(s)
	m.f(`</td><td role="cell" data-label="Limit">`)
	if s.Limit == nil {
		m.f(`<span class="faint">none</span>`)
	} else {
		m.f(`%s`, amount(*s.Limit, s.Unit))
	}
	m.f(`</td><td role="cell" data-label="Reached in">`)
	switch {
	case s.reached():
		m.icon("True")
		m.f(`reached`)
	case s.TimeToLimit != "":
		m.f(`%s`, s.TimeToLimit)
	default:
		m.f(`<span class="faint">not approaching</span>`)
	}
	m.f(`</td><td role="cell" data-label="10 minutes">`)
	m.signalPlot(s, now, past)
	m.f("</td></tr>\n")
}

// reached reports whether less is available than the limit.
func (v *signalView) reached() bool {
	return v.Available != nil && v.Limit != nil && *v.Available < *v.Limit
}

// bar draws what is left of a signal, and its limit.
func (m *markup) bar(s *signalView) {
	if *s.Capacity <= 0 {
		m.f(`<span class="faint">-</span>`)
		return
	}
	left, limit := percentOf(*s.Available, *s.Capacity), 0.0
	text := fmt.Sprintf("%.0f %% left", left)
	if s.Limit != nil {
		limit = percentOf(*s.Limit, *s.Capacity)
		text += fmt.Sprintf(", limit at %.1f %%", limit)
	}
	m.f(`<div class="bar" role="meter" aria-label="%s" aria-valuemin="0" aria-valuemax="100" aria-valuenow="%.0f" aria-valuetext="%s"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><path class="track" d="M0 2H100V8H0z"/><path class="left" d="M0 2H%.1fV8H0z"/>`, s.Name, left, text, left)
	if s.Limit != nil {
		m.f(`<path class="limit" d="M%.1f 0V10"/>`, limit)
	}
	m.f(`</svg><span>%.0f%%</span></div>`, left)
}

// signalPlot draws a signal's last ten minutes on a scale of its own. The scale spans at
// least 2 % of the capacity, so that jitter looks flat.
func (m *markup) signalPlot(s *signalView, now time.Time, past []point) {
	signal, ok := probe.ParseSignal(s.Name)
	figures, least, most := availableFigures(past, signal)
	if !ok || len(figures) == 0 {
		return
	}
	low, top := float64(least), float64(most)
	if margin := (0.02*float64(*s.Capacity) - (top - low)) / 2; margin > 0 {
		low, top = low-margin, top+margin
	}
	p := plot{now: now, gap: plotGap, lines: []plotLine{{class: "available", filled: true, figures: figures}}}
	if s.Limit != nil {
		limit := float64(*s.Limit)
		p.limit = &limit
		if low-limit < top-low { // near enough to show
			low, top = min(low, limit), max(top, limit)
		}
	}
	p.low, p.top = low, top
	extent := amount(least, s.Unit)
	if to := amount(most, s.Unit); to != extent {
		extent += " – " + to
	}
	p.label = fmt.Sprintf("%s, last 10 minutes: %s", s.Name, extent)
	p.write(m)
	m.f(`<span class="extent" aria-hidden="true">%s</span>`, extent)
}

// plotGap is the longest time between two points that are joined by a line.
const plotGap = time.Minute

func (m *markup) stalls(r *report, past []point) {
	if len(r.Snapshot.Pressure) == 0 {
		return
	}
	m.f("<section aria-labelledby=\"stalls\"><h2 id=\"stalls\">Share of time in which some, or all, tasks stalled</h2>\n<ul class=\"cards\">\n")
	for i := range r.Snapshot.Pressure {
		m.stall(&r.Snapshot.Pressure[i], r.Snapshot.Time, past)
	}
	m.f("</ul>\n")
	m.f(`<p class="note">Charts: the last 10 minutes; the highest 10 s average in each 5 s, or of each sample if these are less frequent.</p></section>` + "\n")
}

func (m *markup) stall(s *stallView, now time.Time, past []point) {
	m.f(`<li class="card"><h3>%s</h3>`, s.Resource)
	for i := range probe.NumResources {
		if resource := probe.Resource(i); resource.String() == s.Resource {
			some, full, most := stallFigures(past, resource)
			p := plot{
				label: fmt.Sprintf("stalled on %s, last 10 minutes: at most %s", s.Resource, percent(most)),
				now:   now, gap: plotGap, top: max(0.1, most),
				lines: []plotLine{{"some", false, some}, {"full", true, full}},
			}
			p.write(m)
			m.f(`<span class="extent" aria-hidden="true">scale 0 – %s</span>`, percent(p.top))
		}
	}
	m.f(`<table><thead><tr><td></td><th scope="col">10 s</th><th scope="col">1 min</th><th scope="col">5 min</th></tr></thead><tbody>`)
	m.stallLine("some", "some", &s.Some)
	if s.Full != nil {
		m.stallLine("full", "all", s.Full)
	}
	m.f("</tbody></table></li>\n")
}

func (m *markup) stallLine(class, name string, l *lineView) {
	m.f(`<tr><th scope="row"><i class="key %s" aria-hidden="true"></i>%s</th><td>%s</td><td>%s</td><td>%s</td></tr>`,
		class, name, percent(l.Avg10), percent(l.Avg60), percent(l.Avg300))
}
