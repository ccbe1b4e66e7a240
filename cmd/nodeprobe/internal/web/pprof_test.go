package web

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestPprof(t *testing.T) {
	h := pprofRoutes().Handler()
	for path, want := range map[string]string{
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=2": "goroutine ",
		"/debug/pprof/heap?gc=1":         "\x1f\x8b", // gzip
		"/debug/pprof/allocs":            "\x1f\x8b",
		"/debug/pprof/threadcreate":      "\x1f\x8b",
		"/debug/pprof/cmdline":           "web.test",
		"/debug/pprof/symbol":            "num_symbols: 1",
	} {
		if code, body := ask(h, http.MethodGet, path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d %.100q", path, code, body)
		}
	}
	for path, want := range map[string]int{
		"/debug/pprof/nothing":             http.StatusNotFound,
		"/debug/pprof/profile?seconds=601": http.StatusBadRequest,
		"/debug/pprof/trace?seconds=600.5": http.StatusBadRequest,
		"/debug/pprof/heap?seconds=601":    http.StatusBadRequest,
	} {
		if code, _ := ask(h, http.MethodGet, path); code != want {
			t.Errorf("GET %s: %d, want %d", path, code, want)
		}
	}
}

// A profile may take longer than a server allows any other request, through the toolkit
// too.
func TestPprofCPU(t *testing.T) {
	s := servingMain(t, Config{File: webFiles(t, "", nil)}, pprofRoutes(), func(server *http.Server) {
		server.ReadTimeout, server.ReadHeaderTimeout = 500*time.Millisecond, time.Minute
		server.WriteTimeout = 500 * time.Millisecond
	})
	begin := time.Now()
	resp, body, err := visit(t, s.URL()+"debug/pprof/profile?seconds=1", "", "", nil)
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
