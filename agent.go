package nodeprobe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/guard"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/mounts"
	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/internal/rehearsal"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/arm"
	"github.com/nodeprobe/nodeprobe/probe/cputime"
	"github.com/nodeprobe/nodeprobe/probe/notify"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/probe/usage"
)

// ErrOccupied is wrapped by the error of [Agent.Run] in mode Own if a kubelet, or another
// agent, is alive on the node. Trying again and again would take over when that one dies,
// and so hide its death from the cluster.
var ErrOccupied = guard.ErrOccupied

// Agent watches one node, and writes what its mode allows. Make it with [New], start
// it with [Agent.Run]. Its other methods may be called from any goroutine, before,
// during and after Run.
type Agent struct {
	mu      sync.Mutex // guards inForce
	inForce Config     // cfg, and what Reload has changed

	cfg     Config // as New made it; the parts keep pointers to it
	log     *slog.Logger
	started time.Time
	metrics staged.Registry

	sensor   *bpf.Sensor
	hooks    []bpf.Hook
	sampler  *probe.Sampler
	notifier *notify.Notifier
	limits   *arm.Limits
	judge    *judge.Judge
	cpus     *cputime.Collector
	stalls   *usage.Stalls
	mode     mode
	victims  *usage.Victims
	mounts   *mounts.Reporter

	tasks    []task
	pulses   struct{ events, notifier pulse }
	ran      atomic.Bool
	released atomic.Bool

	refreshed time.Time // of the notifier; owned by observe
	rehearsal rehearsal.Rehearsal
}

// New makes an Agent: it attaches the kernel programs and registers the metrics, but
// starts no goroutine and sends nothing. Of the kernel programs, each that cannot be
// attached costs one figure, and is in State.Hooks with its remedy; that is no error.
// The error names each field of cfg that is wrong, or what could not be set up.
//
// Run releases what New has taken; call Close if Run is not to be called.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure agent: %w", err)
	}
	a := &Agent{cfg: cfg, inForce: cfg, log: cfg.Logger, started: time.Now()}
	if err := a.build(); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// withDefaults returns a copy of its own in which what may be left out is filled in.
func (c Config) withDefaults() Config {
	if c.FieldManager == "" {
		c.FieldManager = DefaultFieldManager
	}
	if c.Version == "" {
		c.Version = "v0.0.0"
	}
	if c.KubeletVersion == "" {
		c.KubeletVersion = c.Version
	}
	if c.OnSample == nil {
		c.OnSample = func(*probe.Snapshot) {}
	}
	if c.OnReconnect == nil {
		c.OnReconnect = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = once.Logger(c.Logger)
	return c.detached()
}

// detached returns a copy whose maps and lists the caller may go on to change.
func (c Config) detached() Config {
	c.ImageDirectories, c.NodeIPs = slices.Clone(c.ImageDirectories), slices.Clone(c.NodeIPs)
	c.Thresholds, c.EvictionReserved = slices.Clone(c.Thresholds), slices.Clone(c.EvictionReserved)
	c.Conditions, c.Taints, c.Setters = slices.Clone(c.Conditions), slices.Clone(c.Taints), slices.Clone(c.Setters)
	c.Labels, c.Annotations, c.VolumeLimits = maps.Clone(c.Labels), maps.Clone(c.Annotations), maps.Clone(c.VolumeLimits)
	c.SystemReserved, c.KubeReserved = c.SystemReserved.DeepCopy(), c.KubeReserved.DeepCopy()
	return c
}

// build makes the parts, from leaf to root.
func (a *Agent) build() (err error) {
	cfg, log := &a.cfg, a.log
	a.sensor = bpf.Open(bpf.Options{Disabled: cfg.DisableBPF})
	a.hooks = a.sensor.Hooks()
	a.metrics.MustRegister(a.sensor)
	logHooks(log, a.hooks)
	a.limits = arm.New(arm.Config{Watch: a.sensor.Watch, Levels: a.sensor.Levels, Logger: log})
	sampling := samplerConfig(cfg, a.sensor, &a.metrics)
	sampling.GaveUp = a.limits.GaveUp
	if a.sampler, err = probe.New(sampling); err != nil {
		return fmt.Errorf("set up sampler: %w", err)
	}
	a.judge = judge.New(policy(cfg), a.limits, cfg.Logger, &a.metrics)
	a.cpus = cputime.New(cfg.Procfs, log)
	a.stalls = usage.NewStalls(cfg.Sysfs)
	a.metrics.MustRegister(a.cpus, a.stalls, tierCollector{a.judge, a.hooks})
	if a.notifier, err = notify.New(notify.Config{
		Procfs: cfg.Procfs, Sysfs: cfg.Sysfs, Stalls: stallTriggers(cfg.Conditions), Alive: a.pulses.notifier.beat, Logger: log,
	}); err != nil {
		return fmt.Errorf("set up notifier: %w", err)
	}
	m, err := newMode(cfg, a.judge, a.sampler, &a.metrics)
	if err != nil {
		return err
	}
	a.mode = m
	a.victims = usage.NewVictims(usage.VictimsConfig{
		Procfs: cfg.Procfs, Sysfs: cfg.Sysfs, Rootfs: cfg.Rootfs, Hooked: attached(a.hooks, bpf.OOM),
		Record: a.mode.record, Logger: log,
	})
	a.metrics.MustRegister(a.victims)
	a.mounts = &mounts.Reporter{Record: a.mode.record, Log: log}
	a.tasks = append([]task{
		{"sampler", func(ctx context.Context) error { return a.sampler.Run(ctx, a.observe) }, a.samplerAlive},
		a.pulses.events.task("kernel events", a.kernelEvents),
		a.pulses.notifier.task("notifier", func(ctx context.Context) error { return a.notifier.Run(ctx, a.notified) }),
	}, a.mode.tasks()...)
	return a.metrics.Commit(cfg.Registerer)
}

// diskPatience is how long a verdict on memory and PIDs waits for a disk. A machine that is
// merely busy answers within it.
const diskPatience = 50 * time.Millisecond

// samplerConfig is the sampler's part of a configuration.
func samplerConfig(cfg *Config, sensor *bpf.Sensor, reg *staged.Registry) probe.Config {
	return probe.Config{
		Procfs: cfg.Procfs, Sysfs: cfg.Sysfs, Rootfs: cfg.Rootfs,
		RootDirectory: cfg.RootDirectory, ImageDirectories: cfg.ImageDirectories,
		Interval: cfg.SampleInterval, StatfsTimeout: cfg.StatfsTimeout, DiskPatience: diskPatience,
		Kernel: sensor, Logger: cfg.Logger, Registerer: reg,
	}
}

// errRan is what a second Run returns.
var errRan = errors.New("the agent has run already, or is closed; make another one")

// Run watches the node until ctx ends or a task fails, and returns the cause. It can be
// called once. When it returns, the kernel programs are detached and the metrics are
// unregistered; what was posted stays, but for what Config.RemoveConditions and
// Config.ExitMessage say.
//
// In mode Own the error wraps [ErrOccupied] if a kubelet is alive on the node; then
// nothing was written.
func (a *Agent) Run(ctx context.Context) error {
	if a.ran.Swap(true) {
		return errRan
	}
	defer a.release()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	first := a.sampler.Sample()
	if err := a.mode.check(ctx, first); err != nil {
		return err
	}
	a.observe(first)
	a.warnThresholds(a.cfg.Thresholds, first)
	group, ctx := errgroup.WithContext(ctx)
	for _, t := range a.tasks {
		group.Go(func() error { return t.run(ctx) })
	}
	defer a.mode.exit()
	return group.Wait()
}

// Close releases what New has taken, if Run was not called.
func (a *Agent) Close() {
	if !a.ran.Swap(true) {
		a.release()
	}
}

func (a *Agent) release() {
	if a.released.Swap(true) {
		return
	}
	a.metrics.Release()
	if a.mode != nil {
		a.mode.close()
	}
	if a.sensor != nil {
		if err := a.sensor.Close(); err != nil {
			a.log.Warn("detach kernel programs", "err", err)
		}
	}
	if a.sampler != nil {
		a.sampler.Close()
	}
	if a.cpus != nil {
		a.cpus.Close()
		a.stalls.Close()
	}
}

// Sample requests a sample now, for a viewer. It does not block.
func (a *Agent) Sample() { a.wake(probe.CauseView) }

// Update asks for the setters to be run now: something that one of them sets has
// changed. Changes are posted at once, those within 500 ms of a post as one. It does not
// block.
func (a *Agent) Update() { a.mode.update() }

// RearmBPF does what Run does with the kernel programs from time to time. A caller that
// gives up capabilities finds out this way whether it needs CAP_BPF for that: kernels
// before 5.19 want it.
func (a *Agent) RearmBPF() error { return a.sensor.Refresh() }

// State returns what the Agent knows now.
func (a *Agent) State() State {
	latest := a.judge.Assess()
	s := State{
		Mode: a.cfg.Mode, NodeName: a.cfg.NodeName, Started: a.started,
		Snapshot: latest.Snapshot, Verdicts: latest.Verdicts, Conditions: latest.Findings,
		Estimates: latest.Estimates, Hooks: a.hooks, Samples: a.sampler.Causes(),
	}
	for _, t := range a.tasks {
		s.Live = append(s.Live, Check{t.name, t.alive()})
	}
	conditions := a.judge.Unjudged()
	if s.Snapshot.Time.IsZero() {
		conditions = errNothingSampled
	}
	s.Ready = append(append(s.Ready, s.Live...), Check{"conditions", conditions})
	s.Ready = append(s.Ready, a.mode.checks()...)
	a.mode.report(&s)
	return s
}

// samplerAlive returns why the sampler is stuck, which it cannot be before Run.
func (a *Agent) samplerAlive() error {
	if !a.ran.Load() {
		return nil
	}
	return a.sampler.Healthy()
}

// observe passes a snapshot on. The verdict comes first: it may have to be posted.
func (a *Agent) observe(s *probe.Snapshot) time.Duration {
	changed, next := a.judge.Observe(s)
	a.mode.observe(s, changed)
	a.victims.Counted(s)
	a.mounts.Observe(s)
	if s.Time.Sub(a.refreshed) >= refreshInterval {
		a.refreshed = s.Time
		a.notifier.Refresh()
	}
	a.cfg.OnSample(s)
	return next
}

// refreshInterval is how often the notifier looks for sources that were not there
// before, such as the cgroup of the first pod.
const refreshInterval = time.Minute

// wake asks for a sample now. The callers wait in the kernel for what is next, and a
// thread that does so keeps the others from running until the runtime's monitor
// notices: so they let the sampler run first.
func (a *Agent) wake(cause probe.Cause) {
	a.sampler.Wake(cause)
	runtime.Gosched()
}

// notified samples at once what the kernel hints at.
func (a *Agent) notified(cause notify.Cause) {
	switch cause {
	case notify.Mounts:
		a.limits.Invalidate()
		a.wake(probe.CauseMounts)
		a.mode.mountsChanged()
	case notify.Cgroup:
		a.wake(probe.CauseCgroup)
	case notify.Limits:
		a.wake(probe.CauseLimits)
	default:
		a.wake(probe.CauseStall)
	}
}

// maxEventTime is how long handling one event may take before kernelEvents counts as
// stuck. A victim's names are looked up within a fraction of it.
const maxEventTime = 10 * time.Second

// kernelEvents samples at once what the kernel reports. A lost event costs nothing but
// its attribution: events are only lost while others wait to be read, and the sample
// that those cause reads everything.
func (a *Agent) kernelEvents(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { a.sensor.Close() })
	defer stop()
	for {
		a.pulses.events.beat(0)
		var e bpf.Event
		err := a.sensor.ReadEvent(&e)
		a.pulses.events.beat(maxEventTime)
		switch {
		case errors.Is(err, os.ErrClosed):
			a.pulses.events.beat(0)
			<-ctx.Done()
			return context.Cause(ctx)
		case err != nil:
			a.log.Warn("kernel event could not be read", "err", err)
			select { // the next may fail, too
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		a.heard(&e)
	}
}

func (a *Agent) heard(e *bpf.Event) {
	age := time.Since(e.Time)
	switch e.Kind {
	case bpf.Stale:
		a.limits.Invalidate()
		a.wake(probe.CauseMounts)
	case bpf.ReadOnly:
		a.wake(probe.CauseMounts)
	default:
		a.wake(probe.CauseEvent)
	}
	if e.Kind == bpf.OOMKill {
		a.victims.Killed(e)
		return
	}
	// This line is written after everything that the event has led to.
	a.log.Debug("kernel event", "kind", e.Kind.String(), "watch", e.Watch, "on", e.On,
		"value", e.Value, "limit", e.Limit, "happened", e.Time, "age", age)
}

func (a *Agent) warnThresholds(thresholds []pressure.Threshold, s *probe.Snapshot) {
	for _, err := range CheckThresholds(thresholds, s) {
		a.log.Warn("threshold makes no sense on this machine", "err", err)
	}
}

// CheckThresholds returns an error for each threshold that would keep its condition as
// it is for ever, given the capacities of this machine.
func CheckThresholds(thresholds []pressure.Threshold, s *probe.Snapshot) []error {
	var errs []error
	for _, t := range thresholds {
		if err := t.Check(s.Signals[t.Signal]); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
