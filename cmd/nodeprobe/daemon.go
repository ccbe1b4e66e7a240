package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// daemon is everything that "nodeprobe run" runs, wired up and not started.
type daemon struct {
	sensor      *bpf.Sensor
	sampler     *probe.Sampler
	notifier    *probe.Notifier
	monitor     *monitor
	limits      *kernelLimits
	thresholds  []pressure.Threshold
	updater     *status.Updater        // nil unless the mode is own
	heartbeater *heartbeat.Heartbeater // nil unless the mode is own
	resources   *status.Resources      // nil unless the mode is own
	registry    *prometheus.Registry
	log         *slog.Logger
	cgroupfs    string

	refreshed time.Time // of the notifier; owned by observe
}

// newDaemon builds the daemon from leaf to root. The caller closes it.
func newDaemon(cfg *config, p *policy, paths paths, log *slog.Logger) (d *daemon, err error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		selfCollector{time.Now()},
		goCollector(),
		buildInfo(),
	)
	d = &daemon{registry: reg, thresholds: p.thresholds, log: log, cgroupfs: filepath.Join(paths.sysfs, "fs/cgroup")}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	d.sensor = bpf.Open(bpf.Options{Disabled: cfg.BPF == "off"})
	reg.MustRegister(d.sensor)
	logHooks(log, d.sensor.Hooks())

	d.sampler, err = probe.New(samplerConfig(cfg, paths, d.sensor, log, reg))
	if err != nil {
		return d, fmt.Errorf("set up sampler: %w", err)
	}
	d.monitor = newMonitor(cfg, p, d.sampler.Healthy, log, reg)
	d.limits = &kernelLimits{watch: d.sensor.Watch, levels: d.sensor.Levels, log: log}
	d.monitor.watch = d.limits.update
	reg.MustRegister(tierCollector{d.monitor, d.sensor.Hooks()})
	if d.notifier, err = probe.NewNotifier(probe.NotifierConfig{Procfs: paths.procfs, Sysfs: paths.sysfs, Logger: log}); err != nil {
		return d, fmt.Errorf("set up notifier: %w", err)
	}
	if cfg.Mode == modeOwn {
		if err := d.own(cfg, p); err != nil {
			return d, err
		}
	}
	return d, nil
}

// own adds the two writers.
func (d *daemon) own(cfg *config, p *policy) error {
	client, err := newAPIClient(cfg.Kubeconfig)
	if err != nil {
		return err
	}
	duration := time.Duration(cfg.NodeLeaseDurationSeconds) * time.Second
	statusCfg := nodeConfig(cfg, p)
	statusCfg.Nodes = client.nodes
	statusCfg.Timeout = min(10*time.Second, duration)
	statusCfg.Facts = d.monitor.facts
	statusCfg.Adopt = d.monitor.adopt
	statusCfg.OnFailure = client.reconnect
	statusCfg.Logger, statusCfg.Registerer = d.log, d.registry
	if d.updater, err = status.New(statusCfg); err != nil {
		return fmt.Errorf("set up node status: %w", err)
	}
	d.resources = &p.resources
	d.monitor.changed = d.updater.Wake
	d.heartbeater, err = heartbeat.New(heartbeat.Config{
		Leases:     client.leases,
		NodeName:   p.nodeName,
		Duration:   duration,
		Healthy:    d.sampler.Healthy,
		Owner:      d.updater.Owner,
		OnFailure:  client.reconnect,
		OnLost:     d.updater.Recheck,
		Logger:     d.log,
		Registerer: d.registry,
	})
	if err != nil {
		return fmt.Errorf("set up heartbeat: %w", err)
	}
	return nil
}

// run runs the daemon until ctx ends or a task fails.
func (d *daemon) run(ctx context.Context, listener net.Listener) error {
	first := d.sampler.Sample()
	if d.resources != nil {
		if err := d.resources.Check(&first.Capacity); err != nil {
			return err
		}
	}
	d.monitor.observe(first)
	for _, err := range checkThresholds(d.thresholds, first) {
		d.log.Warn("threshold makes no sense on this machine", "err", err)
	}

	trimmer := time.AfterFunc(trimAfter, func() {
		if err := trim(); err != nil {
			d.log.Debug("memory of the start is not given back", "err", err)
		}
	})
	defer trimmer.Stop()

	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return d.sampler.Run(ctx, d.observe) })
	tasks.Go(func() error { return d.kernelEvents(ctx) })
	tasks.Go(func() error { return d.notifier.Run(ctx, d.notified) })
	if d.updater != nil {
		tasks.Go(func() error { return d.updater.Run(ctx) })
		tasks.Go(func() error { return d.heartbeater.Run(ctx) })
	}
	if listener != nil {
		server := newServer(d.registry, d.liveChecks(), d.readyChecks(), d.log)
		tasks.Go(func() error { return serve(ctx, server, listener) })
	}
	return tasks.Wait()
}

// checkThresholds says which thresholds would make a condition stay as it is for
// ever, now that the capacities are known.
func checkThresholds(thresholds []pressure.Threshold, s *probe.Snapshot) []error {
	var errs []error
	for _, t := range thresholds {
		if err := t.Check(s.Signals[t.Signal]); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (d *daemon) liveChecks() []check {
	return []check{{"sampler", d.sampler.Healthy}}
}

func (d *daemon) readyChecks() []check {
	checks := d.liveChecks()
	if d.updater != nil {
		checks = append(checks, check{"status", d.updater.Ready}, check{"lease", d.leaseReady})
	}
	return checks
}

func (d *daemon) leaseReady() error {
	s := d.heartbeater.State()
	if s.Err != nil {
		return s.Err
	}
	if s.Renewed.IsZero() {
		return errors.New("lease is not renewed yet")
	}
	return nil
}

// close detaches everything. It is safe after a failed newDaemon.
func (d *daemon) close() {
	if d.sensor != nil {
		if err := d.sensor.Close(); err != nil {
			d.log.Warn("detach BPF programs", "err", err)
		}
	}
	if d.sampler != nil {
		d.sampler.Close()
	}
}

// samplerConfig is the probe's part of the configuration.
func samplerConfig(cfg *config, paths paths, sensor *bpf.Sensor, log *slog.Logger, reg prometheus.Registerer) probe.Config {
	return probe.Config{
		Procfs: paths.procfs, Sysfs: paths.sysfs, Rootfs: paths.rootfs,
		RootDirectory: cfg.RootDirectory, ImageDirectories: cfg.ImageDirectories,
		Interval: cfg.SampleInterval, StatfsTimeout: cfg.StatfsTimeout,
		Kernel: sensor, Logger: log, Registerer: reg,
	}
}

// nodeConfig is the status package's part of the configuration, without the
// connections.
func nodeConfig(cfg *config, p *policy) status.Config {
	kubeletVersion := cfg.KubeletVersion
	if kubeletVersion == "" {
		kubeletVersion = version()
	}
	return status.Config{
		NodeName: p.nodeName,
		Register: cfg.RegisterNode,
		Registration: status.Registration{
			Labels: cfg.NodeLabels, Taints: p.taints, ProviderID: cfg.ProviderID,
			ControllerAttachDetach: cfg.EnableControllerAttachDetach,
		},
		Addresses: status.Addresses{
			NodeName: p.nodeName, Hostname: p.nodeName, NodeIPs: p.nodeIPs,
			ExternalCloudProvider: cfg.CloudProvider == "external",
		},
		Resources:      p.resources,
		KubeletVersion: kubeletVersion, Port: cfg.Port,
		UpdateFrequency: cfg.NodeStatusUpdateFrequency, ReportFrequency: cfg.NodeStatusReportFrequency,
	}
}

// logHooks says once what of the kernel side works. One line per signal that
// does not: its programs fail together. What was turned off is not missing.
func logHooks(log *slog.Logger, hooks []bpf.Hook) {
	var attached int
	seen := map[bpf.Signal]bool{}
	for _, h := range hooks {
		switch {
		case h.Attached:
			attached++
		case errors.Is(h.Err, bpf.ErrDisabled):
			log.Info("kernel programs are turned off by the configuration")
			return
		case !seen[h.Signal]:
			seen[h.Signal] = true
			log.Warn("kernel signal is missing", "signal", h.Signal.String(), "hook", h.Name, "err", h.Err, "remedy", h.Remedy)
		}
	}
	log.Info("kernel programs attached", "attached", attached, "of", len(hooks))
}
