package main

import (
	"encoding/json"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// trace is how one crossing made its way, by the clocks of three processes on
// this machine. A step that did not happen, or not yet, is zero.
type trace struct {
	crossed pressure.Crossing
	// happened is when the kernel noticed, event when nodeprobe's user space had
	// that, changed when its sample said so too, answered when the API server had
	// taken the patch: all by nodeprobe's log.
	happened, event, changed, answered time.Time
	// seen is when a watch of the Node, in this process, showed it.
	seen time.Time
	// wavered counts how often others gave back so much meanwhile that the limit
	// was no longer crossed, and had to be crossed again.
	wavered int
}

// The lines of nodeprobe's log that are about a crossing.
const (
	kernelEvent      = "kernel event"
	conditionChanged = "condition changed"
	nodePatched      = "patched node status"
)

// record is what such a line holds.
type record struct {
	Kind      string
	On        bool
	Happened  time.Time
	Age       time.Duration // when user space had it
	Condition string
	Status    string
}

func (r record) arrived() time.Time { return r.Happened.Add(r.Age) }

func parseRecord(r agent.Record) (d record, err error) {
	if r.Msg != kernelEvent && r.Msg != conditionChanged {
		return d, nil
	}
	return d, json.Unmarshal([]byte(r.Line), &d)
}

// follow fills in what the log has since the given time, whatever the order of its
// lines.
func (t *trace) follow(log []agent.Record, condition string, since time.Time) error {
	var events []record
	for _, r := range log {
		d, err := parseRecord(r)
		switch {
		case err != nil:
			return err
		case r.Msg == kernelEvent && d.Kind == "crossing" && d.On && !d.arrived().Before(since):
			events = append(events, d)
		case r.Time.Before(since):
		case r.Msg == conditionChanged && d.Condition == condition && d.Status == "True" && t.changed.IsZero():
			t.changed = r.Time
		case r.Msg == nodePatched && !t.changed.IsZero() && t.answered.IsZero():
			t.answered = r.Time
		}
	}
	// Of several events the last before the verdict: the others were about figures
	// that were below the limit for a moment only.
	for _, e := range events {
		if t.event.IsZero() || t.changed.IsZero() || !e.arrived().After(t.changed) {
			t.event, t.happened = e.arrived(), e.Happened
		}
	}
	return nil
}

// lastStatus is what the log says of the condition in the end, "" if nothing.
func lastStatus(log []agent.Record, condition string) (status string, err error) {
	for _, r := range log {
		d, err := parseRecord(r)
		if err != nil {
			return "", err
		}
		if r.Msg == conditionChanged && d.Condition == condition {
			status = d.Status
		}
	}
	return status, nil
}

// notice is by what a crossing was noticed.
type notice string

const (
	// byEvent: the kernel's event had a sample taken, which agreed.
	byEvent notice = "by the kernel's event"
	// beforeEvent: a sample that something else had asked for was there first.
	beforeEvent notice = "a moment before it"
	// afterEvent: the sample that the event had taken did not agree; a later one did.
	afterEvent notice = "only later, by another sample"
	// byOther: there was no event.
	byOther notice = "without an event"
	// byNone: the Node did not show it in time.
	byNone notice = "not at all"
)

// missed reports whether the kernel did not do its part.
func (n notice) missed() bool { return n != byEvent && n != beforeEvent }

// promptly is how long after an event the sample that it asks for is over, and
// then some. The next that nobody asked for comes after seconds.
const promptly = 250 * time.Millisecond

func (t *trace) notice() notice {
	switch {
	case t.seen.IsZero() || t.changed.IsZero():
		return byNone
	case t.event.IsZero() || t.event.Sub(t.changed) > promptly:
		return byOther
	case t.changed.Before(t.event):
		return beforeEvent
	case t.changed.Sub(t.event) > promptly:
		return afterEvent
	}
	return byEvent
}

// toGo and toNode are what is measured. They count from the last moment at which
// the limit certainly was not crossed, so that they err on the long side; what
// did not happen took as long as it was waited for.
func (t *trace) toGo() time.Duration {
	switch t.notice() {
	case beforeEvent, byOther:
		return since(t.crossed.Above, t.changed)
	}
	return since(t.crossed.Above, t.event)
}

func (t *trace) toNode() time.Duration { return since(t.crossed.Above, t.seen) }

func since(begin, end time.Time) time.Duration {
	if begin.IsZero() || end.IsZero() {
		return noticeTimeout
	}
	// The times in a log are of the wall clock, so no others may be taken either.
	return end.Round(0).Sub(begin.Round(0))
}
