package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/cpuset"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/logind"
	"github.com/nodeprobe/nodeprobe/probe/volume"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// owner is mode own: everything that writes to the API server.
type owner struct {
	client      *apiClient
	guard       *guard
	updater     *status.Updater
	recorder    *status.Recorder
	heartbeater *heartbeat.Heartbeater
	shutdown    *logind.Inhibitor // nil unless it is asked for
	runtime     *cri.Sampler
	known       atomic.Pointer[node.Runtime] // made from its last snapshot; nil if that is old
	mostImages  int
	volumes     *volume.Sampler
	inUse       atomic.Pointer[node.Volumes]
	csiNode     *csiNode          // nil unless it is asked for
	configured  node.VolumeLimits // which win over what the CSINode has
	limits      atomic.Pointer[node.VolumeLimits]

	nodeName  string
	content   *node.Content
	resources *node.Resources
	reserved  cpuset.CPUSet // CPUs that pods shall not have
	sysfs     string
	lastWord  string // of the Ready condition; "" for none
	monitor   *monitor
	sampler   *probe.Sampler
	pulses    [2]pulse // of the updater and the heartbeater
	log       *slog.Logger
}

// newOwner wires up the writers, which start no goroutine and send nothing yet.
func newOwner(cfg *config, p *policy, paths paths, sampler *probe.Sampler, monitor *monitor, log *slog.Logger, reg prometheus.Registerer) (*owner, error) {
	client, err := newAPIClient(cfg.Kubeconfig, p.nodeName, cfg.ImpersonateNode)
	if err != nil {
		return nil, err
	}
	duration := time.Duration(cfg.NodeLeaseDurationSeconds) * time.Second
	o := &owner{
		client: client, guard: newGuard(client.nodes, client.leases, p.nodeName, duration, log, reg),
		nodeName: p.nodeName, resources: &p.resources, reserved: p.reserved, sysfs: paths.sysfs, lastWord: cfg.LastWord,
		monitor: monitor, sampler: sampler, mostImages: int(cfg.NodeStatusMaxImages), configured: p.volumeLimits, log: log,
		pulses: [2]pulse{{name: "node status"}, {name: "heartbeat"}},
	}
	if o.runtime, err = newRuntime(cfg, paths, log, reg); err != nil {
		return nil, err
	}
	o.limits.Store(&o.configured)
	if o.volumes, err = newVolumes(cfg, paths, log, reg); err != nil {
		return nil, err
	}
	nodeCfg := nodeConfig(cfg, p)
	nodeCfg.Healthy = monitor.healthy
	o.content = node.New(nodeCfg)
	content := currentContent{o.content, o.facts}
	statusCfg := status.Config{
		NodeName: p.nodeName, Nodes: client.nodes, Timeout: min(10*time.Second, duration), Content: content,
		Adopt: monitor.adopt, Allow: o.guard.allow, Record: o.record,
		OnFailure: client.forNodes.reconnect, Alive: o.pulses[0].beat,
		UpdateFrequency: cfg.NodeStatusUpdateFrequency, ReportFrequency: cfg.NodeStatusReportFrequency,
		RetryRefused: true, Logger: log, Registerer: reg,
	}
	if cfg.RegisterNode {
		statusCfg.Registrar = content
	}
	if o.updater, err = status.New(statusCfg); err != nil {
		return nil, fmt.Errorf("set up node status: %w", err)
	}
	monitor.changed = o.updater.Wake
	if cfg.VolumeLimitsFromCSINode {
		o.csiNode = newCSINode(client, p.nodeName, statusCfg.Timeout, log)
	}
	o.recorder, err = status.NewRecorder(status.RecorderConfig{
		Node:    o.updater.Owner,
		Events:  client.events,
		Timeout: statusCfg.Timeout,
		// Who reads Events by their source looks for this one.
		Component:  "kubelet",
		OnFailure:  client.forEvents.reconnect,
		Logger:     log,
		Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up events: %w", err)
	}
	o.heartbeater, err = heartbeat.New(heartbeat.Config{
		Leases:       client.leases,
		NodeName:     p.nodeName,
		Duration:     duration,
		Healthy:      o.vouch,
		OnForeign:    o.guard.noticed,
		FieldManager: status.DefaultFieldManager,
		Owner:        o.updater.Owner,
		OnFailure:    client.forLeases.reconnect,
		Alive:        o.pulses[1].beat,
		OnLost:       o.updater.Recheck,
		Logger:       log,
		Registerer:   reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up heartbeat: %w", err)
	}
	if cfg.ShutdownGracePeriod > 0 {
		o.shutdown = logind.New(logind.Config{
			Address: logind.SystemBus(paths.rootfs), Who: status.DefaultFieldManager, GracePeriod: cfg.ShutdownGracePeriod,
			Begin: o.beginShutdown, Cancel: o.cancelShutdown, Logger: log,
		})
	}
	return o, nil
}

// check returns why this node must not, or cannot, be owned: a kubelet is alive,
// or more is reserved than there is.
func (o *owner) check(ctx context.Context, first *probe.Snapshot) error {
	if err := o.guard.start(ctx); err != nil {
		return &exitError{exitOccupied, err}
	}
	return o.checkResources(o.reserved, o.resources, first)
}

// checkResources says whether there is as much as is reserved.
func (o *owner) checkResources(reserved cpuset.CPUSet, resources *node.Resources, s *probe.Snapshot) error {
	if err := checkReserved(reserved, o.sysfs); err != nil {
		return err
	}
	return resources.Check(&s.Capacity)
}

// start starts the writers.
func (o *owner) start(ctx context.Context, tasks *errgroup.Group) {
	tasks.Go(func() error {
		return o.guard.Run(ctx, func() { o.client.forNodes.reconnect(); o.client.forLeases.reconnect() })
	})
	tasks.Go(func() error { return o.updater.Run(ctx) })
	tasks.Go(func() error { return o.heartbeater.Run(ctx) })
	tasks.Go(func() error { return o.recorder.Run(ctx) })
	tasks.Go(func() error { return o.runtime.Run(ctx, o.runtimeChanged) })
	tasks.Go(func() error { return o.volumes.Run(ctx, o.volumesChanged) })
	if o.csiNode != nil {
		tasks.Go(func() error { return o.csiNode.Run(ctx, o.limitsChanged) })
	}
	if o.shutdown != nil {
		tasks.Go(func() error { return o.shutdown.Run(ctx) })
	}
}

// runtimeChanged is called when the container runtime tells something else.
func (o *owner) runtimeChanged() {
	o.known.Store(nil)
	runtime := o.runtime.Last()
	if dir := imageDirectory(&runtime); dir != "" {
		o.sampler.ImagesAt(dir)
	}
	o.updater.Wake()
}

// volumesChanged is called when other volumes are in use.
func (o *owner) volumesChanged() {
	o.inUse.Store(volumeFacts(o.volumes.Last()))
	o.updater.Wake()
}

// limitsChanged is called when the CSINode has other limits.
func (o *owner) limitsChanged(limits node.VolumeLimits) {
	maps.Copy(limits, o.configured)
	o.limits.Store(&limits)
	o.updater.Wake()
}

// facts is what a status is made from.
func (o *owner) facts() node.Facts {
	if known := o.updater.Node(); known != nil {
		o.runtime.Configure(podCIDRs(known))
	}
	facts := o.monitor.facts()
	facts.Runtime = o.runtimeFacts()
	facts.Volumes, facts.VolumeLimits = o.inUse.Load(), o.limits.Load()
	return facts
}

// runtimeFacts makes facts anew only where they are others.
func (o *owner) runtimeFacts() *node.Runtime {
	runtime := o.runtime.Last()
	known := o.known.Load()
	if known == nil || fmt.Sprint(known.Unready) != fmt.Sprint(runtime.Unready()) { // that is also a matter of time
		known = runtimeFacts(&runtime, o.mostImages)
		o.known.Store(known)
	}
	return known
}

// readyChecks say whether the API server hears of us.
func (o *owner) readyChecks() []check {
	return []check{{"status", o.updater.Ready}, {"lease", o.leaseReady}}
}

func (o *owner) leaseReady() error {
	s := o.heartbeater.State()
	if s.Err != nil {
		return s.Err
	}
	if s.Renewed.IsZero() {
		return errors.New("lease is not renewed yet")
	}
	return nil
}

func (o *owner) mountsChanged() { o.volumes.Wake() }

// record has an Event posted, unless somebody else looks after the node.
// Before the Node is registered Events wait.
func (o *owner) record(kind, reason, message string) {
	if o.guard.stoodDown() == nil {
		o.recorder.Record(kind, reason, message)
	}
}

// vouch returns why the Lease must not be renewed: another writer may be alive, the Node
// was deleted, or the samples are not healthy.
func (o *owner) vouch() error {
	return cmp.Or(o.guard.err(), o.updater.Gone(), o.sampler.Healthy())
}

// errShuttingDown is the message of the Ready condition during a shutdown, in the
// kubelet's words.
var errShuttingDown = errors.New("node is shutting down")

// beginShutdown posts that the node is not ready, and returns once the API server knows.
func (o *owner) beginShutdown(ctx context.Context) error {
	o.record(v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown event")
	o.monitor.leave(errShuttingDown)
	if o.guard.stoodDown() != nil || o.updater.Gone() != nil {
		return nil // nothing is posted any more
	}
	if err := o.updater.Flush(ctx); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// cancelShutdown posts that the node is ready again.
func (o *owner) cancelShutdown() {
	o.record(v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown cancellation")
	o.monitor.leave(nil)
}

// speakLast posts the last word, if there is one, after the writers have ended. It
// takes no more than a second.
func (o *owner) speakLast() {
	if o.lastWord == "" || o.guard.err() != nil {
		return
	}
	o.monitor.leave(errors.New(o.lastWord))
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := o.updater.Post(ctx); err != nil {
		o.log.Warn("the last word is not posted", "err", err)
	}
}

// currentContent observes the facts whenever it is asked for anything.
type currentContent struct {
	*node.Content
	facts func() node.Facts
}

func (c currentContent) Draft(ctx context.Context, old *v1.Node, now time.Time, due bool) status.Draft {
	c.Observe(c.facts())
	return c.Content.Draft(ctx, old, now, due)
}

func (c currentContent) ObserveHealth(now time.Time) {
	c.Observe(c.facts())
	c.Content.ObserveHealth(now)
}

func (c currentContent) Initial(ctx context.Context, now time.Time) (*v1.Node, []status.Event, error) {
	c.Observe(c.facts())
	return c.Content.Initial(ctx, now)
}

// nodeConfig returns the part of the configuration that decides what the Node shows.
func nodeConfig(cfg *config, p *policy) node.Config {
	kubeletVersion := cfg.KubeletVersion
	if kubeletVersion == "" {
		kubeletVersion = version()
	}
	return node.Config{
		NodeName: p.nodeName,
		Registration: node.Registration{
			Labels: cfg.NodeLabels, Taints: p.taints, ProviderID: cfg.ProviderID,
			ControllerAttachDetach: cfg.EnableControllerAttachDetach,
		},
		Addresses: node.Addresses{
			NodeName: p.nodeName, Hostname: p.nodeName, NodeIPs: p.nodeIPs,
			ExternalCloudProvider: cfg.CloudProvider == "external",
		},
		Resources:      p.resources,
		KubeletVersion: kubeletVersion, Port: cfg.Port,
	}
}
