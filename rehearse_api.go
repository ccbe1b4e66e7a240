package nodeprobe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/internal/apiclient"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/event"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// writers are what writes to the API server, in a rehearsal.
type writers struct {
	*rehearsal

	clients  *apiclient.Clients
	updater  *status.Updater
	recorder *event.Recorder
	posted   atomic.Int32 // Events that the API server took
}

// newWriters makes writers of a content about a Node that exists. Allow returns why
// nothing may be sent, or nil.
func (r *rehearsal) newWriters(content status.Content, allow func() error, component string) (w *writers, err error) {
	dry := clientConfig(&r.cfg)
	dry.Rehearsal = true
	clients, err := apiclient.New(dry)
	if err != nil {
		return nil, err
	}
	w = &writers{rehearsal: r, clients: clients}
	timeout, reg := callTimeout(&r.cfg), new(staged.Registry)
	w.recorder, err = event.New(event.Config{
		Node: func(ctx context.Context) (metav1.OwnerReference, error) { return w.updater.Owner(ctx) },
		API:  countingEvents{clients.Events, &w.posted}, Timeout: timeout, Component: component,
		OnFailure: clients.ForEvents.Reconnect, Logger: r.log, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up events: %w", err)
	}
	w.updater, err = status.New(status.Config{
		NodeName: r.cfg.NodeName, Nodes: clients.Nodes, Timeout: timeout, Content: content,
		Allow: func(*v1.Node) error { return allow() }, Record: w.recorder.Record,
		OnFailure: clients.ForNodes.Reconnect, UpdateFrequency: 250 * time.Millisecond, ReportFrequency: time.Hour,
		RetryRefused: true, Logger: r.log, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up node status: %w", err)
	}
	return w, nil
}

// countingEvents counts what the API server takes.
type countingEvents struct {
	event.API
	taken *atomic.Int32
}

// Create implements event.API.
func (e countingEvents) Create(ctx context.Context, created *v1.Event) error {
	err := e.API.Create(ctx, created)
	if err == nil {
		e.taken.Add(1)
	}
	return err
}

// mishaps are how many requests of a writer are made to fail: more than it sends before
// it gives up for a while.
const mishaps = 7

// post posts what the content says now, then what it says after change, through errors.
func (w *writers) post(ctx context.Context, change func()) error {
	return w.run(ctx, func() error {
		if err := w.flush(ctx); err != nil {
			return err
		}
		watched := w.watch(ctx)
		w.clients.ForNodes.Fail(mishaps)
		w.clients.ForEvents.Fail(1)
		for range 2 { // the second counts up the first, which does not exist
			w.recorder.Record(v1.EventTypeNormal, "Rehearsal", "Nothing has happened")
		}
		posted := w.posted.Load()
		change()
		if err := w.flush(ctx); err != nil {
			return err
		}
		return errors.Join(watched, until(ctx, func() bool { return w.posted.Load() >= posted+2 }))
	})
}

// watch follows the Node until it is shown as it is, once without success.
func (w *writers) watch(ctx context.Context) error {
	const fromStart, limit = "0", time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.clients.ForNodes.Fail(1)
	_, _ = w.clients.Nodes.Watch(ctx, w.cfg.NodeName, fromStart, limit)
	watch, err := w.clients.Nodes.Watch(ctx, w.cfg.NodeName, fromStart, limit)
	if err != nil {
		return err
	}
	defer watch.Stop()
	select {
	case <-watch.ResultChan():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flush waits until the API server has taken what there is to say. One that refuses it is
// not asked many times.
func (w *writers) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return w.updater.Flush(ctx)
}

// run calls f while Updater and Recorder run.
func (w *writers) run(ctx context.Context, f func() error) error {
	ctx, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	for _, run := range []func(context.Context) error{w.updater.Run, w.recorder.Run} {
		tasks.Go(func() { _ = run(ctx) }) // the cause of ctx
	}
	return f()
}

// heartbeat renews a Lease, through errors.
func (w *writers) heartbeat(ctx context.Context, healthy func() error) error {
	heartbeater, err := heartbeat.New(heartbeat.Config{
		Leases: w.clients.Leases, NodeName: w.cfg.NodeName, Healthy: healthy, Owner: w.updater.Owner,
		Duration:  time.Second, // so that it tries again soon
		OnFailure: w.clients.ForLeases.Reconnect, FieldManager: w.cfg.FieldManager, Logger: w.log,
	})
	if err != nil {
		return fmt.Errorf("set up heartbeat: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	var task sync.WaitGroup
	defer task.Wait()
	defer stop()
	task.Go(func() { _ = heartbeater.Run(ctx) })
	renewed := func() bool {
		return heartbeater.State().Result == heartbeat.ResultSuccess && !w.clients.ForLeases.Failing()
	}
	if err := until(ctx, renewed); err != nil {
		return err
	}
	w.clients.ForLeases.Fail(mishaps)
	return until(ctx, renewed)
}

// until waits until something is so.
func until(ctx context.Context, so func() bool) error {
	for !so() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// ready waits until the status is posted for real. Where that fails, errors need no
// rehearsal, and an API server that refuses it is not to be asked even more often.
func ready(ctx context.Context, u *status.Updater) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := until(ctx, func() bool { return u.Ready() == nil }); err != nil {
		return fmt.Errorf("%w: %w", err, u.Ready())
	}
	return nil
}

func (observeMode) rehearse(context.Context, *rehearsal) error { return nil }

// rehearse posts the rehearsed conditions.
func (m *augmentMode) rehearse(ctx context.Context, r *rehearsal) error {
	if err := ready(ctx, m.updater); err != nil {
		return err
	}
	content := status.NewConditions(m.cfg.FieldManager)
	content.Set(nodeConditions(r.pressed.Findings))
	w, err := r.newWriters(content, m.updater.Gone, m.cfg.FieldManager)
	if err != nil {
		return err
	}
	defer w.clients.Close()
	return w.post(ctx, func() { content.Set(nodeConditions(r.released.Findings)) })
}

// rehearse reads the Node through errors.
func (m *shadowMode) rehearse(ctx context.Context, r *rehearsal) error {
	w, err := r.newWriters(status.Follow{}, m.updater.Gone, r.cfg.FieldManager)
	if err != nil {
		return err
	}
	defer w.clients.Close()
	w.clients.ForNodes.Fail(3)
	return w.run(ctx, func() error { return w.flush(ctx) })
}

// rehearse posts the rehearsed verdicts and conditions, and renews the Lease.
func (m *ownMode) rehearse(ctx context.Context, r *rehearsal) error {
	if err := m.vouch(); err != nil {
		return err
	}
	if err := ready(ctx, m.updater); err != nil {
		return err
	}
	cfg := nodeConfig(&r.cfg)
	cfg.Setters = nil // they are the caller's, and run at each pass anyway
	cfg.Healthy, cfg.RuntimeErrors = m.sampler.Healthy, m.runtimeErrors
	content := node.New(cfg)
	observe := func(a *judge.Assessment) {
		m.mu.Lock()
		facts := m.facts
		m.mu.Unlock()
		facts.Verdicts = a.Verdicts
		facts.Conditions = nodeConditions(withoutRepeated(a.Findings, a.Rules))
		content.Observe(facts)
	}
	observe(&r.pressed)
	w, err := r.newWriters(content, m.vouch, "kubelet")
	if err != nil {
		return err
	}
	defer w.clients.Close()
	return errors.Join(
		w.post(ctx, func() { observe(&r.released) }),
		w.heartbeat(ctx, m.vouch),
	)
}
