package nodeprobe

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/internal/apiclient"
	"github.com/nodeprobe/nodeprobe/internal/judge"
	"github.com/nodeprobe/nodeprobe/internal/staged"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/event"
	"github.com/nodeprobe/nodeprobe/status/shadow"
)

// apiTimeout bounds each call to the API server.
const apiTimeout = 10 * time.Second

// augmentMode posts conditions of our own beside a kubelet's, and Events.
type augmentMode struct {
	observeMode // what it has nothing to do for

	comparison
	clients  *apiclient.Clients
	content  *status.Conditions
	updater  *status.Updater
	recorder *event.Recorder
	pulses   struct{ updater, recorder pulse }
	remove   bool // the conditions when Run ends
	cfg      *Config

	mu   sync.Mutex // guards what follows: the content gets the latest findings
	left bool       // the conditions are removed, and stay so
}

func newAugmentMode(cfg *Config, j *judge.Judge, reg *staged.Registry) (*augmentMode, error) {
	clients, err := newClients(cfg)
	if err != nil {
		return nil, err
	}
	m := &augmentMode{
		clients:    clients,
		comparison: comparison{judge: j, shadow: shadow.New(reg)},
		content:    status.NewConditions(cfg.FieldManager),
		remove:     cfg.RemoveConditions, cfg: cfg,
	}
	owner := func(ctx context.Context) (metav1.OwnerReference, error) { return m.updater.Owner(ctx) }
	m.recorder, err = event.New(event.Config{
		Node: owner, API: clients.Events, Timeout: apiTimeout, Component: cfg.FieldManager,
		OnFailure: clients.ForEvents.Reconnect, Alive: m.pulses.recorder.beat, Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up events: %w", err)
	}
	m.updater, err = status.New(status.Config{
		NodeName: cfg.NodeName, Nodes: clients.Nodes, Timeout: apiTimeout,
		Content: m.content,
		Adopt: func(node *v1.Node) {
			j.Seed(node, false)
			m.set()
		},
		Seen: m.seen, Record: m.recorder.Record,
		OnFailure: clients.ForNodes.Reconnect, Alive: m.pulses.updater.beat,
		UpdateFrequency: time.Minute, ReportFrequency: cfg.ConditionHeartbeat,
		Spread: true, RetryPeriod: 10 * time.Second, // as long as a kubelet's change waits after an outage
		Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up node conditions: %w", err)
	}
	return m, nil
}

func (m *augmentMode) tasks() []task {
	return []task{
		m.pulses.updater.task("status", m.updater.Run),
		m.pulses.recorder.task("events", m.recorder.Run),
	}
}

func (m *augmentMode) observe(_ *probe.Snapshot, changed bool) {
	m.compare()
	if changed {
		m.set()
		m.updater.Wake()
	}
}

// set hands the conditions over to the Updater.
func (m *augmentMode) set() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.left {
		m.content.Set(nodeConditions(m.judge.Assess().Findings))
	}
}

func (m *augmentMode) reload(*Config, *probe.Snapshot) error { return nil } // the rules are the judge's
func (m *augmentMode) checks() []Check                       { return []Check{{"status", m.updater.Ready()}} }

func (m *augmentMode) record(kind, reason, message string) { m.recorder.Record(kind, reason, message) }

func (m *augmentMode) report(s *State) {
	posted := m.updater.Posted()
	s.Posted = &posted
}

func (m *augmentMode) close() { m.clients.Close() }

// exit removes the conditions, which nothing would keep true. It takes no more than a
// second.
func (m *augmentMode) exit() {
	if !m.remove {
		return
	}
	m.mu.Lock()
	m.left = true
	m.content.Set(nil)
	m.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := m.updater.Post(ctx); err != nil {
		m.cfg.Logger.Warn("conditions are not removed from the node", "err", err)
	}
}

// shadowMode writes nothing, and compares a kubelet's conditions with our verdicts.
type shadowMode struct {
	observeMode

	comparison
	clients *apiclient.Clients
	updater *status.Updater
	pulse   pulse
}

func newShadowMode(cfg *Config, j *judge.Judge, reg *staged.Registry) (*shadowMode, error) {
	clients, err := newClients(cfg)
	if err != nil {
		return nil, err
	}
	m := &shadowMode{clients: clients, comparison: comparison{judge: j, shadow: shadow.New(reg)}}
	m.updater, err = status.New(status.Config{
		NodeName: cfg.NodeName, Nodes: clients.Nodes, Timeout: apiTimeout,
		Content: status.Follow{}, Seen: m.seen,
		OnFailure: clients.ForNodes.Reconnect, Alive: m.pulse.beat,
		UpdateFrequency: time.Minute, RetryPeriod: 10 * time.Second,
		Logger: cfg.Logger, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up comparison with a kubelet: %w", err)
	}
	return m, nil
}

func (m *shadowMode) tasks() []task                 { return []task{m.pulse.task("status", m.updater.Run)} }
func (m *shadowMode) close()                        { m.clients.Close() }
func (m *shadowMode) observe(*probe.Snapshot, bool) { m.compare() }
func (m *shadowMode) checks() []Check               { return []Check{{"status", m.updater.Ready()}} }

// comparison of a kubelet's conditions with our verdicts.
type comparison struct {
	judge  *judge.Judge
	shadow *shadow.Comparison
}

// compare notes our verdicts.
func (c *comparison) compare() {
	c.judge.EachVerdict(func(v *pressure.Verdict, at time.Time) {
		c.shadow.Ours(v1.NodeConditionType(v.Condition.String()), v1.ConditionStatus(v.Status.String()), at)
	})
}

// seen notes what the Node says.
func (c *comparison) seen(node *v1.Node) { c.shadow.Theirs(node, time.Now()) }

// Cleanup removes from the Node the conditions that an Agent in mode Augment with this
// Config has posted, whatever rules it had, and returns their types. It needs Config.API
// whatever the mode.
func Cleanup(ctx context.Context, cfg Config) (removed []string, err error) {
	cfg = cfg.withDefaults()
	cfg.Mode = Augment
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure cleanup: %w", err)
	}
	clients, err := newClients(&cfg)
	if err != nil {
		return nil, err
	}
	defer clients.Close()
	return status.Cleanup(ctx, clients.Nodes, cfg.NodeName, cfg.FieldManager)
}
