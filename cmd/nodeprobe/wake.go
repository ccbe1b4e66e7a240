package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

// refreshInterval is how often the notifier looks for sources that have come,
// such as the cgroup of the first pod.
const refreshInterval = time.Minute

// observe passes a snapshot on.
func (d *daemon) observe(s *probe.Snapshot) time.Duration {
	if s.Time.Sub(d.refreshed) >= refreshInterval {
		d.refreshed = s.Time
		d.notifier.Refresh()
	}
	return d.monitor.observe(s)
}

// notified turns what the kernel hints at into a sample taken at once.
func (d *daemon) notified(cause probe.NotifyCause) {
	switch cause {
	case probe.NotifyMounts:
		d.limits.stale.Store(true)
		d.sampler.Wake(probe.CauseMounts)
	case probe.NotifyCgroup:
		d.sampler.Wake(probe.CauseCgroup)
	default:
		d.sampler.Wake(probe.CauseStall)
	}
}

// kernelEvents turns what the kernel reports into samples taken at once.
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
		if e.Kind == bpf.Stale {
			d.limits.stale.Store(true)
		}
		d.sampler.Wake(probe.CauseEvent)
		switch e.Kind {
		case bpf.OOMKill:
			d.log.Info("process killed for lack of memory", d.victim(&e)...)
		default:
			d.log.Debug("kernel event", "kind", e.Kind.String(), "watch", e.Watch, "on", e.On, "value", e.Value, "limit", e.Limit, "age", time.Since(e.Time))
		}
	}
}

// victim says who was killed, down to the pod and the container if the cgroup is
// one's. The cgroup may be gone by now, and then its ID must do.
func (d *daemon) victim(e *bpf.Event) []any {
	attrs := []any{"pid", e.PID, "name", e.Name(), "scope", e.Scope.String()}
	path, err := probe.CgroupPath(d.cgroupfs, e.CgroupID)
	if err != nil {
		return append(attrs, "cgroup", e.CgroupID)
	}
	attrs = append(attrs, "cgroup", path)
	if c, ok := probe.ParseContainer(path); ok {
		attrs = append(attrs, "pod", c.PodUID, "container", c.ID)
	}
	return attrs
}
