package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/page"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// configzFields returns what /configz has.
func configzFields(t *testing.T, url string) map[string]any {
	t.Helper()
	code, body := get(t, url+"/configz")
	if code != http.StatusOK || !strings.HasPrefix(body, `{"nodeprobeconfig":{`) {
		t.Fatalf("%d %s", code, body)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	return got["nodeprobeconfig"]
}

// /configz has the configuration in force: files, flags and defaults, also after a
// reload, by SIGHUP. Read as a file it comes to the same.
func TestConfigz(t *testing.T) {
	file := writeConfig(t, "evictionPressureTransitionPeriod: 90s\nmaxPods: 250\n")
	ctx, stop := context.WithCancel(t.Context())
	s := start(ctx, append(flags(testtree.New(t, nil)), "--config", file, "--web.listen-address=127.0.0.1:0", "--log.level=info", "--hostname-override=worker-1")...)
	t.Cleanup(func() { stop(); s.wait(t) })
	url := "http://" + s.address(t)

	want := map[string]any{"nodeName": "worker-1", "logLevel": "info", "maxPods": 250.0, "evictionPressureTransitionPeriod": "1m30s", "sampleInterval": "10s", "webConfigFile": ""}
	check := func(step string) {
		t.Helper()
		fields := configzFields(t, url)
		for field, value := range want {
			if diff := cmp.Diff(value, fields[field]); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", step, field, diff)
			}
		}
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		again := writeConfig(t, "")
		if err := os.WriteFile(again, text, 0o644); err != nil {
			t.Fatal(err)
		}
		loaded, err := config.Load(config.Files{Own: again})
		if err != nil {
			t.Fatalf("%s: what is served is no configuration: %v", step, err)
		}
		served, err := json.Marshal(loaded.Fields())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(text), string(served)); diff != "" {
			t.Errorf("%s: it comes to something else (-served +read):\n%s", step, diff)
		}
	}
	check("at the start")

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.NewReplacer("maxPods: 250", "maxPods: 200", "90s", "30s").Replace(string(text)) + "statfsTimeout: 3s\n"
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testtree.Eventually(t, "reload", func() bool { return strings.Contains(s.stderr.String(), "configuration reloaded") })
	want["maxPods"], want["evictionPressureTransitionPeriod"] = 200.0, "30s"
	want["statfsTimeout"] = "2s" // this one needs a restart
	check("after a reload")

	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		request, err := http.NewRequestWithContext(t.Context(), method, url+"/configz", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, resp.StatusCode)
		}
	}
}

// Each address has what it is for: the health endpoints are at both, and nothing else
// at their own.
func TestAddresses(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	s := start(ctx, append(flags(testtree.New(t, nil)), "--config", writeConfig(t, ""),
		"--web.listen-address=127.0.0.1:0", "--web.health-listen-address=127.0.0.1:0", "--web.enable-pprof")...)
	t.Cleanup(func() { stop(); s.wait(t) })
	web := "http://" + s.address(t)
	_, after, _ := strings.Cut(s.stderr.String(), "healthListen=")
	address, _, _ := strings.Cut(after, "\n")
	health := "http://" + address
	testtree.Eventually(t, "served", func() bool { code, _ := get(t, web+"/readyz"); return code == http.StatusOK })
	for path, want := range map[string]struct{ web, health int }{
		"/": {200, 404}, "/api/v1/status": {200, 404}, "/api/v1/history": {200, 404}, "/metrics": {200, 404}, "/configz": {200, 404},
		"/livez": {200, 200}, "/readyz": {200, 200}, "/healthz": {200, 404}, "/debug/pprof/": {200, 404}, "/nothing": {404, 404},
	} {
		for url, want := range map[string]int{web + path: want.web, health + path: want.health} {
			if code, body := get(t, url); code != want {
				t.Errorf("GET %s: %d, want %d: %.200s", url, code, want, body)
			}
		}
	}
}

// Each flag of run that sets a field of the configuration does so.
func TestSettings(t *testing.T) {
	values := map[string]string{
		"mode": "augment", "hostname-override": "n", "kubeconfig": "/k", "web.listen-address": "127.0.0.1:1",
		"web.health-listen-address": "127.0.0.1:2", "web.config.file": "/w", "log.level": "warn", "log.format": "json",
	}
	for _, s := range settings {
		value, ok := values[s.flag]
		if !ok {
			t.Errorf("no value for --%s", s.flag)
			continue
		}
		loaded, err := config.Load(config.Files{Settings: []config.Setting{{Flag: s.flag, Field: s.field, Value: value}}})
		if err != nil {
			t.Errorf("--%s: %v", s.flag, err)
			continue
		}
		if got := loaded.Fields()[s.field]; got != value {
			t.Errorf("--%s: %s is %v, want %s", s.flag, s.field, got, value)
		}
	}
}

// Memory that only starting needed is given back, and the daemon goes on: with its
// programs and symbols read again from the disk, it must not crash.
func TestTrim(t *testing.T) {
	url := startOn(t, testtree.New(t, nil), "")
	testtree.Eventually(t, "ready", func() bool { code, _ := get(t, url+"/readyz"); return code == http.StatusOK })
	for range 3 {
		if err := process.Trim(); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/", "/metrics", "/api/v1/status", "/configz", "/readyz"} {
			if code, body := get(t, url+path); code != http.StatusOK {
				t.Errorf("GET %s: %d: %.200s", path, code, body)
			}
		}
	}
}

// BenchmarkScrape is what a scrape of /metrics costs, all of the daemon's metrics
// included.
func BenchmarkScrape(b *testing.B) {
	loaded, err := config.Load(config.Files{})
	if err != nil {
		b.Fatal(err)
	}
	d := &daemon{log: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry(), running: make(chan struct{})}
	cfg, err := agentConfig(loaded, paths{"/proc", "/sys", "/"})
	if err != nil {
		b.Fatal(err)
	}
	cfg.Registerer, cfg.OnSample = d.registry, d.sampled
	if d.agent, err = nodeprobe.New(cfg); err != nil {
		b.Fatal(err)
	}
	d.supervisor = process.NewSupervisor(process.SupervisorConfig{Alive: d.alive, Status: d.statusLine, Logger: d.log})
	d.reloader = newReloader(reloaderConfig{loader: &loader{}, loaded: loaded, log: d.log}, d.registry)
	d.page = page.New(page.Config{State: d.agent.State, Sample: d.agent.Sample, Memory: process.NewMemory(0, nil).State, History: &d.history})
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- d.agent.Run(ctx) }()
	<-d.running
	handler := d.routes()["GET /metrics"]
	b.ReportAllocs()
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil))
	}
	stop()
	if err := <-done; fmt.Sprint(err) != context.Canceled.Error() {
		b.Error(err)
	}
}
