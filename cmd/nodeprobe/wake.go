package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/notify"
)

// refreshInterval is how often the notifier looks for sources that have come,
// such as the cgroup of the first pod.
const refreshInterval = time.Minute

// observe passes a snapshot on: the verdict comes first, it may have to be posted.
func (d *daemon) observe(s *probe.Snapshot) time.Duration {
	next := d.monitor.observe(s)
	d.victims.Counted(s)
	d.mounts.observe(s)
	d.supervisor.wake()
	if s.Time.Sub(d.refreshed) >= refreshInterval {
		d.refreshed = s.Time
		d.notifier.Refresh()
		d.reloader.look()
	}
	return next
}

// wake has a sample taken now. Those who call it wait in the kernel for what is
// next, and a thread that does so keeps the others from running until the
// runtime's monitor notices: so they let the sampler run first.
func (d *daemon) wake(cause probe.Cause) {
	d.sampler.Wake(cause)
	runtime.Gosched()
}

// notified turns what the kernel hints at into a sample taken at once.
func (d *daemon) notified(cause notify.Cause) {
	switch cause {
	case notify.Mounts:
		d.limits.Invalidate()
		d.wake(probe.CauseMounts)
		if d.writer != nil {
			d.writer.mountsChanged()
		}
	case notify.Cgroup:
		d.wake(probe.CauseCgroup)
	case notify.Limits:
		d.wake(probe.CauseLimits)
	default:
		d.wake(probe.CauseStall)
	}
}

// kernelEvents turns what the kernel reports into samples taken at once. An event
// that was lost costs nothing but its attribution: events are only lost while
// others wait to be read, and the sample that those ask for reads everything.
func (d *daemon) kernelEvents(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { d.sensor.Close() })
	defer stop()
	for {
		var e bpf.Event
		switch err := d.sensor.ReadEvent(&e); {
		case errors.Is(err, os.ErrClosed):
			<-ctx.Done()
			return context.Cause(ctx)
		case err != nil:
			d.log.Warn("kernel event could not be read", "err", err)
			select { // it may be so for ever
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		age := time.Since(e.Time)
		switch e.Kind {
		case bpf.Stale:
			d.limits.Invalidate()
			d.wake(probe.CauseMounts)
		case bpf.ReadOnly:
			d.wake(probe.CauseMounts)
		default:
			d.wake(probe.CauseEvent)
		}
		if e.Kind == bpf.OOMKill {
			d.victims.Killed(&e)
			continue
		}
		// The line itself comes when all that it has led to is done.
		d.log.Debug("kernel event", "kind", e.Kind.String(), "watch", e.Watch, "on", e.On,
			"value", e.Value, "limit", e.Limit, "happened", e.Time, "age", age)
	}
}
