package page

import (
	"strings"
	"testing"
	"time"
)

func hostileReport() *report {
	const evil = "<script>alert(1)</script>\"'&\x00\u202e\xff"
	four, two := int64(4), int64(2)
	return &report{
		NodeName: evil, Mode: evil, Version: evil, StoodDown: evil,
		Checks: []checkView{{Name: evil, Error: evil + "\n" + evil}},
		Snapshot: view{
			Tier: evil, TierReason: evil, Took: evil,
			Signals:    []signalView{{Name: evil, Unit: evil, Available: &two, Capacity: &four, Limit: &two, TimeToLimit: evil}, {Name: evil, Error: evil}},
			Conditions: []conditionView{{Type: evil, Status: evil, Why: evil}},
			Pressure:   []stallView{{Resource: evil}},
			Errors:     []errorView{{Source: evil, Error: evil, Remedy: evil}},
		},
		Self:   selfView{Samples: map[string]uint64{evil: 1}},
		Status: &postedView{Posted: &begin, Reason: evil},
		Lease:  &leaseView{Result: evil},
	}
}

// No text becomes markup.
func TestPageEscapes(t *testing.T) {
	var m, calm markup
	m.page(hostileReport(), nil)
	calm.page(&report{}, nil)
	page := m.buf.String()
	for _, bad := range []string{"<script>alert", "\x00", "\u202e", "\xff", "\"'&", "<script>\"", "%!"} {
		if strings.Contains(strings.Replace(page, pageScript, "", 1), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	const escaped = "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\ufffd\ufffd\ufffd"
	if n := strings.Count(page, escaped); n < 18 {
		t.Errorf("%q is there %d times", escaped, n)
	}
	for _, p := range []string{page, calm.buf.String()} {
		if n, m := strings.Count(p, "<script"), strings.Count(p, "<style"); n != 1 || m != 1 {
			t.Errorf("%d scripts, %d styles", n, m)
		}
	}
}

// Decisions are in words, not only in colours.
func TestPageText(t *testing.T) {
	node := view{Time: begin, Tier: "bpf", Conditions: []conditionView{
		{Type: "MemoryPressure", Status: "False", Since: begin.Add(-time.Hour)},
		{Type: "DiskPressure", Status: "False", Since: begin},
	}}
	pressed := node
	pressed.Conditions = []conditionView{
		{Type: "MemoryPressure", Status: "True", Why: "memory.available<100Mi", Since: begin.Add(-90 * time.Second)},
		{Type: "DiskPressure", Status: "Unknown", Since: begin},
	}
	four, two, eight := int64(4<<30), int64(2<<30), int64(8<<30)
	pressed.Pressure = []stallView{{Resource: "memory", Some: lineView{Avg10: 0.5}}}
	pressed.Signals = []signalView{
		{Name: "memory.available", Unit: "bytes", Available: &two, Capacity: &eight, Limit: &four, TimeToLimit: "0s"},
		{Name: "pid.available", Unit: "tasks", Error: "no such file"},
	}
	lost := pressed
	lost.Conditions = pressed.Conditions[1:]
	renewed := begin.Add(-2 * time.Second)
	share := 0.001
	for _, test := range []struct {
		name string
		r    report
		want []string
		not  []string
	}{
		{
			"healthy",
			report{NodeName: "a", Mode: "observe", Snapshot: node},
			[]string{"<title>a: no pressure</title>", `<p class="verdict False" role="status">`, "for 60m, since ", "<dt>Writes</dt><dd>nothing</dd>"},
			[]string{">Errors<", "alarm\">"},
		},
		{
			"pressure",
			report{NodeName: "a", Snapshot: pressed},
			[]string{
				"<title>a: MemoryPressure</title>", `<p class="verdict True" role="status">`, "memory.available&lt;100Mi", "for 90s, since ",
				`aria-valuenow="25" aria-valuetext="25 % left, limit at 50.0 %"`, "<tr role=\"row\" class=\"reached\">",
				`<p class="note">Last 10 minutes: the lowest value in each 5 s`, `<p class="note">Charts: the last 10 minutes; the highest 10 s average in each 5 s`, "<td>50.0%</td>", "</i>reached</td>", "cannot be read",
			},
			nil,
		},
		{"unknown", report{NodeName: "a", Snapshot: lost}, []string{"<title>a: unknown: DiskPressure</title>", "verdict Unknown"}, nil},
		{
			"own",
			report{
				NodeName: "a", Mode: "own", Snapshot: node,
				Status: &postedView{Posted: &renewed, Reason: "changed", Bytes: 321}, Lease: &leaseView{Renewed: &renewed, Result: "skipped_foreign"},
				Self: selfView{CPUSeconds: 1.5, RecentCPUShare: &share, ResidentBytes: 14 << 20, LockedBytes: 13 << 20, MajorFaults: 2, Samples: map[string]uint64{"tick": 7, "view": 2, "event": 0}},
			},
			[]string{
				"posted 2s ago, at 03:04:03 (changed, 321 bytes)", "renewed 2s ago, at 03:04:03, last attempt: skipped foreign",
				"1.50 s, recently 60 ms a minute", "14Mi, 13Mi locked, 2 major faults", "<dd>tick 7, view 2</dd>",
			},
			nil,
		},
		{
			"own, not yet",
			report{Mode: "own", Snapshot: node, Status: &postedView{}, Lease: &leaseView{}, StoodDown: "stood down until restart: kubelet renews the node's lease"},
			[]string{"not posted yet", "not renewed yet", "<p class=\"alarm\">stood down until restart: kubelet renews", ": stood down</title>", "verdict True"},
			nil,
		},
		{
			"unhealthy",
			report{Snapshot: node, Checks: []checkView{{Name: "sampler", Error: "last sample is 1m old"}, {Name: "lease"}}},
			[]string{"<p class=\"alarm\">sampler: last sample is 1m old</p>"},
			[]string{"alarm\">lease"},
		},
	} {
		var m markup
		m.page(&test.r, nil)
		for _, want := range test.want {
			if !strings.Contains(m.buf.String(), want) {
				t.Errorf("%s: no %s in\n%s", test.name, want, m.buf.String())
			}
		}
		for _, not := range test.not {
			if strings.Contains(m.buf.String(), not) {
				t.Errorf("%s: there is %s", test.name, not)
			}
		}
	}
}

// A line has a gap where nothing was read for a while, and a single point is visible.
func TestPlot(t *testing.T) {
	figures := []plotFigure{
		{begin.Add(-11 * time.Minute), 0},
		{begin.Add(-10 * time.Minute), 10},
		{begin.Add(-9 * time.Minute), 5},
		{begin.Add(-5 * time.Minute), 0},
		{begin, 20},
	}
	limit, off := 2.5, 30.0
	for _, test := range []struct {
		name  string
		limit *float64
		want  []string
	}{
		{"limit", &limit, []string{`<path class="limit" d="M0 75.0H600"/>`, `d="M0 100.0L0 0.0L60 50.0h1M300 100.0h1M600 -100.0h1"`, `d="M0 100L0 100.0L0 0.0L60 50.0V100zM300 100L300 100.0V100zM600 100L600 -100.0V100z"`}},
		{"limit off the scale", &off, []string{`viewBox="0 -4 600 108" preserveAspectRatio="none"><path class="area a"`}},
	} {
		var m markup
		p := plot{label: "l", now: begin, gap: time.Minute, top: 10, limit: test.limit, lines: []plotLine{{"a", true, figures}}}
		p.write(&m)
		for _, want := range test.want {
			if !strings.Contains(m.buf.String(), want) {
				t.Errorf("%s: no %s in %s", test.name, want, m.buf.String())
			}
		}
	}
}
