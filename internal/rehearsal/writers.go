package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/internal/apiclient"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/event"
)

// Config is what NewWriters needs. All of it is required.
type Config struct {
	// API is the agent's own: here every write is a dry run.
	API apiclient.Config
	// FieldManager is the agent's on the Lease.
	FieldManager string
	// Content is what is posted. Only the writers use it.
	Content status.Content
	// Allow returns why nothing may be written, or nil.
	Allow func() error
	// Component is the source of the Events.
	Component string
	// Timeout bounds each call to the API server.
	Timeout time.Duration
	// Logger should write nowhere: errors are made on purpose.
	Logger *slog.Logger
}

// Writers are what writes to the API server, in a rehearsal. Either Post or Read is called,
// once.
type Writers struct {
	cfg      Config
	clients  *apiclient.Clients
	updater  *status.Updater
	recorder *event.Recorder
	posted   atomic.Int32 // Events that the API server took
}

// NewWriters makes writers about a Node that exists. It sends nothing. The caller closes
// them.
func NewWriters(cfg Config) (*Writers, error) {
	cfg.API.Rehearsal = true
	clients, err := apiclient.New(cfg.API)
	if err != nil {
		return nil, err
	}
	w, reg := &Writers{cfg: cfg, clients: clients}, new(staged.Registry)
	w.recorder, err = event.New(event.Config{
		Node: func(ctx context.Context) (metav1.OwnerReference, error) { return w.updater.Owner(ctx) },
		API:  countingEvents{clients.Events, &w.posted}, Timeout: cfg.Timeout, Component: cfg.Component,
		OnFailure: clients.ForEvents.Reconnect, Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up events: %w", err)
	}
	w.updater, err = status.New(status.Config{
		NodeName: cfg.API.NodeName, Nodes: clients.Nodes, Timeout: cfg.Timeout, Content: cfg.Content,
		Allow: func(*v1.Node) error { return cfg.Allow() }, Record: w.recorder.Record,
		OnFailure: clients.ForNodes.Reconnect, UpdateFrequency: 250 * time.Millisecond, ReportFrequency: time.Hour,
		Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up node status: %w", err)
	}
	return w, nil
}

// Close closes the connections.
func (w *Writers) Close() { w.clients.Close() }

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

// Post posts what the content says now, watches the Node, and then posts, through errors,
// two Events and what the content says after change. By that something gets worse: what
// only gets better leaves the pace's last token, and would wait for another.
func (w *Writers) Post(ctx context.Context, change func()) error {
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
		return errors.Join(watched, Until(ctx, func() bool { return w.posted.Load() >= posted+2 }))
	})
}

// Read reads the Node through errors. It is for a content that posts nothing.
func (w *Writers) Read(ctx context.Context) error {
	w.clients.ForNodes.Fail(3)
	return w.run(ctx, func() error { return w.flush(ctx) })
}

// Heartbeat renews the Lease, and then once more through errors. Post has to come first:
// it finds the Node that owns the Lease. Healthy is that of [heartbeat.Config].
func (w *Writers) Heartbeat(ctx context.Context, healthy func() error) error {
	heartbeater, err := heartbeat.New(heartbeat.Config{
		Leases: w.clients.Leases, NodeName: w.cfg.API.NodeName, Healthy: healthy, Owner: w.updater.Owner,
		Duration:  time.Second, // so that it tries again soon
		OnFailure: w.clients.ForLeases.Reconnect, FieldManager: w.cfg.FieldManager, Logger: w.cfg.Logger,
	})
	if err != nil {
		return fmt.Errorf("set up heartbeat: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	var task sync.WaitGroup
	defer task.Wait()
	defer stop()
	task.Go(func() { _ = heartbeater.Run(ctx) })
	renewed := func() error {
		err := Until(ctx, func() bool {
			return heartbeater.State().Result == heartbeat.ResultSuccess && !w.clients.ForLeases.Failing()
		})
		if err != nil {
			return errors.Join(err, heartbeater.State().Err)
		}
		return nil
	}
	if err := renewed(); err != nil {
		return err
	}
	w.clients.ForLeases.Fail(mishaps)
	return renewed()
}

// watch follows the Node until it is shown as it is, once without success.
func (w *Writers) watch(ctx context.Context) error {
	const fromStart, limit = "0", time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.clients.ForNodes.Fail(1)
	_, _ = w.clients.Nodes.Watch(ctx, w.cfg.API.NodeName, fromStart, limit)
	watch, err := w.clients.Nodes.Watch(ctx, w.cfg.API.NodeName, fromStart, limit)
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

// flush waits until the API server has taken what there is to say. One that refuses it,
// as it does where a webhook has no dry run, is not asked many times.
func (w *Writers) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := w.updater.Flush(ctx); err != nil {
		return errors.Join(err, w.updater.Ready())
	}
	return nil
}

// run calls f while Updater and Recorder run.
func (w *Writers) run(ctx context.Context, f func() error) error {
	ctx, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	for _, run := range []func(context.Context) error{w.updater.Run, w.recorder.Run} {
		tasks.Go(func() { _ = run(ctx) }) // the cause of ctx
	}
	return f()
}
