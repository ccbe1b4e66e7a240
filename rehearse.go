package nodeprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/once"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/arm"
	"github.com/nodeprobe/nodeprobe/probe/deadline"
	"github.com/nodeprobe/nodeprobe/probe/usage"
)

// rehearsalStep bounds each step of a rehearsal. The longest, of the API server, takes some
// four seconds, in which it mostly waits.
const rehearsalStep = 10 * time.Second

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
// failed; the rest is rehearsed all the same.
func (a *Agent) Rehearse(ctx context.Context) error {
	r, err := a.newRehearsal()
	if err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	var errs []error
	for _, s := range []step{
		{"sampling", r.sample},
		{"judging", r.judge},
		{"attribution of a kill", r.victims},
		{"kernel programs", r.kernel},
		{"API server", func(ctx context.Context) error { return a.mode.rehearse(ctx, r) }},
		// The garbage of the others should not stay in locked memory.
		{"garbage collection", func(context.Context) error { runtime.GC(); return nil }},
	} {
		start := time.Now()
		err := s.bounded(ctx)
		a.log.Debug("rehearsed", "step", s.name, "took", time.Since(start), "err", err)
		if err != nil {
			errs = append(errs, fmt.Errorf("rehearse %s: %w", s.name, err))
		}
	}
	return errors.Join(errs...)
}

// step is a part of a rehearsal.
type step struct {
	name string
	do   func(context.Context) error
}

// bounded runs a step, and leaves it alone if it does not end in time: it may wait for a
// disk.
func (s step) bounded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rehearsalStep)
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var worker deadline.Worker[error]
	err, late := worker.Do(rehearsalStep+time.Second, s.name, func() error { return s.do(ctx) })
	return errors.Join(late, err)
}

// rehearsal is what its steps share.
type rehearsal struct {
	agent *Agent
	cfg   Config // in force, and heard by nobody
	log   *slog.Logger

	snapshot          probe.Snapshot
	pressed, released judge.Assessment // of snapshots under every pressure, and of this one
	record            func(kind, reason, message string)
}

func (a *Agent) newRehearsal() (*rehearsal, error) {
	snapshot, ok := a.sampler.Last()
	if !ok {
		return nil, errNothingSampled
	}
	a.mu.Lock()
	cfg := a.inForce
	a.mu.Unlock()
	// Lines are put together, and go nowhere.
	cfg.Logger = once.Logger(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})))
	cfg.Registerer, cfg.OnSample, cfg.OnReconnect = nil, nil, func() {}
	return &rehearsal{agent: a, cfg: cfg, log: cfg.Logger, snapshot: snapshot, record: func(string, string, string) {}}, nil
}

// sample takes two samples with files of its own: the first opens them.
func (r *rehearsal) sample(context.Context) error {
	sampler, err := probe.New(samplerConfig(&r.cfg, r.agent.sensor, new(registrations)))
	if err != nil {
		return fmt.Errorf("set up sampler: %w", err)
	}
	defer sampler.Close()
	sampler.Sample()
	sampler.Sample()
	return nil
}

// judge brings every condition about and ends it again, on paper.
func (r *rehearsal) judge(context.Context) error {
	limits := arm.New(arm.Config{
		Watch: func([]bpf.Watch) error { return nil }, Levels: r.agent.sensor.Levels, Logger: r.log,
	})
	j := judge.New(policy(&r.cfg), limits, r.log, new(registrations))
	s, pressed := r.snapshot, underPressure(r.snapshot)
	j.Observe(&s)
	// However long a condition takes to begin, or to end.
	for range 2 {
		pressed.Time = pressed.Time.Add(24 * time.Hour)
		limits.Invalidate()
		j.Observe(&pressed)
	}
	r.pressed = j.Assess()
	for s.Time = pressed.Time; s.Time.Before(pressed.Time.Add(72 * time.Hour)); {
		s.Time = s.Time.Add(24 * time.Hour)
		j.Observe(&s)
	}
	r.released = j.Assess()
	mounts := &mountReporter{record: r.record, log: r.log}
	for _, seen := range []probe.Snapshot{r.snapshot, pressed, r.snapshot} {
		mounts.observe(&seen)
	}
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
	return s
}

// kernel measures in the kernel what it watches, if it does.
func (r *rehearsal) kernel(context.Context) error {
	if !attached(r.agent.hooks, bpf.Pressure) {
		return nil
	}
	return r.agent.RearmBPF()
}

// victims reports processes that nobody has killed: one in this cgroup, one in none.
func (r *rehearsal) victims(context.Context) error {
	hooked := attached(r.agent.hooks, bpf.OOM)
	v := usage.NewVictims(usage.VictimsConfig{Sysfs: r.cfg.Sysfs, Rootfs: r.cfg.Rootfs, Hooked: hooked, Record: r.record, Logger: r.log})
	e := bpf.Event{Kind: bpf.OOMKill, Time: time.Now(), PID: 1, Scope: bpf.ScopeCgroup, CgroupID: 1}
	copy(e.Comm[:], "rehearsal")
	v.Killed(&e)
	s := r.snapshot
	for range 3 {
		v.Counted(&s)
		s.OOMKills.Value += 4
		s.Time = s.Time.Add(time.Minute)
	}
	return nil
}
