package page

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// report is what the status page and the live table show, and the response of
// GET /api/v1/status. The names of its fields are an interface.
type report struct {
	NodeName string      `json:"nodeName"`
	Mode     string      `json:"mode"`
	Version  string      `json:"version"`
	Checks   []checkView `json:"checks"`
	Snapshot view        `json:"snapshot"`
	Self     selfView    `json:"self"`
	// Status, Lease and StoodDown are about what the mode writes.
	Status    *postedView `json:"status,omitempty"`
	Lease     *leaseView  `json:"lease,omitempty"`
	StoodDown string      `json:"stoodDown,omitempty"`
}

// checkView is one part of /readyz. It passed if Error is empty.
type checkView struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"`
}

// selfView is what nodeprobe itself costs.
type selfView struct {
	Started       time.Time `json:"started"`
	CPUSeconds    float64   `json:"cpuSeconds"`
	ResidentBytes int64     `json:"residentBytes,omitempty"`
	// LockedBytes is absent where no memory is locked.
	LockedBytes int64 `json:"lockedBytes,omitempty"`
	// MajorFaults are those since everything was rehearsed.
	MajorFaults int64 `json:"majorFaults"`
	// RecentCPUShare is of one CPU, over the History.
	RecentCPUShare *float64 `json:"recentCPUShare,omitempty"`
	// Samples counts those taken, by cause.
	Samples map[string]uint64 `json:"samples"`
}

type postedView struct {
	Posted *time.Time `json:"posted,omitempty"`
	Reason string     `json:"reason,omitempty"`
	Bytes  int        `json:"bytes,omitempty"`
}

type leaseView struct {
	Renewed *time.Time `json:"renewed,omitempty"`
	Result  string     `json:"result,omitempty"`
}

func (p *Page) report(s *nodeprobe.State, now time.Time) report {
	memory := p.Memory()
	r := report{
		NodeName: s.NodeName, Mode: string(s.Mode), Version: p.Version,
		Snapshot: newView(s), Self: newSelfView(s, &memory, now, p.History.points()),
		Status: newPostedView(s.Posted), Lease: newLeaseView(s.Lease),
	}
	if s.Mode != nodeprobe.Observe { // otherwise no Node has them
		for _, f := range s.Conditions {
			r.Snapshot.Conditions = append(r.Snapshot.Conditions, newFindingView(f))
		}
	}
	for _, c := range s.Ready {
		v := checkView{Name: c.Name}
		if c.Err != nil {
			v.Error = c.Err.Error()
		}
		r.Checks = append(r.Checks, v)
	}
	if s.StoodDown != nil {
		r.StoodDown = s.StoodDown.Error()
	}
	r.Snapshot.Errors = append(r.Snapshot.Errors, runtimeErrors(s.Runtime)...)
	if memory.Err != nil {
		reason, remedy := process.LockRemedy(memory.Err)
		r.Snapshot.Errors = append(r.Snapshot.Errors, errorView{Source: "memory lock", Error: reason, Remedy: remedy})
	}
	return r
}

func newFindingView(f pressure.Finding) conditionView {
	v := conditionView{Type: f.Type, Status: f.Status.String(), Since: f.Since.Round(0)}
	if f.Status != pressure.False {
		v.Why = f.Message
	}
	return v
}

func newPostedView(p *status.Posted) *postedView {
	if p == nil {
		return nil
	}
	return &postedView{Posted: known(p.Time), Reason: p.Reason, Bytes: p.Bytes}
}

func newLeaseView(s *heartbeat.State) *leaseView {
	if s == nil {
		return nil
	}
	return &leaseView{Renewed: known(s.Renewed), Result: s.Result}
}

// known returns nil for the zero time.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.Round(0)
	return &t
}

func newSelfView(s *nodeprobe.State, memory *process.MemoryState, now time.Time, past []point) selfView {
	v := selfView{Started: s.Started.Round(0), Samples: map[string]uint64{}, LockedBytes: memory.Bytes, MajorFaults: memory.MajorFaults}
	cpu, ok := process.CPUTime()
	v.CPUSeconds = cpu.Seconds()
	if ok && len(past) > 0 {
		if period := now.Sub(past[0].time); period >= historyStep {
			share := float64(cpu-past[0].cpu) / float64(period)
			v.RecentCPUShare = &share
		}
	}
	v.ResidentBytes, _ = process.ResidentBytes()
	for i, taken := range s.Samples {
		v.Samples[probe.Cause(i).String()] = taken
	}
	return v
}

func (v *selfView) cpu() string {
	text := fmt.Sprintf("%.2f s", v.CPUSeconds)
	if v.RecentCPUShare != nil {
		text += fmt.Sprintf(", recently %.0f ms a minute", *v.RecentCPUShare*60e3)
	}
	return text
}

func (v *selfView) memory() string {
	if v.ResidentBytes == 0 {
		return ""
	}
	text := amount(v.ResidentBytes, "bytes")
	if v.LockedBytes > 0 {
		text += ", " + amount(v.LockedBytes, "bytes") + " locked"
	}
	switch v.MajorFaults {
	case 0:
	case 1:
		text += ", 1 major fault"
	default:
		text += fmt.Sprintf(", %d major faults", v.MajorFaults)
	}
	return text
}

func (v *selfView) samples() string {
	var parts []string
	for i := range probe.NumCauses {
		cause := probe.Cause(i).String()
		if n := v.Samples[cause]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", cause, n))
		}
	}
	return strings.Join(parts, ", ")
}

func (v *postedView) text(now time.Time) string {
	if v.Posted == nil {
		return "not posted yet"
	}
	return fmt.Sprintf("posted %s (%s, %d bytes)", ago(*v.Posted, now), v.Reason, v.Bytes)
}

func (v *leaseView) text(now time.Time) string {
	text := "not renewed yet"
	if v.Renewed != nil {
		text = "renewed " + ago(*v.Renewed, now)
	}
	if v.Result != "" && v.Result != heartbeat.ResultSuccess {
		text += ", last attempt: " + strings.ReplaceAll(v.Result, "_", " ")
	}
	return text
}
