package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
)

// ask sends a request to a handler and returns status and body.
func ask(h http.Handler, method, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

func TestHealth(t *testing.T) {
	var sampler, lease error
	live := []check{{"sampler", func() error { return sampler }}}
	ready := append(live, check{"lease", func() error { return lease }})
	h := web.Routes{"GET /livez": health("livez", live), "GET /healthz": health("healthz", live), "GET /readyz": health("readyz", ready)}.Handler()
	want := func(path string, code int, body string) {
		t.Helper()
		if gotCode, got := ask(h, http.MethodGet, path); gotCode != code || got != body {
			t.Errorf("GET %s: %d %q, want %d %q", path, gotCode, got, code, body)
		}
	}
	want("/livez", 200, "ok")
	want("/healthz", 200, "ok")
	want("/readyz", 200, "ok")
	want("/livez?verbose", 200, "[+]sampler ok\nlivez check passed\n")
	want("/healthz?verbose=1", 200, "[+]sampler ok\nhealthz check passed\n")
	want("/readyz?verbose", 200, "[+]sampler ok\n[+]lease ok\nreadyz check passed\n")

	lease = errors.New("not renewed yet")
	want("/livez", 200, "ok")
	want("/readyz", 503, "[+]sampler ok\n[-]lease failed: not renewed yet\nreadyz check failed\n")
	want("/readyz?verbose", 503, "[+]sampler ok\n[-]lease failed: not renewed yet\nreadyz check failed\n")

	sampler = errors.New("last sample is 1m old")
	want("/livez", 503, "[-]sampler failed: last sample is 1m old\nlivez check failed\n")
	want("/healthz", 503, "[-]sampler failed: last sample is 1m old\nhealthz check failed\n")
	want("/readyz", 503, "[-]sampler failed: last sample is 1m old\n[-]lease failed: not renewed yet\nreadyz check failed\n")
}

// The names, units and help texts of everything that a daemon exports.
func TestMetricsLint(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "")
	d.monitor.observe(d.sampler.Sample())
	h := d.serves().Handler()
	code, body := ask(h, http.MethodGet, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, want := range []string{
		`nodeprobe_signal_available_bytes{signal="memory.available"} 6.442450944e+09`,
		`nodeprobe_condition_status{condition="MemoryPressure"} 0`,
		`nodeprobe_bpf_hook_attached{hook="tp_btf/mark_victim",signal="oom"} 0`,
		`nodeprobe_build_info{`, `process_resident_memory_bytes `, `go_goroutines `,
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(body, "allocatableMemory") {
		t.Error("a signal that is absent is exported")
	}
}

func TestOpenMetrics(t *testing.T) {
	d, _ := testDaemon(t, newTree(t, nil), "")
	d.monitor.observe(d.sampler.Sample())
	h := d.serves().Handler()
	const (
		open10 = "application/openmetrics-text; version=1.0.0; charset=utf-8"
		open00 = "application/openmetrics-text; version=0.0.1; charset=utf-8"
		text   = "text/plain; version=0.0.4; charset=utf-8"
	)
	for _, test := range []struct{ name, accept, want string }{
		{"nobody", "", text},
		{"a browser", "text/html,application/xhtml+xml,*/*;q=0.8", text},
		{"text", "text/plain;version=0.0.4", text},
		{"OpenMetrics", "application/openmetrics-text;version=1.0.0", open10},
		{"OpenMetrics of before", "application/openmetrics-text;version=0.0.1", open00},
		{"Prometheus 2", "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", open10},
		{"Prometheus 3", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", open10},
		{"text rather than OpenMetrics", "application/openmetrics-text;version=1.0.0;q=0.1,text/plain;version=0.0.4;q=0.9", text},
		{"something else", "application/json", text},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", test.accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		// A name's escaping may follow.
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: Content-Type: %s", test.name, got)
		}
		body := w.Body.String()
		isOpen := strings.Contains(test.want, "openmetrics")
		if eof := strings.HasSuffix(body, "# EOF\n"); eof != isOpen {
			t.Errorf("%s: ends in # EOF: %v", test.name, eof)
		}
		// The family of a counter has no _total there.
		if short := strings.Contains(body, "# TYPE nodeprobe_oom_kills counter\n"); short != isOpen {
			t.Errorf("%s: counters of OpenMetrics: %v", test.name, short)
		}
	}
}
