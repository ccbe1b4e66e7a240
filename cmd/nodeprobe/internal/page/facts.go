package page

import (
	"fmt"
	"time"
)

// fact is shown as a name and a text. It is left out if the text is empty.
type fact struct{ name, text string }

// facts writes the cards that are not about limits: the node's counters, nodeprobe
// itself, and what it writes.
func (m *markup) facts(r *report) {
	m.f("<section aria-labelledby=\"facts\"><h2 id=\"facts\">Node and nodeprobe</h2>\n<ul class=\"cards\">\n")
	m.card("Node", r.Snapshot.facts())
	m.card("nodeprobe", r.facts())
	written := append([]fact{{"Mode", r.Mode}}, r.writes(r.Snapshot.Time)...)
	if len(written) == 1 {
		written = append(written, fact{"Writes", "nothing"})
	}
	m.card("API server", written)
	m.f("</ul></section>\n")
}

func (m *markup) card(title string, facts []fact) {
	if len(facts) == 0 {
		return
	}
	m.f(`<li class="card"><h3>%s</h3><dl>`, title)
	for _, f := range facts {
		if f.text != "" {
			m.f(`<div><dt>%s</dt><dd>%s</dd></div>`, f.name, f.text)
		}
	}
	m.f("</dl></li>\n")
}

// facts returns the counters of a view.
func (v *view) facts() []fact {
	var facts []fact
	add := func(name, format string, args ...any) {
		facts = append(facts, fact{name, fmt.Sprintf(format, args...)})
	}
	if v.Memory != nil {
		add("MemAvailable", "%s of %s", amount(v.Memory.Available, "bytes"), amount(v.Memory.Total, "bytes"))
		if v.Memory.SwapTotal > 0 {
			add("Swap free", "%s of %s", amount(v.Memory.SwapFree, "bytes"), amount(v.Memory.SwapTotal, "bytes"))
		}
	}
	if v.Tasks != nil {
		add("Tasks", "%d, %d runnable", v.Tasks.Total, v.Tasks.Running)
	}
	if v.OOMKills != nil {
		add("OOM kills", "%d since boot", *v.OOMKills)
	}
	if k := v.Kernel; k != nil {
		if k.Forks != nil {
			add("Forks, exits", "%d, %d", *k.Forks, *k.Exits)
		}
		if k.DirectReclaims != nil {
			add("Direct reclaims", "%d (%s)", *k.DirectReclaims, k.DirectReclaimStall)
			add("Cgroup reclaims", "%d (%s)", *k.CgroupReclaims, k.CgroupReclaimStall)
		}
		if k.BlockErrors != nil {
			add("Block errors", "%d", *k.BlockErrors)
		}
	}
	return facts
}

// facts returns what nodeprobe works with, and what it costs.
func (r *report) facts() []fact {
	return []fact{
		{"Tier", r.Snapshot.Tier},
		{"Why not higher", r.Snapshot.TierReason},
		{"CPU", r.Self.cpu()},
		{"Memory", r.Self.memory()},
		{"Samples", r.Self.samples()},
		{"Last sample took", r.Snapshot.Took},
		{"Started", r.Self.Started.Format(time.DateTime)},
	}
}

// writes returns what nodeprobe has written to the API server.
func (r *report) writes(now time.Time) []fact {
	var facts []fact
	if r.Status != nil {
		facts = append(facts, fact{"Status", r.Status.text(now)})
	}
	if r.Lease != nil {
		facts = append(facts, fact{"Lease", r.Lease.text(now)})
	}
	return facts
}

func (m *markup) errors(r *report) {
	if len(r.Snapshot.Errors) == 0 {
		return
	}
	m.f("<section aria-labelledby=\"errors\"><h2 id=\"errors\">Errors</h2>\n<ul class=\"errors\">\n")
	for _, e := range r.Snapshot.Errors {
		m.f(`<li><b>%s</b> <span>%s</span>`, e.Source, e.Error)
		if e.Remedy != "" {
			m.f(` <span class="faint">→ %s</span>`, e.Remedy)
		}
		m.f("</li>\n")
	}
	m.f("</ul></section>\n")
}
