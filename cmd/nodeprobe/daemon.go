package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/arm"
	"github.com/nodeprobe/nodeprobe/probe/notify"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	podusage "github.com/nodeprobe/nodeprobe/probe/usage"
)

// daemon is everything that "nodeprobe run" runs, wired up and not started.
type daemon struct {
	sensor     *bpf.Sensor
	sampler    *probe.Sampler
	notifier   *notify.Notifier
	monitor    *monitor
	limits     *arm.Limits
	thresholds []pressure.Threshold
	writer     writer // nil where there is no API server
	victims    *podusage.Victims
	mounts     *mountReporter
	supervisor *supervisor // nil if nobody wants to hear
	reloader   *reloader   // nil if the configuration stays
	registry   *prometheus.Registry
	routes     []route // besides those of the page, health and metrics
	log        *slog.Logger

	nodeName, mode string
	started        time.Time

	refreshed time.Time // of the notifier; owned by observe
}

// writer is what a mode writes to the API server.
type writer interface {
	// check returns why this node must not, or cannot, be written to.
	check(ctx context.Context, first *probe.Snapshot) error
	// start starts the tasks.
	start(ctx context.Context, tasks *errgroup.Group)
	// change has another configuration taken over, all of it or nothing.
	change(cfg *config, p *policy, s *probe.Snapshot) error
	// alive returns why what start started does not go on, be there an API server or
	// not.
	alive() error
	// readyChecks say whether the API server hears of us.
	readyChecks() []check
	// report adds what was written to a report.
	report(r *report)
	// record has an Event posted.
	record(kind, reason, message string)
	// mountsChanged says that something was mounted or unmounted. It does not block.
	mountsChanged()
	// speakLast posts what there is to say after the tasks have ended.
	speakLast()
}

// newDaemon builds the daemon from leaf to root. The caller closes it.
func newDaemon(cfg *config, p *policy, paths paths, log *slog.Logger) (d *daemon, err error) {
	started := time.Now()
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		selfCollector{started},
		goCollector{},
		buildInfo(),
	)
	d = &daemon{registry: reg, thresholds: p.thresholds, log: log, nodeName: p.nodeName, mode: cfg.Mode, started: started}
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
	d.limits = arm.New(arm.Config{Watch: d.sensor.Watch, Levels: d.sensor.Levels, Logger: log})
	d.monitor.watch = d.limits.Update
	reg.MustRegister(tierCollector{d.monitor, d.sensor.Hooks()})
	if d.notifier, err = notify.New(notify.Config{Procfs: paths.procfs, Sysfs: paths.sysfs, Logger: log}); err != nil {
		return d, fmt.Errorf("set up notifier: %w", err)
	}
	record := func(string, string, string) {}
	if d.writer, err = newWriter(cfg, p, paths, d.sampler, d.monitor, log, reg); err != nil {
		return d, err
	}
	if d.writer != nil {
		record = d.writer.record
	}
	d.victims = podusage.NewVictims(podusage.VictimsConfig{
		Sysfs: paths.sysfs, Rootfs: paths.rootfs,
		Hooked: attached(d.sensor.Hooks(), bpf.OOM), Record: record, Logger: log,
	})
	d.mounts = &mountReporter{record: record, log: log}
	d.superviseBy(newSupervisor(log), cfg.Mode, p.nodeName)
	return d, nil
}

// newWriter returns the mode's writer; nil if it has none.
func newWriter(cfg *config, p *policy, paths paths, sampler *probe.Sampler, monitor *monitor, log *slog.Logger, reg prometheus.Registerer) (writer, error) {
	switch {
	case cfg.Mode == modeOwn:
		return newOwner(cfg, p, paths, sampler, monitor, log, reg)
	case cfg.Mode == modeAugment, cfg.Shadow:
		return newAugmenter(cfg, p, monitor, log, reg)
	}
	return nil, nil
}

// run runs the daemon until ctx ends or a task fails.
func (d *daemon) run(ctx context.Context, server *web.Server) error {
	first := d.sampler.Sample()
	if d.writer != nil {
		if err := d.writer.check(ctx, first); err != nil {
			return err
		}
	}
	d.observe(first)
	d.warnThresholds(d.thresholds, first)

	settle := time.AfterFunc(trimAfter, func() {
		if err := trim(); err != nil {
			d.log.Debug("memory of the start is not given back", "err", err)
		}
	})
	defer settle.Stop()

	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return d.sampler.Run(ctx, d.observe) })
	tasks.Go(func() error { return d.kernelEvents(ctx) })
	tasks.Go(func() error { return d.notifier.Run(ctx, d.notified) })
	if d.writer != nil {
		d.writer.start(ctx, tasks)
		defer d.writer.speakLast()
	}
	if server != nil {
		tasks.Go(func() error { return server.Run(ctx, d.serves()) })
	}
	if d.reloader != nil {
		tasks.Go(func() error { return d.reloader.Run(ctx) })
	}
	if d.supervisor != nil {
		tasks.Go(func() error { return d.supervisor.Run(ctx) })
	}
	return tasks.Wait()
}

func (d *daemon) warnThresholds(thresholds []pressure.Threshold, s *probe.Snapshot) {
	for _, err := range checkThresholds(thresholds, s) {
		d.log.Warn("threshold makes no sense on this machine", "err", err)
	}
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
	checks := append(d.liveChecks(), check{"conditions", d.monitor.judged})
	if d.writer != nil {
		checks = append(checks, d.writer.readyChecks()...)
	}
	return checks
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
