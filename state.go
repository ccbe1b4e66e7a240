package nodeprobe

import (
	"errors"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// State is what an [Agent] knows at one moment: a value, with nothing live behind it.
// A status page, health endpoints and a report are made from it.
type State struct {
	Mode     Mode
	NodeName string
	// Started is when the Agent was made.
	Started time.Time

	// Snapshot is the latest sample. Its Time is zero before the first.
	Snapshot probe.Snapshot
	// Verdicts are about MemoryPressure, DiskPressure and PIDPressure, by
	// [pressure.Condition]; Conditions are about Config.Conditions, in that order. Mode
	// Own leaves out those that only repeat a verdict, as on the Node.
	Verdicts   [pressure.NumConditions]pressure.Verdict
	Conditions []pressure.Finding
	// Estimates are when each of Config.Thresholds will be reached.
	Estimates []pressure.Estimate
	// Hooks are the kernel programs, and why some are missing.
	Hooks []bpf.Hook
	// Samples counts those taken, by [probe.Cause].
	Samples [probe.NumCauses]uint64

	// Live are the Agent's tasks: one with an error is stuck, whether or not the API
	// server can be reached. Restarting the process may fix it.
	Live []Check
	// Ready are Live, and whether the work reaches where it should: every condition
	// could be judged, the status is posted, the Lease is renewed.
	Ready []Check

	// Posted is the latest patch of the Node; nil in a mode that writes none.
	Posted *status.Posted
	// Lease is nil but in mode Own.
	Lease *heartbeat.State
	// StoodDown is why mode Own has stopped writing until a restart, or nil.
	StoodDown error
	// Runtime is what the container runtime last reported; nil without one.
	Runtime *cri.Snapshot
}

// Check is one named part of a health endpoint. It passes if Err is nil.
type Check struct {
	Name string
	Err  error
}

// Tier reports how much help of the kernel is in use, and why not more: "procfs"
// alone, with "psi" (stall figures, Linux 4.20), or with "bpf" programs as well.
func (s *State) Tier() (name, reason string) { return tier(&s.Snapshot, s.Hooks) }

func tier(s *probe.Snapshot, hooks []bpf.Hook) (name, reason string) {
	name = "psi"
	var reasons []string
	for _, h := range hooks {
		switch {
		case h.Attached:
			name = "bpf"
		case len(reasons) > 0: // one says enough
		case errors.Is(h.Err, bpf.ErrDisabled):
			reasons = append(reasons, "BPF is "+h.Err.Error())
		default:
			reasons = append(reasons, h.Name+": "+h.Err.Error())
		}
	}
	if err := s.Pressure[probe.MemoryResource].Err; err != nil {
		reasons = append(reasons, err.Error())
		if name == "psi" {
			name = "procfs"
		}
	}
	return name, strings.Join(reasons, "; ")
}

// Alive returns why the Agent is stuck, or nil.
func (s *State) Alive() error { return firstError(s.Live) }

// IsReady returns why the Agent's work does not reach where it should, or nil.
func (s *State) IsReady() error { return firstError(s.Ready) }

func firstError(checks []Check) error {
	for _, c := range checks {
		if c.Err != nil {
			return c.Err
		}
	}
	return nil
}
