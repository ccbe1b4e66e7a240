package page

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// view is a sample, and what was decided from it, as people and programs read it. It is
// part of GET /api/v1/status and of "nodeprobe snapshot". The names of its fields are an
// interface.
type view struct {
	Time       time.Time       `json:"time"`
	Tier       string          `json:"tier"`
	TierReason string          `json:"tierReason,omitempty"`
	Signals    []signalView    `json:"signals"`
	Conditions []conditionView `json:"conditions"`
	Pressure   []stallView     `json:"pressure,omitempty"`
	Memory     *memoryView     `json:"memory,omitempty"`
	Tasks      *tasksView      `json:"tasks,omitempty"`
	OOMKills   *uint64         `json:"oomKills,omitempty"`
	Kernel     *kernelView     `json:"kernel,omitempty"`
	Errors     []errorView     `json:"errors,omitempty"`
	Took       string          `json:"took"`
}

type signalView struct {
	Name      string `json:"name"`
	Unit      string `json:"unit"`
	Available *int64 `json:"available,omitempty"`
	Capacity  *int64 `json:"capacity,omitempty"`
	// Threshold is the configured one that will be reached first, and Limit its
	// value in the signal's unit.
	Threshold string `json:"threshold,omitempty"`
	Limit     *int64 `json:"limit,omitempty"`
	// TimeToLimit is how long it takes to reach Limit if the present trend goes on: "0s"
	// if it is reached, absent without a trend.
	TimeToLimit string `json:"timeToLimit,omitempty"`
	Error       string `json:"error,omitempty"`
}

type conditionView struct {
	Type   string    `json:"type"`
	Status string    `json:"status"`
	Since  time.Time `json:"since"`
	Why    string    `json:"why,omitempty"`
}

type stallView struct {
	Resource string    `json:"resource"`
	Some     lineView  `json:"some"`
	Full     *lineView `json:"full,omitempty"`
}

type lineView struct {
	Avg10  float64 `json:"avg10"`
	Avg60  float64 `json:"avg60"`
	Avg300 float64 `json:"avg300"`
	Total  string  `json:"total"`
}

type memoryView struct {
	Total      int64 `json:"total"`
	Available  int64 `json:"memAvailable"`
	WorkingSet int64 `json:"workingSet,omitempty"`
	SwapTotal  int64 `json:"swapTotal"`
	SwapFree   int64 `json:"swapFree"`
}

type tasksView struct {
	Running int64 `json:"running"`
	Total   int64 `json:"total"`
	Max     int64 `json:"max"`
}

// kernelView holds what the BPF programs counted since they were attached. A figure whose
// program is not attached is absent.
type kernelView struct {
	Tasks              *uint64 `json:"tasks,omitempty"`
	Forks              *uint64 `json:"forks,omitempty"`
	Exits              *uint64 `json:"exits,omitempty"`
	OOMKills           *uint64 `json:"oomKills,omitempty"`
	DirectReclaims     *uint64 `json:"directReclaims,omitempty"`
	DirectReclaimStall string  `json:"directReclaimStall,omitempty"`
	CgroupReclaims     *uint64 `json:"cgroupReclaims,omitempty"`
	CgroupReclaimStall string  `json:"cgroupReclaimStall,omitempty"`
	BlockErrors        *uint64 `json:"blockErrors,omitempty"`
}

type errorView struct {
	Source string `json:"source"`
	Error  string `json:"error"`
	Remedy string `json:"remedy,omitempty"`
}

func newView(state *nodeprobe.State) view {
	s := &state.Snapshot
	v := view{Time: s.Time.Round(0), Took: s.Took.Round(time.Microsecond).String()}
	v.Tier, v.TierReason = state.Tier()
	for i := range s.Signals {
		sig := probe.Signal(i)
		if sig == probe.ContainerFsAvailable || sig == probe.ContainerFsInodesFree || !sig.Evicts() {
			continue // never observed: see their comments; or shown with the memory
		}
		v.Signals = append(v.Signals, newSignalView(sig, &s.Signals[i], state.Estimates))
	}
	for _, verdict := range state.Verdicts {
		v.Conditions = append(v.Conditions, newConditionView(verdict))
	}
	for i := range s.Pressure {
		if p := &s.Pressure[i]; p.OK {
			stall := stallView{Resource: probe.Resource(i).String(), Some: newLineView(&p.Some)}
			if p.FullOK {
				full := newLineView(&p.Full)
				stall.Full = &full
			}
			v.Pressure = append(v.Pressure, stall)
		}
	}
	if m := &s.Memory; m.OK {
		v.Memory = &memoryView{Total: m.Total, Available: m.Available, WorkingSet: m.WorkingSet, SwapTotal: s.Swap.Total, SwapFree: s.Swap.Free}
	}
	if s.Tasks.OK {
		v.Tasks = &tasksView{Running: s.Tasks.Running, Total: s.Tasks.Total, Max: s.Tasks.Max}
	}
	if s.OOMKills.OK {
		v.OOMKills = &s.OOMKills.Value
	}
	v.Kernel = newKernelView(&s.Kernel)
	for i, err := range s.Errors {
		if err != nil {
			v.Errors = append(v.Errors, errorView{Source: probe.Source(i).String(), Error: err.Error()})
		}
	}
	return v
}

func newSignalView(sig probe.Signal, o *probe.Observation, estimates []pressure.Estimate) signalView {
	v := signalView{Name: sig.String(), Unit: sig.Unit()}
	if o.Err != nil {
		v.Error = o.Err.Error()
	}
	if o.OK {
		v.Available, v.Capacity = &o.Available, &o.Capacity
	}
	for _, e := range estimates {
		if e.Signal != sig {
			continue
		}
		limit := e.Threshold.Value.Of(o.Capacity)
		switch {
		case !o.OK:
			v.Threshold = cmp.Or(v.Threshold, e.Threshold.String())
		case v.Limit == nil || limit > *v.Limit:
			// The highest limit is reached first.
			v.Threshold, v.Limit, v.TimeToLimit = e.Threshold.String(), &limit, ""
			if e.OK {
				v.TimeToLimit = duration.HumanDuration(e.TimeToLimit)
			}
		}
	}
	return v
}

func newConditionView(verdict pressure.Verdict) conditionView {
	v := conditionView{Type: verdict.Condition.String(), Status: verdict.Status.String(), Since: verdict.Since.Round(0)}
	switch {
	case verdict.Met:
		v.Why = verdict.Threshold.String()
	case verdict.Held:
		v.Why = "held since " + verdict.LastMet.Format(time.TimeOnly)
	case verdict.Frozen:
		v.Why = "a signal cannot be read"
	}
	return v
}

func newLineView(l *probe.StallLine) lineView {
	return lineView{Avg10: l.Avg10, Avg60: l.Avg60, Avg300: l.Avg300, Total: l.Total.String()}
}

func newKernelView(c *bpf.Counters) *kernelView {
	if c.Has == 0 {
		return nil
	}
	var v kernelView
	if c.Has.Has(bpf.Tasks) {
		v.Tasks, v.Forks, v.Exits = &c.Tasks, &c.Forks, &c.Exits
	}
	if c.Has.Has(bpf.OOM) {
		v.OOMKills = &c.OOMKills
	}
	if c.Has.Has(bpf.Reclaim) {
		v.DirectReclaims, v.CgroupReclaims = &c.DirectReclaims, &c.CgroupReclaims
		v.DirectReclaimStall, v.CgroupReclaimStall = c.DirectReclaimStall.String(), c.CgroupReclaimStall.String()
	}
	if c.Has.Has(bpf.BlockIO) {
		v.BlockErrors = &c.BlockErrors
	}
	return &v
}
