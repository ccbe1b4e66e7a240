package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// report is what the status page and the live table show, and what
// GET /api/v1/status answers.
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

// checkView is one part of /readyz; without an error it is passed.
type checkView struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"`
}

// selfView is what nodeprobe itself costs.
type selfView struct {
	Started       time.Time `json:"started"`
	CPUSeconds    float64   `json:"cpuSeconds"`
	ResidentBytes int64     `json:"residentBytes,omitempty"`
	// RecentCPUShare is of one CPU, in the ten minutes of the history or what
	// there is of them.
	RecentCPUShare *float64 `json:"recentCPUShare,omitempty"`
	// Samples are those taken, by cause.
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

// report says how things are now; ok is false before the first sample.
func (d *daemon) report(now time.Time) (r report, ok bool) {
	facts := d.monitor.facts()
	if facts.Snapshot.Time.IsZero() {
		return report{}, false
	}
	r = report{
		NodeName: d.nodeName, Mode: d.mode, Version: release,
		Snapshot: newView(&facts.Snapshot, facts.Verdicts[:], d.monitor.forecast(), d.sensor.Hooks()),
		Self:     newSelfView(d.started, now, d.sampler.Causes(), d.monitor.past()),
	}
	if d.mode == modeAugment { // or else nobody is told of them
		for _, f := range d.monitor.findings() {
			r.Snapshot.Conditions = append(r.Snapshot.Conditions, newFindingView(f))
		}
	}
	for _, c := range d.readyChecks() {
		v := checkView{Name: c.name}
		if err := c.run(); err != nil {
			v.Error = err.Error()
		}
		r.Checks = append(r.Checks, v)
	}
	if d.writer != nil {
		d.writer.report(&r)
	}
	return r, true
}

// newFindingView shows a condition of our own beside the others.
func newFindingView(f pressure.Finding) conditionView {
	v := conditionView{Type: f.Type, Status: f.Status.String(), Since: f.Since.Round(0)}
	if f.Status != pressure.False {
		v.Why = f.Message
	}
	return v
}

// report adds what mode own writes.
func (o *owner) report(r *report) {
	r.Status = newPostedView(o.updater.Posted())
	lease := o.heartbeater.State()
	r.Lease = &leaseView{Renewed: known(lease.Renewed), Result: lease.Result}
	if err := o.guard.stoodDown(); err != nil {
		r.StoodDown = err.Error()
	}
	runtime := o.runtime.Last()
	r.Snapshot.Errors = append(r.Snapshot.Errors, runtimeErrors(&runtime)...)
}

// report adds what mode augment writes.
func (a *augmenter) report(r *report) {
	if a.recorder != nil { // or else nothing
		r.Status = newPostedView(a.updater.Posted())
	}
}

func newPostedView(p status.Posted) *postedView {
	return &postedView{Posted: known(p.Time), Reason: p.Reason, Bytes: p.Bytes}
}

// known is nil for no time at all.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.Round(0)
	return &t
}

func newSelfView(started, now time.Time, causes [probe.NumCauses]uint64, past []point) selfView {
	v := selfView{Started: started.Round(0), Samples: map[string]uint64{}}
	cpu, ok := cpuTime()
	v.CPUSeconds = cpu.Seconds()
	if ok && len(past) > 0 {
		if period := now.Sub(past[0].time); period >= historyStep {
			share := float64(cpu-past[0].cpu) / float64(period)
			v.RecentCPUShare = &share
		}
	}
	if pages, ok := residentPages(); ok {
		v.ResidentBytes = int64(pages) * int64(os.Getpagesize())
	}
	for i, taken := range causes {
		v.Samples[probe.Cause(i).String()] = taken
	}
	return v
}

// cpu and memory say what nodeprobe costs, samples what has it look.
func (v *selfView) cpu() string {
	text := fmt.Sprintf("%.2f s", v.CPUSeconds)
	if v.RecentCPUShare != nil {
		text += fmt.Sprintf(", lately %.0f ms a minute", *v.RecentCPUShare*60e3)
	}
	return text
}

func (v *selfView) memory() string {
	if v.ResidentBytes == 0 {
		return ""
	}
	return amount(v.ResidentBytes, "bytes")
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

// text says when the status was posted, and text of a Lease when that was renewed.
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
	if v.Result != "" && v.Result != "success" {
		text += ", last attempt: " + strings.ReplaceAll(v.Result, "_", " ")
	}
	return text
}

// ago says how long ago something was, and when.
func ago(t, now time.Time) string {
	return duration.HumanDuration(max(0, now.Sub(t))) + " ago, at " + t.Format(time.TimeOnly)
}
