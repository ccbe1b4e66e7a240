package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// writeScreen prints what the live table shows.
func (d *daemon) writeScreen(w io.Writer, url string) {
	now := time.Now()
	r, ok := d.report(now)
	if !ok {
		return
	}
	fmt.Fprintf(w, "nodeprobe %s, mode %s, node %s, %s", r.Version, r.Mode, r.NodeName, r.Snapshot.Time.Format(time.DateTime))
	if url != "" {
		fmt.Fprintf(w, ", %s", url)
	}
	fmt.Fprint(w, "   (Ctrl-C ends)\n\n")
	_ = writeTable(w, &r.Snapshot) // to memory
	for _, f := range r.writes(now) {
		fmt.Fprintf(w, "%s %s\n", f.name, f.text)
	}
	fmt.Fprintf(w, "nodeprobe itself: CPU %s; memory %s; samples: %s\n", r.Self.cpu(), dash(r.Self.memory()), dash(r.Self.samples()))
	for _, c := range r.Checks {
		if c.Error != "" {
			fmt.Fprintf(w, "! %s: %s\n", c.Name, c.Error)
		}
	}
}

// writeTable prints a view for people.
func writeTable(w io.Writer, v *view) error {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
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
		_, configured, _ := strings.Cut(s.Threshold, "<") // of what capacity is not known
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
	_ = tw.Flush() // to memory
	for line := range strings.Lines(table.String()) {
		// The empty line that keeps two tables aligned is made of cells.
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	_, err := fmt.Fprintf(w, "\n%s\n", v.summary())
	for _, e := range v.Errors {
		for line := range strings.SplitSeq(e.Error, "\n") {
			_, err = fmt.Fprintf(w, "! %s: %s\n", e.Source, oneLine(line, -1))
		}
		if e.Remedy != "" {
			_, err = fmt.Fprintf(w, "  -> %s\n", e.Remedy)
		}
	}
	return err
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

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// amount writes bytes with three digits and a binary prefix, and counts whole.
func amount(n int64, unit string) string {
	if unit != "bytes" {
		return resource.NewQuantity(n, resource.DecimalSI).String()
	}
	value, prefixes := float64(n), []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	i := 0
	for ; (value >= 1000 || value <= -1000) && i < len(prefixes)-1; i++ {
		value /= 1024
	}
	if i == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%.3g%s", value, prefixes[i])
}

// bar draws how much of a resource is left.
func bar(available, capacity int64) string {
	const width = 20
	if capacity <= 0 {
		return "-"
	}
	share := min(1, max(0, float64(available)/float64(capacity)))
	full := int(share*width + 0.5)
	return strings.Repeat("█", full) + strings.Repeat("·", width-full) + fmt.Sprintf(" %3.0f%%", 100*share)
}
