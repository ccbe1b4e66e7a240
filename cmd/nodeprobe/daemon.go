package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"

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
	guard       *guard                 // nil unless the mode is own
	client      *apiClient             // nil unless the mode is own
	shutdown    *shutdownWatcher       // nil unless the mode is own, and it is asked for
	lastWord    string                 // of the Ready condition; "" for none
	recorder    *status.Recorder       // nil unless the mode is own
	oom         *oomReporter
	mounts      *mountReporter
	registry    *prometheus.Registry
	nodeName    string
	log         *slog.Logger

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
	d = &daemon{registry: reg, nodeName: p.nodeName, thresholds: p.thresholds, log: log}
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
		if err := d.own(cfg, p, paths); err != nil {
			return d, err
		}
	}
	d.oom = &oomReporter{
		cgroupfs: filepath.Join(paths.sysfs, "fs/cgroup"), hooked: attached(d.sensor.Hooks(), bpf.OOM),
		record: d.record, log: log,
	}
	d.mounts = &mountReporter{record: d.record, log: log}
	return d, nil
}

// own adds the writers.
func (d *daemon) own(cfg *config, p *policy, paths paths) error {
	client, err := newAPIClient(cfg.Kubeconfig)
	if err != nil {
		return err
	}
	duration := time.Duration(cfg.NodeLeaseDurationSeconds) * time.Second
	d.client, d.guard = client, newGuard(duration, d.log, d.registry)
	statusCfg := nodeConfig(cfg, p)
	statusCfg.Nodes = client.nodes
	statusCfg.Timeout = min(10*time.Second, duration)
	statusCfg.Facts = d.monitor.facts
	statusCfg.Adopt = d.monitor.adopt
	statusCfg.Allow = d.guard.allow
	statusCfg.OnFailure = client.reconnect
	statusCfg.Logger, statusCfg.Registerer = d.log, d.registry
	statusCfg.Record = d.record
	if d.updater, err = status.New(statusCfg); err != nil {
		return fmt.Errorf("set up node status: %w", err)
	}
	d.recorder, err = status.NewRecorder(status.RecorderConfig{
		Node:    d.updater.Owner,
		Events:  client.events,
		Timeout: statusCfg.Timeout,
		// Who reads Events by their source looks for this one.
		Component:  "kubelet",
		OnFailure:  client.reconnect,
		Logger:     d.log,
		Registerer: d.registry,
	})
	if err != nil {
		return fmt.Errorf("set up events: %w", err)
	}
	d.resources = &p.resources
	d.monitor.changed = d.updater.Wake
	d.heartbeater, err = heartbeat.New(heartbeat.Config{
		Leases:     client.leases,
		NodeName:   p.nodeName,
		Duration:   duration,
		Healthy:    d.vouch,
		OnForeign:  d.guard.renewed,
		Owner:      d.updater.Owner,
		OnFailure:  client.reconnect,
		OnLost:     d.updater.Recheck,
		Logger:     d.log,
		Registerer: d.registry,
	})
	if err != nil {
		return fmt.Errorf("set up heartbeat: %w", err)
	}
	d.lastWord = cfg.LastWord
	if cfg.ShutdownGracePeriod > 0 {
		d.shutdown = &shutdownWatcher{
			address: systemBus(paths.rootfs), grace: cfg.ShutdownGracePeriod,
			leave: d.monitor.leave, told: d.toldShutdown, record: d.record, log: d.log,
		}
	}
	return nil
}

// toldShutdown says whether the API server knows that the machine is shutting
// down.
func (d *daemon) toldShutdown() bool {
	node := d.updater.Node()
	return node != nil && slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionFalse && strings.Contains(c.Message, errShuttingDown.Error())
	})
}

// speakLast posts the last word, if there is one, and no more than a second for
// it.
func (d *daemon) speakLast() {
	if d.lastWord == "" || d.guard.err() != nil {
		return
	}
	d.monitor.leave(errors.New(d.lastWord))
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := d.updater.Post(ctx); err != nil {
		d.log.Warn("the last word is not posted", "err", err)
	}
}

// record has an Event posted, unless somebody else looks after the node.
func (d *daemon) record(kind, reason, message string) {
	if d.guard != nil && d.guard.err() == nil {
		d.recorder.Record(kind, reason, message)
	}
}

// vouch says whether this process may say that the node is alive.
func (d *daemon) vouch() error {
	if err := d.guard.err(); err != nil {
		return err
	}
	return d.sampler.Healthy()
}

// run runs the daemon until ctx ends or a task fails.
func (d *daemon) run(ctx context.Context, listener net.Listener) error {
	if d.guard != nil {
		if err := d.guard.start(ctx, d.client.nodes, d.client.leases, d.nodeName); err != nil {
			return err
		}
	}
	first := d.sampler.Sample()
	if d.resources != nil {
		if err := d.resources.Check(&first.Capacity); err != nil {
			return err
		}
	}
	d.observe(first)
	for _, err := range checkThresholds(d.thresholds, first) {
		d.log.Warn("threshold makes no sense on this machine", "err", err)
	}

	settle := time.AfterFunc(trimAfter, func() {
		if err := relax(); err != nil {
			d.log.Debug("timers are not put off", "err", err)
		}
		if err := trim(); err != nil {
			d.log.Debug("memory of the start is not given back", "err", err)
		}
	})
	defer settle.Stop()

	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return d.sampler.Run(ctx, d.observe) })
	tasks.Go(func() error { return d.kernelEvents(ctx) })
	tasks.Go(func() error { return d.notifier.Run(ctx, d.notified) })
	if d.updater != nil {
		tasks.Go(func() error { return d.updater.Run(ctx) })
		tasks.Go(func() error { return d.heartbeater.Run(ctx) })
		tasks.Go(func() error { return d.recorder.Run(ctx) })
		defer d.speakLast()
	}
	if d.shutdown != nil {
		tasks.Go(func() error { return d.shutdown.Run(ctx) })
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

// attached says whether every program that a signal needs is attached.
func attached(hooks []bpf.Hook, signal bpf.Signal) bool {
	found := false
	for _, h := range hooks {
		if h.Signal == signal && !h.Attached {
			return false
		}
		found = found || h.Signal == signal
	}
	return found
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
