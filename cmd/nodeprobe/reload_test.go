package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/page"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
)

// reloading is a daemon that runs with a configuration file.
type reloading struct {
	*daemon
	t     *testing.T
	file  string
	level *slog.LevelVar
	log   *testtree.Log
}

// reloadConfig has 6 of 8 GiB available in the tree, so that only a threshold of more
// than that is met.
func reloadConfig(memory, more string) string {
	return fmt.Sprintf("%snodeName: 192.0.2.7\nbpf: \"off\"\nsampleInterval: 1h\nevictionPressureTransitionPeriod: 0s\n"+
		"evictionHard: {memory.available: %s, nodefs.available: 1Ki, nodefs.inodesFree: 0%%, imagefs.available: 0%%, imagefs.inodesFree: 0%%}\n%s",
		header, memory, more)
}

func runReloading(t *testing.T) *reloading {
	t.Helper()
	r := &reloading{t: t, file: filepath.Join(t.TempDir(), "config.yaml"), level: new(slog.LevelVar), log: &testtree.Log{}}
	r.write(reloadConfig("1Gi", ""))
	loader := &loader{files: config.Files{Own: r.file}}
	loaded, err := loader.load()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: r.level}))
	d := &daemon{log: log, registry: prometheus.NewRegistry(), running: make(chan struct{})}
	cfg, err := agentConfig(loaded, pathsOf(testtree.New(t, nil)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger, cfg.Registerer, cfg.OnSample = log, d.registry, d.sampled
	loaded.Agent = cfg // a reload keeps what no file has
	if d.agent, err = nodeprobe.New(cfg); err != nil {
		t.Fatal(err)
	}
	d.supervisor = process.NewSupervisor(process.SupervisorConfig{Alive: d.alive, Status: d.statusLine, Logger: log})
	d.reloader = newReloader(reloaderConfig{
		loader: loader, loaded: loaded, apply: d.agent.Reload, level: r.level, supervisor: d.supervisor, log: log,
	}, d.registry)
	r.daemon = d
	server, err := web.New(t.Context(), web.Config{}, log)
	if err != nil {
		t.Fatal(err)
	}
	d.page = page.New(page.Config{State: d.agent.State, Sample: d.agent.Sample, Memory: process.NewMemory(0, nil).State, History: &d.history})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx, server) }()
	t.Cleanup(func() { stop(); <-done })
	testtree.Eventually(t, "first verdict", func() bool { return r.memory() == 0 })
	return r
}

func (r *reloading) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reloading) memory() float64 {
	return gauge(r.t, r.registry, "nodeprobe_condition_status", "MemoryPressure")
}

func (r *reloading) metric(name string) float64 { return gauge(r.t, r.registry, name, "") }

// hangup reloads, and waits until the log has one more line of that kind.
func (r *reloading) hangup(said string) {
	r.t.Helper()
	before := strings.Count(r.log.String(), said)
	r.reloader.hangup <- syscall.SIGHUP
	testtree.Eventually(r.t, said, func() bool { return strings.Count(r.log.String(), said) > before })
}

const (
	saidReloaded = `msg="configuration reloaded"`
	saidRefused  = `msg="new configuration refused; keeping the old one"`
	saidStuck    = `msg="changed fields of the configuration need a restart"`
)

func TestReload(t *testing.T) {
	r := runReloading(t)
	want := func(step string, memory, successful, restart float64) {
		t.Helper()
		testtree.Eventually(t, step, func() bool {
			return r.memory() == memory && r.metric("nodeprobe_config_last_reload_successful") == successful &&
				r.metric("nodeprobe_config_restart_needed") == restart
		})
	}
	want("as it began", 0, 1, 0)

	r.write(reloadConfig("7Gi", "logLevel: debug\n"))
	r.hangup(saidReloaded + ` changed="evictionHard logLevel"`)
	want("a threshold that is met", 1, 1, 0)
	if r.level.Level() != slog.LevelDebug {
		t.Errorf("level %v", r.level.Level())
	}
	began := r.metric("nodeprobe_config_last_reload_success_timestamp_seconds")

	r.write(reloadConfig("7Gigs", ""))
	r.hangup(saidRefused)
	want("a mistake", 1, 0, 0)
	if !r.reloader.refused() {
		t.Error("it is not known as refused")
	}
	if text := r.log.String(); !strings.Contains(text, r.file+":7: evictionHard[memory.available]: ") {
		t.Errorf("where the mistake is is not said:\n%s", text)
	}
	if now := r.metric("nodeprobe_config_last_reload_success_timestamp_seconds"); now != began {
		t.Errorf("success at %v, was %v", now, began)
	}
	if line := r.statusLine(); !strings.Contains(line, "the configuration is refused") {
		t.Errorf("status %q", line)
	}
	if s := r.agent.State(); s.IsReady() != nil {
		t.Errorf("not ready: %v", s.IsReady())
	}

	r.write(reloadConfig("1Gi", "mode: own\nwebListenAddress: 127.0.0.1:1\nsampleInterval: 1h\n")) // given twice
	r.hangup(saidRefused)
	want("another mistake", 1, 0, 0)

	r.write(reloadConfig("1Gi", "mode: own\nwebListenAddress: 127.0.0.1:1\n"))
	r.hangup(saidStuck + ` fields="mode webListenAddress"`)
	want("some of it needs a restart", 0, 1, 1)

	r.write(reloadConfig("1Gi", ""))
	r.hangup("configuration has not changed")
	want("as it was", 0, 1, 0)

	if err := os.Remove(r.file); err != nil {
		t.Fatal(err)
	}
	r.hangup(saidRefused)
	want("no file", 0, 0, 0)
}

// What happens unasked: only a file that was left alone for a while is read.
func TestReloadByItself(t *testing.T) {
	r := runReloading(t)
	r.reloader.look() // no news
	r.write(reloadConfig("7Gi", ""))
	future := time.Now().Add(time.Hour)
	if err := os.Chtimes(r.file, future, future); err != nil {
		t.Fatal(err)
	}
	r.reloader.look()
	// What is reloaded by hand comes later than that look.
	r.hangup(saidReloaded)
	if n := strings.Count(r.log.String(), saidReloaded); n != 1 {
		t.Errorf("reloaded %d times", n)
	}

	// A ConfigMap: the link leads to another file, which may be older.
	other := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(other, []byte(reloadConfig("1Gi", "")), 0o644); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(other, past, past); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, r.file); err != nil {
		t.Fatal(err)
	}
	r.reloader.look()
	testtree.Eventually(t, "the new file is in force", func() bool { return r.memory() == 0 })
}

// A configuration that cannot be read for a disk that hangs is refused, holds up
// neither the next reload nor the end, and is read when the disk answers.
func TestReloadOfFileThatHangs(t *testing.T) {
	r := runReloading(t)
	answer := testtree.HangingFile(t, r.file)
	r.hangup(saidRefused + ` err="read configuration ` + r.file + `: no answer within 2s`)
	r.hangup(saidRefused)
	answer(reloadConfig("7Gi", ""))
	testtree.Eventually(t, "reloaded", func() bool {
		select {
		case r.reloader.hangup <- syscall.SIGHUP:
		default:
		}
		return r.memory() == 1
	})
}

// Nor is it forgotten meanwhile: the disk may answer, and nobody touch the file again.
func TestReloadOfFileThatHangsIsTriedAgain(t *testing.T) {
	r := runReloading(t)
	answer := testtree.HangingFile(t, r.file)
	defer answer("")
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(r.file, past, past); err != nil {
		t.Fatal(err)
	}
	for want := 1; want <= 2; want++ {
		r.reloader.look()
		testtree.Eventually(t, fmt.Sprintf("attempt %d", want), func() bool { return strings.Count(r.log.String(), saidRefused) >= want })
	}
}
