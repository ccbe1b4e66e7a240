package nodeprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/mounts"
	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/internal/rehearsal"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/arm"
	"github.com/nodeprobe/nodeprobe/probe/notify"
	"github.com/nodeprobe/nodeprobe/probe/usage"
)

// Rehearse does once everything that an Agent has to do in a hurry: it samples and
// judges, posts a changed status, an Event and a Lease, reports a process that was killed,
// connects to the API server, and meets errors of all kinds. A process whose memory is
// locked, or becomes so where it is touched, then waits for no disk when it matters.
//
// All of that is done by parts of its own, like those of the Agent, with a log and metrics
// that nobody sees, and what they write are dry runs, over connections of their own: no
// condition, no metric and nothing on the API server changes by it. An Agent that must not
// write, or does not know its Node, sends nothing.
//
// It is called while Run runs, and takes a few seconds. The error names the steps that
// failed; the rest is rehearsed all the same. Called again, it takes only those, such as
// the API server that was away: once State.IsReady returns nil, it is not.
func (a *Agent) Rehearse(ctx context.Context) error {
	r, err := a.newRehearser()
	if err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	return a.rehearsal.Run(ctx, a.log, []rehearsal.Step{
		{Name: "sampling", Do: r.sample},
		{Name: "judging", Do: r.judge, Always: true},
		{Name: "kernel programs", Do: r.kernel},
		{Name: "API server", Do: func(ctx context.Context) error { return a.mode.rehearse(ctx, r) }},
		// The garbage of the others should not stay in locked memory.
		{Name: "garbage collection", Do: func(context.Context) error { runtime.GC(); return nil }, Always: true},
	})
}

// rehearser is what the steps of a rehearsal share.
type rehearser struct {
	agent  *Agent
	double *Agent // does what the agent does, in mode Observe
	cfg    Config // in force, but nobody gets its log, metrics and callbacks
	log    *slog.Logger

	snapshot          probe.Snapshot
	pressed, released judge.Assessment // of snapshots under every pressure, and of this one
}

func (a *Agent) newRehearser() (*rehearser, error) {
	snapshot, ok := a.sampler.Last()
	if !ok {
		return nil, errNothingSampled
	}
	a.mu.Lock()
	cfg := a.inForce
	a.mu.Unlock()
	lines := slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}) //nolint:sloglint // Lines are put together, and go nowhere.
	cfg.Logger = once.Logger(slog.New(lines))
	cfg.Registerer, cfg.OnSample, cfg.OnReconnect = nil, func(*probe.Snapshot) {}, func() {}
	r := &rehearser{agent: a, cfg: cfg, log: cfg.Logger, snapshot: snapshot}
	return r, r.makeDouble()
}

// makeDouble makes the double's parts, none of which runs.
func (r *rehearser) makeDouble() (err error) {
	cfg, reg, record := &r.cfg, new(staged.Registry), observeMode{}.record
	d := &Agent{cfg: r.cfg, log: r.log, mode: observeMode{}, mounts: &mounts.Reporter{Record: record, Log: r.log}}
	d.limits = arm.New(arm.Config{Watch: func([]bpf.Watch) error { return nil }, Levels: r.agent.sensor.Levels, Logger: r.log})
	sampling := samplerConfig(cfg, r.agent.sensor, reg)
	sampling.GaveUp = d.limits.GaveUp
	if d.sampler, err = probe.New(sampling); err != nil {
		return fmt.Errorf("set up sampler: %w", err)
	}
	if d.notifier, err = notify.New(notify.Config{Procfs: cfg.Procfs, Sysfs: cfg.Sysfs, Logger: r.log}); err != nil {
		return fmt.Errorf("set up notifier: %w", err)
	}
	d.judge = judge.New(policy(cfg), d.limits, r.log, reg)
	d.victims = usage.NewVictims(usage.VictimsConfig{
		Procfs: cfg.Procfs, Sysfs: cfg.Sysfs, Rootfs: cfg.Rootfs, Hooked: attached(r.agent.hooks, bpf.OOM),
		Record: record, Logger: r.log,
	})
	r.double = d
	return nil
}

// sample takes samples for every reason there is.
func (r *rehearser) sample(ctx context.Context) error {
	d := r.double
	ctx, stop := context.WithCancel(ctx)
	var sampling sync.WaitGroup
	sampling.Go(func() { _ = d.sampler.Run(ctx, d.observe) }) // the cause of ctx
	defer func() {
		stop()
		sampling.Wait()
		d.sampler.Close()
	}()
	for cause := range notify.NumCauses {
		d.notified(notify.Cause(cause))
	}
	for kind := bpf.OOMKill; kind <= bpf.Stale; kind++ {
		// The root's cgroup, and nobody's process.
		e := bpf.Event{Kind: kind, Time: time.Now(), Scope: bpf.ScopeCgroup, CgroupID: 1}
		copy(e.Comm[:], "rehearsal")
		d.heard(&e)
	}
	d.victims.Collect(make(chan prometheus.Metric, 1)) // nobody's process: one series
	return rehearsal.Until(ctx, func() bool {
		var taken uint64
		for _, n := range d.sampler.Causes() {
			taken += n
		}
		return taken >= 2 // the first also opens the files
	})
}

// judge brings every condition about and ends it again, on paper.
func (r *rehearser) judge(context.Context) error {
	s, pressed := r.snapshot, underPressure(r.snapshot)
	for range 2 { // however long a condition takes to begin
		pressed.Time = pressed.Time.Add(24 * time.Hour)
		r.double.limits.Invalidate()
		r.double.observe(&pressed)
	}
	r.pressed = r.double.judge.Assess()
	for s.Time = pressed.Time; s.Time.Before(pressed.Time.Add(72 * time.Hour)); { // or to end
		s.Time = s.Time.Add(24 * time.Hour)
		r.double.observe(&s)
	}
	r.released = r.double.judge.Assess()
	return nil
}

// underPressure returns a snapshot of the same machine in every trouble.
func underPressure(s probe.Snapshot) probe.Snapshot {
	for i := range s.Signals {
		s.Signals[i].Available = 0
	}
	for i := range s.Pressure {
		all := probe.StallLine{Avg10: 1, Avg60: 1, Avg300: 1, Total: s.Pressure[i].Some.Total + time.Minute}
		s.Pressure[i].Some, s.Pressure[i].Full = all, all
	}
	for _, fs := range []*probe.Filesystem{&s.NodeFs, &s.ImageFs} {
		if fs.Mount != (probe.Mount{}) {
			fs.Mount.SuperOptions = "ro"
		}
	}
	s.OOMKills.Value += 4 // that nobody reported
	return s
}

// kernel has the kernel measure, and the agent look again at what wakes it, as both do
// from time to time.
func (r *rehearser) kernel(context.Context) error {
	a := r.agent
	a.notifier.Refresh()
	a.limits.Invalidate()
	err := a.sensor.Rehearse()
	if attached(a.hooks, bpf.Pressure) { // without it, there is nothing to measure with
		err = errors.Join(err, a.RearmBPF())
	}
	return err
}
