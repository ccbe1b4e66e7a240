package node

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// Config is what a Content is made from. Functions may be nil; they are called at each
// pass and must return at once.
type Config struct {
	NodeName string
	// FieldManager is the one under which the API server records our writes;
	// status.DefaultFieldManager if empty.
	FieldManager string
	Registration Registration
	Addresses    Addresses
	Resources    Resources
	// KubeletVersion and Port are shown as the kubelet's.
	KubeletVersion string
	Port           int32

	// Healthy returns why this process cannot vouch for the node, or nil. It may change
	// by the mere passing of time.
	Healthy func() error
	// RuntimeErrors returns why the container runtime keeps the node from being ready, or
	// nil. It may change by the mere passing of time.
	RuntimeErrors func() error
	// NetworkErrors and StorageErrors return further reasons for Ready to be False.
	// SoftRequirements returns what is added to Ready's message as a warning.
	NetworkErrors, StorageErrors, SoftRequirements func() error

	// Setters run after the built-in ones, in order. Together they are bounded by
	// Timeout; 0 is 10 s.
	Setters []Setter
	Timeout time.Duration
}

// Facts are what a Node's status is made from: values that do not change once they were
// passed to Observe.
type Facts struct {
	// Snapshot is a sample. If its Time is zero, there are no facts yet.
	Snapshot probe.Snapshot
	// Verdicts are the evaluator's, by pressure.Condition.
	Verdicts [pressure.NumConditions]pressure.Verdict
	// Conditions are conditions of our own. They are posted after the kubelet's, by the
	// rules of status.Conditions.
	Conditions []status.Condition
	// Runtime is what the container runtime reports; nil on a node without one.
	// Volumes are the CSI volumes in use; nil while they are not known. VolumeLimits
	// are nil if there are none. The same pointer stands for the same facts.
	Runtime      *Runtime
	Volumes      *Volumes
	VolumeLimits *VolumeLimits
	// Leaving is why the node is about to stop taking pods, such as a shutdown, or nil.
	// It makes Ready False, and that is posted without waiting for a turn.
	Leaving error
}

// Content is all that a kubelet's node status manager writes. It implements
// status.Content, status.HealthObserver and status.Registrar. Observe and SetResources
// are safe for concurrent use; the other methods are called by one goroutine at a time.
type Content struct {
	cfg       Config
	facts     atomic.Pointer[Facts]
	resources atomic.Pointer[Resources]

	address     choice
	users       []userSetter
	health      health
	idle        idle
	rows        map[string]bool // types that were among Facts.Conditions
	unreadPages bool            // when Initial last ran, the huge pages could not be read
	seen        scheduling      // of the latest Node drafted from
	rebooted    bool            // a reboot was reported
	leaving     string          // Facts.Leaving as last posted
}

// New returns a Content without facts. Until Observe was called, no Node is created and
// nothing is posted.
func New(cfg Config) *Content {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.FieldManager == "" {
		cfg.FieldManager = status.DefaultFieldManager
	}
	for _, f := range []*func() error{&cfg.Healthy, &cfg.RuntimeErrors, &cfg.NetworkErrors, &cfg.StorageErrors, &cfg.SoftRequirements} {
		if *f == nil {
			*f = func() error { return nil }
		}
	}
	c := &Content{cfg: cfg, users: newUserSetters(cfg.Setters), rows: map[string]bool{}}
	c.cfg.Addresses = cfg.Addresses.withMachine() // once: a lookup that hangs is made once
	c.cfg.Addresses.last = &c.address
	c.resources.Store(&cfg.Resources)
	return c
}

// Observe replaces the facts. The caller wakes the Updater if a change is to be posted
// before the next regular pass.
func (c *Content) Observe(facts Facts) { c.facts.Store(&facts) }

// SetResources replaces Config.Resources from the next pass on.
func (c *Content) SetResources(resources Resources) { c.resources.Store(&resources) }

// ObserveHealth implements status.HealthObserver.
func (c *Content) ObserveHealth(now time.Time) {
	if facts := c.latest(); facts != nil {
		r := c.readiness(facts)
		c.health.observe(r.err() == nil, now)
	}
}

var errNoFacts = errors.New("no sample of the machine yet")

// latest returns the facts, and nil before the first sample.
func (c *Content) latest() *Facts {
	if facts := c.facts.Load(); facts != nil && !facts.Snapshot.Time.IsZero() {
		return facts
	}
	return nil
}

// Draft implements status.Content.
func (c *Content) Draft(ctx context.Context, old *v1.Node, now time.Time, due bool) status.Draft {
	facts := c.latest()
	if facts == nil {
		return status.Draft{Err: errNoFacts}
	}
	p := c.pass(facts, now)
	p.readiness.since = c.health.observe(p.readiness.err() == nil, now)
	draft := status.Draft{Observed: c.seen.observe(old)}
	from := newBasis(old, p)
	if !due && len(c.users) == 0 && c.idle.serves(&from, facts.Conditions, &c.address, now) {
		return draft
	}
	next := old.DeepCopy()
	requireLabels(next)
	draft.Err = p.apply(ctx, next)
	draft.Changed = statusChanged(&old.Status, &next.Status) || !maps.Equal(old.Labels, next.Labels)
	if len(c.users) > 0 {
		draft.Err = errors.Join(draft.Err, unwritten(old, next))
		// The built-in setters' own annotation may wait, as with a kubelet.
		draft.Changed = draft.Changed || !maps.Equal(old.Annotations, next.Annotations)
	}
	if !draft.Changed && draft.Err == nil { // otherwise it has to be tried again
		c.idle = idle{from, facts.Conditions, now}
	}
	draft.Worse = draft.Changed && status.Worse(old.Status.Conditions, next.Status.Conditions)
	leaving := aggregate(facts.Leaving)
	draft.Urgent = leaving != "" && leaving != c.leaving
	draft.Patch = func() ([]byte, error) { return status.Patch(old, next) }
	draft.Events = func() []status.Event {
		c.leaving = leaving
		return append(c.transitions(old, next), p.events...)
	}
	return draft
}

// pass is what one run of the setters works with.
type pass struct {
	*Content
	facts     *Facts
	resources *Resources
	readiness readiness
	now       time.Time
	events    []status.Event // that conditions of our own are worth
}

func (c *Content) pass(facts *Facts, now time.Time) *pass {
	return &pass{Content: c, facts: facts, resources: c.resources.Load(), readiness: c.readiness(facts), now: now}
}

// ownConditions sets conditions of our own.
func (p *pass) ownConditions() Setter {
	return func(_ context.Context, node *v1.Node) (err error) {
		for i := range p.facts.Conditions {
			p.rows[p.facts.Conditions[i].Type] = true
		}
		p.events, err = status.SetConditions(node, p.facts.Conditions, p.cfg.FieldManager, p.now, p.obsolete)
		return err
	}
}

// obsolete reports whether a condition that we posted, and that is not among the facts,
// is to be removed. One that a user's setter posts is not.
func (c *Content) obsolete(kind string) bool {
	return len(c.users) == 0 || c.rows[kind] || strings.HasPrefix(kind, status.Prefix)
}
