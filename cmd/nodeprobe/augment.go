package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// augmenter is mode augment: conditions of our own beside a kubelet's, and Events.
// In mode observe it only compares (see status.Shadow) and writes nothing.
type augmenter struct {
	updater  *status.Updater
	recorder *status.Recorder // nil where nothing is written
	leaving  atomic.Bool      // the conditions are to be removed
	remove   bool             // when we are told to stop
	pulse    pulse            // of the updater
	log      *slog.Logger
}

// newAugmenter wires it up. It starts no goroutine and sends nothing yet.
func newAugmenter(cfg *config, p *policy, monitor *monitor, log *slog.Logger, reg prometheus.Registerer) (*augmenter, error) {
	client, err := newAPIClient(cfg.Kubeconfig, p.nodeName, cfg.ImpersonateNode)
	if err != nil {
		return nil, err
	}
	const timeout = 10 * time.Second
	writes := cfg.Mode == modeAugment
	a := &augmenter{remove: writes && cfg.ConditionsOnExit == "remove", pulse: pulse{name: "node conditions"}, log: log}
	shadow := status.NewShadow(reg)
	monitor.compare = func(verdicts *[pressure.NumConditions]pressure.Verdict, at time.Time) {
		for i := range verdicts {
			v := &verdicts[i]
			shadow.Ours(v1.NodeConditionType(v.Condition.String()), v1.ConditionStatus(v.Status.String()), at)
		}
	}
	var content status.Content = status.Follow{}
	if writes {
		content = currentConditions{status.NewConditions(status.DefaultFieldManager), func() []status.Condition {
			if a.leaving.Load() {
				return nil
			}
			return posted(monitor.findings())
		}}
	}
	a.updater, err = status.New(status.Config{
		NodeName: p.nodeName, Nodes: client.nodes, Timeout: timeout, Content: content,
		Adopt:           monitor.adoptRules,
		Seen:            func(node *v1.Node) { shadow.Theirs(node, time.Now()) },
		Record:          a.record,
		OnFailure:       client.forNodes.reconnect,
		Alive:           a.pulse.beat,
		UpdateFrequency: time.Minute, ReportFrequency: cfg.ConditionHeartbeat,
		// After an outage a change waits no longer than a kubelet's.
		Spread: true, RetryPeriod: 10 * time.Second,
		Logger: log, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up node conditions: %w", err)
	}
	if !writes {
		return a, nil
	}
	monitor.changed = a.updater.Wake
	a.recorder, err = status.NewRecorder(status.RecorderConfig{
		Node: a.updater.Owner, Events: client.events, Timeout: timeout, Component: status.DefaultFieldManager,
		OnFailure: client.forEvents.reconnect, Logger: log, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up events: %w", err)
	}
	return a, nil
}

// check finds nothing in the way: beside a kubelet is where this belongs.
func (a *augmenter) check(context.Context, *probe.Snapshot) error { return nil }

func (a *augmenter) start(ctx context.Context, tasks *errgroup.Group) {
	tasks.Go(func() error { return a.updater.Run(ctx) })
	if a.recorder != nil {
		tasks.Go(func() error { return a.recorder.Run(ctx) })
	}
}

func (a *augmenter) readyChecks() []check { return []check{{"status", a.updater.Ready}} }

func (a *augmenter) record(kind, reason, message string) {
	if a.recorder != nil {
		a.recorder.Record(kind, reason, message)
	}
}

func (a *augmenter) mountsChanged() {}

// speakLast removes our conditions: nobody would keep them true. It takes no more
// than a second.
func (a *augmenter) speakLast() {
	if !a.remove {
		return
	}
	a.leaving.Store(true)
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := a.updater.Post(ctx); err != nil {
		a.log.Warn("our conditions are not removed from the node", "err", err)
	}
}

// currentConditions sets the conditions whenever a draft is asked for.
type currentConditions struct {
	*status.Conditions
	conditions func() []status.Condition
}

func (c currentConditions) Draft(ctx context.Context, old *v1.Node, now time.Time, due bool) status.Draft {
	c.Set(c.conditions())
	return c.Conditions.Draft(ctx, old, now, due)
}

// posted returns findings as the Node shows them.
func posted(findings []pressure.Finding) []status.Condition {
	conditions := make([]status.Condition, len(findings))
	for i, f := range findings {
		conditions[i] = status.Condition{
			Type: f.Type, Status: v1.ConditionStatus(f.Status.String()), Reason: f.Reason, Message: f.Message, Since: f.Since,
		}
	}
	return conditions
}
