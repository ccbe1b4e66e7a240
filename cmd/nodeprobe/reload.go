package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nodeprobe/nodeprobe"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
)

// reloader puts a changed configuration in force, on SIGHUP or within a minute, while
// the kernel programs stay attached. A configuration with a mistake changes nothing.
type reloader struct {
	reloaderConfig

	hangup chan os.Signal
	looks  chan struct{}
	bad    atomic.Bool

	current atomic.Pointer[config.Loaded] // what is in force; written by Run
	state   string                        // of the files that were read last; "" if that is not known; owned by Run

	successful, successTime, restart prometheus.Gauge
}

// reloaderConfig is what a reloader is made from.
type reloaderConfig struct {
	loader *loader
	loaded *config.Loaded // what is in force
	// apply puts a configuration in force, all of it or nothing.
	apply      func(nodeprobe.Config) error
	level      *slog.LevelVar
	supervisor *process.Supervisor
	log        *slog.Logger
}

func newReloader(cfg reloaderConfig, reg prometheus.Registerer) *reloader {
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(reg).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	r := &reloader{
		reloaderConfig: cfg,
		hangup:         make(chan os.Signal, 1), looks: make(chan struct{}, 1),
		successful:  gauge("nodeprobe_config_last_reload_successful", "Whether the configuration that was read last is in force."),
		successTime: gauge("nodeprobe_config_last_reload_success_timestamp_seconds", "When the configuration in force was read."),
		restart:     gauge("nodeprobe_config_restart_needed", "Whether the configuration has fields that are not in force before a restart."),
	}
	r.current.Store(cfg.loaded)
	r.state = r.fileState().text
	r.successful.Set(1)
	r.successTime.SetToCurrentTime()
	return r
}

// onHangup reloads on SIGHUP, until stop is called.
func (r *reloader) onHangup() (stop func()) {
	signal.Notify(r.hangup, syscall.SIGHUP)
	return func() { signal.Stop(r.hangup) }
}

// look asks for a look at the files. It does not block.
func (r *reloader) look() {
	select {
	case r.looks <- struct{}{}:
	default:
	}
}

// refused reports whether the configuration that was read last is not in force.
func (r *reloader) refused() bool { return r.bad.Load() }

// settled is how long a file must have been left alone before it is read without being
// asked for: half of a configuration may be valid.
const settled = 2 * time.Second

// Run reloads when it is asked to, until ctx ends, and returns its cause.
func (r *reloader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.hangup:
			r.reload()
		case <-r.looks:
			if now := r.fileState(); now.text != "" && now.text != r.state && time.Since(now.written) >= settled {
				r.reload()
			}
		}
	}
}

// fileState looks at the files.
func (r *reloader) fileState() fileState {
	state, err := r.loader.look()
	if err != nil {
		r.log.Warn("cannot check the configuration for changes", once.Failure, "configuration files", "err", err)
	} else {
		r.log.Info("configuration files can be checked again", once.Recovery, "configuration files")
	}
	return state
}

// reload reads the configuration and puts it in force, or reports why it is refused.
func (r *reloader) reload() {
	r.supervisor.Reloading()
	defer r.supervisor.Reloaded()
	r.state = r.fileState().text // first: what is written from here on is a change
	err := r.take()
	r.bad.Store(err != nil)
	if err == nil {
		r.successful.Set(1)
		r.successTime.SetToCurrentTime()
		return
	}
	if errors.Is(err, deadline.ErrNoAnswer) {
		r.state = "" // they were not read
	}
	r.successful.Set(0)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		r.log.Error("new configuration refused; keeping the old one", "err", line)
	}
}

// take puts what has changed in force.
func (r *reloader) take() error {
	wanted, err := r.loader.load()
	if err != nil {
		return err
	}
	next, changed, stuck, err := r.current.Load().Merge(wanted)
	if err != nil { // the fields that are not taken over were part of it
		return err
	}
	if len(changed) > 0 {
		if err := r.apply(next.Agent); err != nil {
			return err
		}
	}
	r.current.Store(next)
	r.level.Set(next.LogLevel)
	r.restart.Set(0)
	if len(stuck) > 0 {
		r.restart.Set(1)
		r.log.Warn("changed fields of the configuration need a restart", "fields", strings.Join(stuck, " "))
	}
	switch {
	case len(changed) > 0:
		r.log.Info("configuration reloaded", "changed", strings.Join(changed, " "))
		logRemarks(r.log, next.Remarks)
	case len(stuck) == 0:
		r.log.Info("configuration has not changed")
	}
	return nil
}
