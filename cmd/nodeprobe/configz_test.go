package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// What is served is a configuration that comes to the same when it is read again.
func TestConfigz(t *testing.T) {
	const text = header + `mode: own
evictionHard: {memory.available: 1Gi}
evictionPressureTransitionPeriod: 90s
nodeLabels: {rack: r7}
registerWithTaints: [{key: a, value: b, effect: NoSchedule}]
imageDirectories: []
maxPods: 250
`
	cfg, _, err := parseConfig("f", []byte(text), setting{"log.level", "logLevel", "warn", func(c *config) *string { return &c.LogLevel }})
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(prometheus.NewRegistry(), nil, nil, slog.New(slog.DiscardHandler), route{"GET /configz", configz(&cfg, "worker-1")})
	code, body := ask(server.Handler, http.MethodGet, "/configz")
	if code != http.StatusOK || !strings.HasPrefix(body, `{"nodeprobeconfig":{`) {
		t.Fatalf("%d %s", code, body)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	fields := got["nodeprobeconfig"]
	if n := reflect.TypeFor[config]().NumField(); len(fields) != n || len(got) != 1 {
		t.Errorf("%d fields, want %d:\n%s", len(fields), n, body)
	}
	for field, want := range map[string]any{
		"nodeName": "worker-1", "logLevel": "warn", "maxPods": 250.0, "evictionPressureTransitionPeriod": "1m30s",
		"imageDirectories": []any{}, "evictionSoft": map[string]any{}, "webConfigFile": "",
	} {
		if diff := cmp.Diff(want, fields[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}

	again, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	read, _, err := parseConfig("configz", again)
	if err != nil {
		t.Fatal(err)
	}
	cfg.NodeName = "worker-1"
	if diff := cmp.Diff(cfg, read); diff != "" {
		t.Errorf("(-served +read):\n%s", diff)
	}

	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if code, _ := ask(server.Handler, method, "/configz"); code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, code)
		}
	}
}

func TestPprof(t *testing.T) {
	h := newServer(prometheus.NewRegistry(), nil, nil, slog.New(slog.DiscardHandler), pprofRoutes()...).Handler
	for path, want := range map[string]string{
		"/debug/pprof/":                  "goroutine ",
		"/debug/pprof/goroutine?debug=2": "goroutine ",
		"/debug/pprof/heap?gc=1":         "\x1f\x8b", // gzip
		"/debug/pprof/allocs":            "\x1f\x8b",
		"/debug/pprof/threadcreate":      "\x1f\x8b",
	} {
		if code, body := ask(h, http.MethodGet, path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d %.100q", path, code, body)
		}
	}
	for path, want := range map[string]int{
		"/debug/pprof/nothing":             http.StatusNotFound,
		"/debug/pprof/profile?seconds=601": http.StatusBadRequest,
	} {
		if code, _ := ask(h, http.MethodGet, path); code != want {
			t.Errorf("GET %s: %d, want %d", path, code, want)
		}
	}
}

// The CPU's profile may take longer than any other answer, through the gate too.
func TestPprofCPU(t *testing.T) {
	g, err := newWebGate(webFiles(t, "", nil), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(prometheus.NewRegistry(), nil, nil, g.log, pprofRoutes()...)
	server.ReadTimeout, server.ReadHeaderTimeout = 500*time.Millisecond, time.Minute
	server.WriteTimeout = 1 // a nanosecond
	g.guard(server)
	address, _ := serving(t, server)
	begin := time.Now()
	resp, body, err := visit(t, "http://"+address+"/debug/pprof/profile?seconds=1", "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("it was cut short after %s", took)
	}
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(body, "\x1f\x8b") {
		t.Errorf("%d %.100q", resp.StatusCode, body)
	}
}
