package nodeprobe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/internal/apiclient"
	"github.com/nodeprobe/nodeprobe/internal/guard"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/logind"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/probe/volume"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/event"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// ownMode writes everything that a kubelet's node status manager writes: the Node, its
// status, its Lease and Events about it.
type ownMode struct {
	clients *apiclient.Clients
	cfg     *Config
	judge   *judge.Judge
	sampler *probe.Sampler
	runtime *cri.Sampler
	volumes *volume.Sampler
	guard   *guard.Guard
	pulses  struct{ guard, updater, recorder, heartbeater, runtime, volumes, csiNode, inhibitor pulse }

	content     *node.Content
	updater     *status.Updater
	recorder    *event.Recorder
	heartbeater *heartbeat.Heartbeater
	all         []task

	mu    sync.Mutex // guards facts: the content gets the latest of each source
	facts node.Facts
}

// newOwnMode makes the parts, from leaf to root. They start no goroutine and send
// nothing yet.
func newOwnMode(cfg *Config, j *judge.Judge, sampler *probe.Sampler, reg *staged.Registry) (*ownMode, error) {
	clients, err := newClients(cfg)
	if err != nil {
		return nil, err
	}
	m := &ownMode{
		clients: clients, cfg: cfg, judge: j, sampler: sampler,
	}
	m.guard = guard.New(guard.Config{
		Nodes: clients.Nodes, Leases: clients.Leases, NodeName: cfg.NodeName, FieldManager: cfg.FieldManager,
		LeaseDuration: cfg.LeaseDuration, Alive: m.pulses.guard.beat, Logger: cfg.Logger, Registerer: reg,
	})
	m.setVolumeLimits(nil)
	if m.runtime, err = newRuntime(cfg, m.pulses.runtime.beat, reg); err != nil {
		return nil, err
	}
	if m.volumes, err = newVolumes(cfg, m.pulses.volumes.beat, reg); err != nil {
		return nil, err
	}
	nodeCfg := nodeConfig(cfg)
	nodeCfg.Healthy = sampler.Healthy
	nodeCfg.RuntimeErrors = m.runtimeErrors
	m.content = node.New(nodeCfg)
	if err := m.newWriters(clients, reg); err != nil {
		return nil, err
	}
	m.addTasks(clients)
	return m, nil
}

// newWriters makes what writes to the API server.
func (m *ownMode) newWriters(clients *apiclient.Clients, reg *staged.Registry) (err error) {
	cfg, timeout := m.cfg, callTimeout(m.cfg)
	owner := func(ctx context.Context) (metav1.OwnerReference, error) { return m.updater.Owner(ctx) }
	m.recorder, err = event.New(event.Config{
		Node: owner, API: clients.Events, Timeout: timeout,
		Component: "kubelet", // by which readers of Events look for a node's
		OnFailure: clients.ForEvents.Reconnect, Alive: m.pulses.recorder.beat, Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return fmt.Errorf("set up events: %w", err)
	}
	var registrar status.Registrar // a nil one leaves registration to others
	if cfg.Register {
		registrar = m.content
	}
	m.updater, err = status.New(status.Config{
		NodeName: cfg.NodeName, Nodes: clients.Nodes, Timeout: timeout,
		Content: m.content, Registrar: registrar,
		Adopt: m.adopt, Seen: m.seen, Allow: m.guard.Allow, Record: m.record,
		OnFailure: clients.ForNodes.Reconnect, Alive: m.pulses.updater.beat,
		UpdateFrequency: cfg.StatusUpdateFrequency, ReportFrequency: cfg.StatusReportFrequency,
		RetryRefused: true,
		Logger:       cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return fmt.Errorf("set up node status: %w", err)
	}
	m.heartbeater, err = heartbeat.New(heartbeat.Config{
		Leases: clients.Leases, NodeName: cfg.NodeName, Duration: cfg.LeaseDuration,
		Healthy: m.vouch, Owner: m.updater.Owner, FieldManager: cfg.FieldManager,
		OnForeign: m.guard.Noticed, OnLost: m.updater.Recheck,
		OnFailure: clients.ForLeases.Reconnect, Alive: m.pulses.heartbeater.beat,
		Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return fmt.Errorf("set up heartbeat: %w", err)
	}
	return nil
}

// addTasks lists what goes on for as long as the Agent runs.
func (m *ownMode) addTasks(clients *apiclient.Clients) {
	cfg := m.cfg
	m.all = []task{
		m.pulses.guard.task("guard", func(ctx context.Context) error {
			return m.guard.Run(ctx, func() { clients.ForNodes.Reconnect(); clients.ForLeases.Reconnect() })
		}),
		m.pulses.updater.task("status writer", m.updater.Run),
		m.pulses.recorder.task("event recorder", m.recorder.Run),
		m.pulses.heartbeater.task("lease writer", m.heartbeater.Run),
		m.pulses.runtime.task("container runtime", func(ctx context.Context) error { return m.runtime.Run(ctx, m.runtimeChanged) }),
		m.pulses.volumes.task("volumes", func(ctx context.Context) error { return m.volumes.Run(ctx, m.volumesChanged) }),
	}
	if cfg.VolumeLimitsFromCSINode {
		reader := apiclient.NewCSINode(clients, cfg.NodeName, callTimeout(cfg), m.pulses.csiNode.beat, cfg.Logger)
		m.all = append(m.all, m.pulses.csiNode.task("csinode", func(ctx context.Context) error { return reader.Run(ctx, m.limitsChanged) }))
	}
	if cfg.ShutdownGracePeriod > 0 {
		inhibitor := logind.New(logind.Config{
			Address: logind.SystemBus(cfg.Rootfs), Who: cfg.FieldManager, GracePeriod: cfg.ShutdownGracePeriod,
			Begin: m.shutdownBegins, Cancel: m.shutdownCancelled, Alive: m.pulses.inhibitor.beat, Logger: cfg.Logger,
		})
		m.all = append(m.all, m.pulses.inhibitor.task("shutdown inhibitor", inhibitor.Run))
	}
}

// callTimeout bounds each call to the API server: what takes longer than the Lease
// lasts is of no use.
func callTimeout(cfg *Config) time.Duration { return min(apiTimeout, cfg.LeaseDuration) }

// check refuses to own a node that a kubelet owns, or that has less than is reserved.
func (m *ownMode) check(ctx context.Context, first *probe.Snapshot) error {
	if err := m.guard.Start(ctx); err != nil {
		return err
	}
	return checkReserved(m.cfg, first)
}

func (m *ownMode) tasks() []task { return m.all }

// observe hands over what a sample has changed. The capacity may change without any
// verdict.
func (m *ownMode) observe(s *probe.Snapshot, changed bool) {
	m.mu.Lock()
	if !changed && alikeForNode(&m.facts.Snapshot, s) {
		m.mu.Unlock()
		return
	}
	m.judged()
	m.mu.Unlock()
	if changed {
		m.updater.Wake()
	}
}

// alikeForNode reports whether two snapshots are the same but for what the judge makes
// of them. That there are no huge pages is one thing, that they could not be read another.
func alikeForNode(a, b *probe.Snapshot) bool {
	const pages = probe.SourceHugePages
	return a.Machine == b.Machine && a.Capacity == b.Capacity && a.Time.IsZero() == b.Time.IsZero() &&
		(a.Errors[pages] == nil) == (b.Errors[pages] == nil)
}

// judged hands over the latest assessment. The caller holds the lock.
func (m *ownMode) judged() {
	a := m.judge.Assess()
	m.facts.Snapshot, m.facts.Verdicts = a.Snapshot, a.Verdicts
	m.facts.Conditions = nodeConditions(withoutRepeated(a.Findings, a.Rules))
	m.content.Observe(m.facts)
}

// withoutRepeated leaves out the default conditions that say what the kubelet's on the
// same Node say.
func withoutRepeated(findings []pressure.Finding, rules []pressure.Rule) []pressure.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f pressure.Finding) bool {
		return strings.HasPrefix(f.Type, status.Prefix) &&
			slices.ContainsFunc(rules, func(r pressure.Rule) bool { return r.Type == f.Type && r.RepeatsVerdict() })
	})
}

// change applies a change of one source to the facts, hands them over and wakes the
// Updater.
func (m *ownMode) change(apply func(*node.Facts)) {
	m.mu.Lock()
	apply(&m.facts)
	m.content.Observe(m.facts)
	m.mu.Unlock()
	m.updater.Wake()
}

// adopt seeds the judge from a Node that was there before.
func (m *ownMode) adopt(existing *v1.Node) {
	m.judge.Seed(existing, true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judged()
}

// seen passes the Node's pod CIDR to the runtime.
func (m *ownMode) seen(seen *v1.Node) { m.runtime.Configure(podCIDRs(seen)) }

// runtimeChanged is called when the container runtime reports something else.
func (m *ownMode) runtimeChanged() {
	latest := m.runtime.Last()
	if dir := imageDirectory(&latest); dir != "" {
		m.sampler.ImagesAt(dir)
	}
	// There may be many images: the sampler must not wait for them.
	facts := node.RuntimeFacts(&latest, m.cfg.MaxImages)
	m.change(func(f *node.Facts) { f.Runtime = facts })
}

// runtimeErrors returns why the container runtime is not ready, which is also a matter
// of time.
func (m *ownMode) runtimeErrors() error {
	latest := m.runtime.Last()
	return latest.Unready()
}

// volumesChanged is called when other volumes are in use.
func (m *ownMode) volumesChanged() {
	facts := node.VolumeFacts(m.volumes.Last())
	m.change(func(f *node.Facts) { f.Volumes = facts })
}

// limitsChanged is called when the CSINode has other limits.
func (m *ownMode) limitsChanged(limits node.VolumeLimits) {
	m.setVolumeLimits(limits)
	m.change(func(*node.Facts) {})
}

// setVolumeLimits sets those of the CSINode, over which the configured ones win.
func (m *ownMode) setVolumeLimits(limits node.VolumeLimits) {
	all := node.VolumeLimits{}
	maps.Copy(all, limits)
	maps.Copy(all, m.cfg.VolumeLimits)
	m.mu.Lock()
	m.facts.VolumeLimits = &all
	m.mu.Unlock()
}

func (m *ownMode) mountsChanged() { m.volumes.Wake() }

func (m *ownMode) reload(cfg *Config, s *probe.Snapshot) error {
	if err := checkReserved(cfg, s); err != nil {
		return err
	}
	m.content.SetResources(nodeConfig(cfg).Resources)
	m.updater.Change(status.Plan{UpdateFrequency: cfg.StatusUpdateFrequency, ReportFrequency: cfg.StatusReportFrequency})
	return nil
}

func (m *ownMode) update() { m.updater.Wake() }

// record posts an Event, unless another program owns the node. Before the Node is
// registered, Events wait.
func (m *ownMode) record(kind, reason, message string) {
	if m.guard.StoodDown() == nil {
		m.recorder.Record(kind, reason, message)
	}
}

// vouch returns why the Lease must not be renewed: another writer may be alive, the Node
// was deleted, or the samples are not healthy.
func (m *ownMode) vouch() error {
	return cmp.Or(m.guard.Err(), m.updater.Gone(), m.sampler.Healthy())
}

func (m *ownMode) checks() []Check {
	return []Check{{"status", m.updater.Ready()}, {"lease", m.leaseReady()}}
}

func (m *ownMode) leaseReady() error {
	s := m.heartbeater.State()
	if s.Err == nil && s.Renewed.IsZero() {
		return errors.New("lease is not renewed yet")
	}
	return s.Err
}

func (m *ownMode) report(s *State) {
	posted, lease := m.updater.Posted(), m.heartbeater.State()
	s.Posted, s.Lease, s.StoodDown = &posted, &lease, m.guard.StoodDown()
	latest := m.judge.Assess()
	s.Conditions = withoutRepeated(latest.Findings, latest.Rules)
	if m.cfg.RuntimeEndpoint != "" {
		reported := m.runtime.Last()
		s.Runtime = &reported
	}
}

// errShuttingDown is what the Ready condition says then, in the kubelet's words.
var errShuttingDown = errors.New("node is shutting down")

// shutdownBegins makes the Node not ready, and returns when the API server knows.
func (m *ownMode) shutdownBegins(ctx context.Context) error {
	m.record(v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown event")
	m.leave(errShuttingDown)
	if m.guard.StoodDown() != nil || m.updater.Gone() != nil {
		return nil // nothing is posted any more
	}
	return m.updater.Flush(ctx)
}

func (m *ownMode) shutdownCancelled() {
	m.record(v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown cancellation")
	m.leave(nil)
}

// leave makes the Node not ready, or ready again if why is nil.
func (m *ownMode) leave(why error) { m.change(func(f *node.Facts) { f.Leaving = why }) }

func (m *ownMode) close() { m.clients.Close() }

// exit posts the exit message, if there is one. It takes no more than a second.
func (m *ownMode) exit() {
	if m.cfg.ExitMessage == "" || m.guard.Err() != nil {
		return
	}
	m.leave(errors.New(m.cfg.ExitMessage))
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := m.updater.Post(ctx); err != nil {
		m.cfg.Logger.Warn("exit message is not posted", "err", err)
	}
}
