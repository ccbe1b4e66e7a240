package page

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nodeprobe/nodeprobe/internal/printable"
)

// table prints the live table: the sample, what was written, and what nodeprobe itself
// costs. The url is that of the status page, or empty. Before the first sample it prints
// nothing.
func (p *Page) table(b *strings.Builder, url string) {
	now, state := time.Now(), p.State()
	if state.Snapshot.Time.IsZero() {
		return
	}
	r := p.report(&state, now)
	fmt.Fprintf(b, "nodeprobe %s, mode %s, node %s, %s", r.Version, r.Mode, r.NodeName, r.Snapshot.Time.Format(time.DateTime))
	if url != "" {
		b.WriteString(", " + url)
	}
	b.WriteString("   (Ctrl-C to quit)\n\n")
	r.Snapshot.table(b)
	for _, f := range r.writes(now) {
		fmt.Fprintf(b, "%s %s\n", f.name, f.text)
	}
	fmt.Fprintf(b, "nodeprobe itself: CPU %s; memory %s; samples: %s\n", r.Self.cpu(), dash(r.Self.memory()), dash(r.Self.samples()))
	for _, c := range r.Checks {
		if c.Error != "" {
			fmt.Fprintf(b, "! %s: %s\n", c.Name, c.Error)
		}
	}
}

// table prints conditions, signals, stalls, counters and errors.
func (v *view) table(b *strings.Builder) {
	var cells strings.Builder
	tw := tabwriter.NewWriter(&cells, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "CONDITION\tSTATUS\tSINCE\tWHY")
	for _, c := range v.Conditions {
		since := "-"
		if !c.Since.IsZero() {
			since = c.Since.Format(time.TimeOnly)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", c.Type, c.Status, since, dash(c.Why))
	}
	fmt.Fprintln(tw, "\t\t\t")
	fmt.Fprintln(tw, "SIGNAL\tAVAILABLE\tCAPACITY\tLIMIT\tREACHED IN\tLEFT")
	for _, s := range v.Signals {
		_, configured, _ := strings.Cut(s.Threshold, "<") // shown if the capacity is unknown
		switch {
		case s.Error != "":
			fmt.Fprintf(tw, "%s\t?\t?\t%s\t?\t?\n", s.Name, dash(configured))
		case s.Available == nil:
			fmt.Fprintf(tw, "%s\t-\t-\t%s\t-\t-\n", s.Name, dash(configured))
		default:
			limit := "-"
			if s.Limit != nil {
				limit = amount(*s.Limit, s.Unit)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, amount(*s.Available, s.Unit), amount(*s.Capacity, s.Unit), limit, dash(s.TimeToLimit), bar(*s.Available, *s.Capacity))
		}
	}
	if len(v.Pressure) > 0 {
		fmt.Fprintln(tw, "\t\t\t")
		fmt.Fprintln(tw, "STALLED ON\tSOME 10s\tSOME 60s\tFULL 10s\tFULL 60s")
		for _, p := range v.Pressure {
			full10, full60 := "-", "-"
			if p.Full != nil {
				full10, full60 = percent(p.Full.Avg10), percent(p.Full.Avg60)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", p.Resource, percent(p.Some.Avg10), percent(p.Some.Avg60), full10, full60)
		}
	}
	_ = tw.Flush() // into a strings.Builder
	for line := range strings.Lines(cells.String()) {
		// An empty line is made of cells, so that the tables stay aligned.
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	fmt.Fprintf(b, "\n%s\n", v.summary())
	for _, e := range v.Errors {
		for line := range strings.SplitSeq(e.Error, "\n") {
			fmt.Fprintf(b, "! %s: %s\n", e.Source, printable.Line(line, -1))
		}
		if e.Remedy != "" {
			fmt.Fprintf(b, "  -> %s\n", e.Remedy)
		}
	}
}

// summary is the line of counters below the table.
func (v *view) summary() string {
	var parts []string
	if v.Memory != nil {
		parts = append(parts, "MemAvailable "+amount(v.Memory.Available, "bytes"))
	}
	if v.Tasks != nil {
		parts = append(parts, fmt.Sprintf("%d tasks", v.Tasks.Total))
	}
	if v.OOMKills != nil {
		parts = append(parts, fmt.Sprintf("%d OOM kills", *v.OOMKills))
	}
	if k := v.Kernel; k != nil {
		if k.Forks != nil {
			parts = append(parts, fmt.Sprintf("%d forks", *k.Forks))
		}
		if k.DirectReclaims != nil {
			parts = append(parts, fmt.Sprintf("%d reclaims (%s)", *k.DirectReclaims, k.DirectReclaimStall))
		}
		if k.BlockErrors != nil {
			parts = append(parts, fmt.Sprintf("%d block errors", *k.BlockErrors))
		}
	}
	tier := "tier " + v.Tier
	if v.TierReason != "" {
		tier += " (" + v.TierReason + ")"
	}
	if len(parts) == 0 {
		return tier
	}
	return strings.Join(parts, ", ") + "; " + tier
}

// bar draws how much of a resource is left.
func bar(available, capacity int64) string {
	const width = 20
	if capacity <= 0 {
		return "-"
	}
	left := percentOf(available, capacity)
	full := int(left*width/100 + 0.5)
	return strings.Repeat("█", full) + strings.Repeat("·", width-full) + fmt.Sprintf(" %3.0f%%", left)
}
