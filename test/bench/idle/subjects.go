package main

import (
	"fmt"
	"strings"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
)

// subject is nodeprobe with a configuration. Each has one more thing to do than
// the one before.
type subject struct {
	name string
	// adds is what it does in addition.
	adds    string
	config  agent.Config
	scraped bool
}

// node is the name of the subject's Node.
func (s subject) node() string { return strings.ReplaceAll(s.name, " ", "-") }

// observe is nodeprobe with its defaults, and own in that mode; with the others
// they are scraped.
const (
	observe        = "observe"
	observeScraped = "observe scraped"
	own            = "own"
	whole          = "own scraped"
)

// never is longer than the measurement takes.
const never = "1h"

// subjects lists them. What is not set here has its default.
func subjects() []subject {
	base := agent.Config{"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "observe"}
	writes := base.With(agent.Config{"mode": "own"})
	rarely := agent.Config{"nodeStatusUpdateFrequency": never}
	return []subject{
		{name: "no samples", adds: "runtime", config: base.With(agent.Config{"sampleInterval": never})},
		{name: observe, adds: "sample", config: base},
		{name: "own without lease or status", adds: "watch", config: writes.With(rarely).With(agent.Config{"nodeLeaseDurationSeconds": 36000})},
		{name: "own without status", adds: "lease", config: writes.With(rarely)},
		{name: own, adds: "status", config: writes},
		{name: whole, adds: "scrape", config: writes, scraped: true},
		// Not in the row, but what most machines run.
		{name: observeScraped, config: base, scraped: true},
	}
}

// renewals counts renewed Leases.
const renewals = `nodeprobe_heartbeat_renewals_total{result="success"}`

// growth is by how much each metric has grown.
func growth(before, after map[string]float64) map[string]float64 {
	grown := make(map[string]float64, len(after))
	for series, value := range after {
		grown[series] = value - before[series]
	}
	return grown
}

// samples returns how many samples the interval asked for, and how many
// something else did: a stall, a mount. On an idle machine nothing else does.
func samples(grown map[string]float64) (ticks, others float64) {
	for series, n := range grown {
		switch {
		case series == `nodeprobe_sampler_wakeups_total{cause="tick"}`:
			ticks = n
		case strings.HasPrefix(series, "nodeprobe_sampler_wakeups_total{"):
			others += n
		}
	}
	return ticks, others
}

// working fails unless each subject did what it is there for: one that does
// nothing would look good.
func working(costs map[string]footprint.Cost, grown map[string]map[string]float64) error {
	for _, s := range subjects() {
		ticks, others := samples(grown[s.name])
		switch {
		case s.config["sampleInterval"] == nil && ticks+others == 0:
			return fmt.Errorf("%s has taken no sample", s.name)
		case s.config["mode"] == "own" && s.config["nodeLeaseDurationSeconds"] == nil && grown[s.name][renewals] == 0:
			return fmt.Errorf("%s has not renewed its Lease", s.name)
		case s.scraped && costs[s.name].Scrapes == 0:
			return fmt.Errorf("%s was not scraped", s.name)
		}
	}
	return nil
}
