package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// pageServer serves the page of a daemon.
func pageServer(d *daemon) http.Handler {
	routes := web.Routes{}
	for _, r := range d.pageRoutes() {
		routes[r.pattern] = r.handler
	}
	return routes.Handler()
}

// fetch gets a path, which must be there.
func fetch(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	return w
}

func TestPageRoutes(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "")
	h := pageServer(d)
	for _, path := range []string{"/", "/api/v1/status"} {
		if code, body := ask(h, http.MethodGet, path); code != http.StatusServiceUnavailable || body != "no sample yet\n" {
			t.Errorf("GET %s before the first sample: %d %q", path, code, body)
		}
	}
	d.monitor.observe(d.sampler.Sample())
	for path, kind := range map[string]string{"/": "text/html; charset=utf-8", "/api/v1/status": "application/json", "/api/v1/history": "application/json"} {
		header := fetch(t, h, path).Header()
		for name, want := range map[string]string{
			"Content-Type": kind, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("GET %s: %s: %q, want %q", path, name, got, want)
			}
		}
		if code, _ := ask(h, http.MethodHead, path); code != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, code)
		}
		if code, _ := ask(h, http.MethodPost, path); code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, code)
		}
	}
	for _, path := range []string{"/index.html", "/page.css", "/page.js", "/favicon.ico", "/api", "/api/", "/api/v1", "/api/v1/status/", "/api/v1/nodes", "/debug/pprof/"} {
		if code, _ := ask(h, http.MethodGet, path); code != http.StatusNotFound {
			t.Errorf("GET %s: %d", path, code)
		}
	}
}

// The policy allows the page's one style and its one script, as they are in the
// page, and nothing that is in an attribute or comes from elsewhere.
func TestPagePolicy(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "")
	d.monitor.observe(d.sampler.Sample())
	w := fetch(t, pageServer(d), "/")
	page, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("the policy is %q", policy)
	}
	for _, element := range []string{"style", "script"} {
		found := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(page, -1)
		if len(found) != 1 {
			t.Fatalf("%d elements %s", len(found), element)
		}
		sum := sha256.Sum256([]byte(found[0][1]))
		if want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; !strings.Contains(policy, want) {
			t.Errorf("no %s in %q", want, policy)
		}
		page = strings.Replace(page, found[0][0], "", 1)
	}
	if bad := regexp.MustCompile(`(?i)<[^>]* (on\w+|style|src)=|https?://`).FindString(page); bad != "" {
		t.Errorf("the page has %q", bad)
	}
	if len(pageStyle)+len(pageScript) > 12<<10 {
		t.Errorf("style and script are %d bytes", len(pageStyle)+len(pageScript))
	}
}

// The names are an interface: what reads them breaks if they change.
func TestStatusGolden(t *testing.T) {
	tr := newTree(t, map[string]string{"proc/pressure/io": ""})
	d, _ := testDaemon(t, tr, "")
	d.monitor.observe(d.sampler.Sample())
	var out map[string]any
	if err := json.Unmarshal(fetch(t, pageServer(d), "/api/v1/status").Body.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	stripFilesystems(t, out)
	self := out["self"].(map[string]any)
	for _, name := range []string{"cpuSeconds", "residentBytes"} {
		if n, ok := self[name].(float64); !ok || n <= 0 {
			t.Errorf("self.%s is %v", name, self[name])
		}
		self[name] = 1
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(out); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.json", normal(tr, strings.ReplaceAll(text.String(), release, "RELEASE")))
}

// Who looks has a sample taken, unless there is a fresh one.
func TestLookingTakesSamples(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "sampleInterval: 1h\n")
	h := pageServer(d)
	old := d.sampler.Sample()
	old.Time = old.Time.Add(-time.Minute)
	d.monitor.observe(old)
	done := make(chan error, 1)
	observed := make(chan struct{}, 1)
	go func() {
		done <- d.sampler.Run(t.Context(), func(s *probe.Snapshot) time.Duration {
			s.Time = s.Time.Add(-time.Minute) // as if that was long ago
			d.monitor.observe(s)
			observed <- struct{}{}
			return 0
		})
	}()
	<-observed
	for i, path := range []string{"/", "/api/v1/status"} {
		fetch(t, h, path)
		<-observed
		if views := d.sampler.Causes()[probe.CauseView]; views != uint64(i+1) {
			t.Errorf("%d samples for who looks, want %d", views, i+1)
		}
	}
}

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

// Nothing that anybody says is markup.
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

// What is decided is said in words, not only in colours.
func TestPageSays(t *testing.T) {
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
			"all is well",
			report{NodeName: "a", Mode: "observe", Snapshot: node},
			[]string{"<title>a: no pressure</title>", `<p class="verdict False" role="status">`, "for 60m, since ", "<dt>Writes</dt><dd>nothing</dd>"},
			[]string{"What could not be read", "alarm\">"},
		},
		{
			"pressure",
			report{NodeName: "a", Snapshot: pressed},
			[]string{
				"<title>a: MemoryPressure</title>", `<p class="verdict True" role="status">`, "memory.available&lt;100Mi", "for 90s, since ",
				`aria-valuenow="25" aria-valuetext="25 % left, limit at 50.0 %"`, "<tr role=\"row\" class=\"reached\">", "</i>reached</td>", "cannot be read",
			},
			nil,
		},
		{"unknown", report{NodeName: "a", Snapshot: lost}, []string{"<title>a: unknown: DiskPressure</title>", "verdict Unknown"}, nil},
		{
			"own",
			report{
				NodeName: "a", Mode: "own", Snapshot: node,
				Status: &postedView{Posted: &renewed, Reason: "changed", Bytes: 321}, Lease: &leaseView{Renewed: &renewed, Result: "skipped_foreign"},
				Self: selfView{CPUSeconds: 1.5, RecentCPUShare: &share, ResidentBytes: 14 << 20, Samples: map[string]uint64{"tick": 7, "view": 2, "event": 0}},
			},
			[]string{
				"posted 2s ago, at 03:04:03 (changed, 321 bytes)", "renewed 2s ago, at 03:04:03, last attempt: skipped foreign",
				"1.50 s, lately 60 ms a minute", "14Mi", "<dd>tick 7, view 2</dd>",
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
			"not well",
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

// A line has a hole where nothing was read for a while, and an alone point is to be
// seen.
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

// A condition of our own says why it is not False.
func TestFindingView(t *testing.T) {
	for status, want := range map[pressure.Status]conditionView{
		pressure.False:   {Type: "example.com/A", Status: "False", Since: begin},
		pressure.True:    {Type: "example.com/A", Status: "True", Since: begin, Why: "it is so"},
		pressure.Unknown: {Type: "example.com/A", Status: "Unknown", Since: begin, Why: "it is so"},
	} {
		if got := newFindingView(pressure.Finding{Type: "example.com/A", Status: status, Message: "it is so", Since: begin}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// The live table tells what the page tells of the writers and of itself.
func TestScreenTellsOfItself(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "")
	d.monitor.observe(d.sampler.Sample())
	var text bytes.Buffer
	d.writeScreen(&text, "")
	if !regexp.MustCompile(`\nnodeprobe itself: CPU \d+\.\d\d s; memory [\d.]+Mi; samples: -\n`).MatchString(text.String()) {
		t.Errorf("got\n%s", text.String())
	}
}
