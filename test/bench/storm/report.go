package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// figureNames are what the conditions are called in figures.
var figureNames = map[corev1.NodeConditionType]string{
	corev1.NodePIDPressure: "pid", corev1.NodeDiskPressure: "disk", corev1.NodeMemoryPressure: "memory",
}

// row is a storm in the table.
func (r *result) row(name string) string {
	cells := []string{name, fmt.Sprintf("%.0f/%.0f", 100*r.some, 100*r.full)}
	for _, condition := range conditions {
		cell := "-"
		for _, c := range r.crossings {
			if c.condition == condition && c.err != nil {
				cell = "none: " + c.err.Error()
			} else if c.condition == condition {
				cell = r.took(c, oursName) + " / " + r.took(c, kubeletName)
			}
		}
		cells = append(cells, cell)
	}
	for _, name := range []string{oursName, exporterTarget.Name} {
		all := millis(r.scrapes[name])
		cells = append(cells, fmt.Sprintf("%.0f, %.0f", median(all), slices.Max(all)))
	}
	return strings.Join(append(cells,
		fmt.Sprintf("%.1f / %.1f", r.gaps[oursName].Seconds(), r.gaps[kubeletName].Seconds()),
		fmt.Sprintf("%d / %d / %d", r.faults[oursName], r.faults[kubeletName], r.faults[exporterTarget.Name])), "\t")
}

const head = "storm\tPSI some/full %\tPID ms\tdisk ms\tmemory ms\tscrape p50, max ms\tnode_exporter's\tLease gap s\tmajor faults"

func (r *result) took(c *crossing, name string) string {
	took, seen := c.after(name, r.end)
	if !seen {
		return fmt.Sprintf(">%.0f", program.Millis(took))
	}
	return fmt.Sprintf("%.0f", program.Millis(took))
}

func millis(scrapes []scrape) (all []float64) {
	for _, s := range scrapes {
		all = append(all, program.Millis(s.took))
	}
	return all
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// figures are those of all storms together. What a Node did not show in its storm counts
// as what was left of the storm: it took more than that.
func figures(storms []*result) (all []program.Figure) {
	for _, condition := range conditions {
		took, missed := map[string][]float64{}, map[string]int{}
		for _, r := range storms {
			for _, c := range r.crossings {
				for _, name := range []string{oursName, kubeletName} {
					if after, seen := c.after(name, r.end); c.condition == condition && c.err == nil {
						took[name] = append(took[name], program.Millis(after))
						if !seen {
							missed[name]++
						}
					}
				}
			}
		}
		ours, theirs, name := took[oursName], took[kubeletName], "storm_"+figureNames[condition]
		if len(ours) == 0 {
			continue
		}
		all = append(all,
			program.Figure{Name: name + "_node_p50", Value: median(ours), Digits: 1, Unit: "ms", Budget: 25, Peer: kubeletName, Beside: median(theirs)},
			program.Figure{Name: name + "_node_max", Value: slices.Max(ours), Digits: 1, Unit: "ms", Budget: 250, Peer: kubeletName, Beside: slices.Max(theirs)},
			program.Figure{Name: name + "_missed", Value: float64(missed[oursName]), Unit: fmt.Sprintf("of_%d", len(ours)), Peer: kubeletName, Beside: float64(missed[kubeletName])})
	}
	scrapes, gaps, faults := map[string][]float64{}, map[string]time.Duration{}, map[string]int64{}
	psi := 100.0
	for _, r := range storms {
		psi = min(psi, 100*r.some)
		for name, some := range r.scrapes {
			scrapes[name] = append(scrapes[name], millis(some)...)
		}
		for name, n := range r.faults {
			faults[name], gaps[name] = max(faults[name], n), max(gaps[name], r.gaps[name])
		}
	}
	ours, theirs := scrapes[oursName], scrapes[exporterTarget.Name]
	return append(all,
		program.Figure{Name: "storm_scrape_p50", Value: median(ours), Digits: 1, Unit: "ms", Budget: 15, Peer: exporterTarget.Name, Beside: median(theirs)},
		program.Figure{Name: "storm_scrape_max", Value: slices.Max(ours), Digits: 1, Unit: "ms", Budget: 100, Peer: exporterTarget.Name, Beside: slices.Max(theirs)},
		program.Figure{Name: "storm_lease_gap_max", Value: gaps[oursName].Seconds(), Digits: 1, Unit: "s", Budget: 12, Peer: kubeletName, Beside: gaps[kubeletName].Seconds()},
		program.Figure{Name: "storm_major_faults", Value: float64(faults[oursName]), Unit: "per_storm", Budget: 5, Peer: kubeletName, Beside: float64(faults[kubeletName])},
		program.Figure{Name: "storm_psi_some_min", Value: psi, Unit: "%"})
}

// explain says more about a storm, and has nodeprobe's log tell why a crossing took long.
func (s *stage) explain(r *result) {
	for _, c := range r.crossings {
		took, _ := c.after(oursName, r.end)
		if c.err != nil {
			s.Logf("%s: not crossed: %v (hog killed: %t)", c.condition, c.err, r.killed)
			continue
		}
		s.Logf("%s: crossed within %s, noticed after %s, at the API after %s (hog killed: %t)", c.condition, c.Below.Sub(c.Above), c.noticed.Sub(c.Above), took, r.killed)
		if took < slow {
			continue
		}
		for _, line := range must.Get(s.agent.Log())(s) {
			if line.Time.After(c.Above.Add(-time.Second)) && line.Time.Before(c.Above.Add(took+slow)) {
				s.Logf("\t%.300s", line.Line)
			}
		}
	}
}

const slow = 100 * time.Millisecond
