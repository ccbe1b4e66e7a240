package node

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// basis is what a status is made of, but for what a setter finds out by itself and for
// conditions of our own. If nothing of it has changed since a pass that found nothing to
// post, the next one need not run: most passes are of that kind, and on an idle node they
// would be a quarter of the whole cost.
type basis struct {
	node      *v1.Node
	machine   probe.Machine
	capacity  probe.Capacity
	statuses  [pressure.NumConditions]pressure.Status
	runtime   *Runtime
	volumes   *Volumes
	limits    *VolumeLimits
	resources *Resources
	problems  string // why the node is not ready
	warnings  string // in the message of Ready
}

// basisServes is how long such a pass stands for the next ones, unless an address that
// it took from an earlier one (choice) has to be looked up before.
const basisServes = time.Minute

// idle is the latest pass that found nothing to post.
type idle struct {
	basis      basis
	conditions []status.Condition
	at         time.Time
}

func newBasis(node *v1.Node, p *pass) basis {
	facts := p.facts
	b := basis{
		node: node, machine: facts.Snapshot.Machine, capacity: facts.Snapshot.Capacity,
		runtime: facts.Runtime, volumes: facts.Volumes, limits: facts.VolumeLimits,
		resources: p.resources, problems: aggregate(p.readiness.err()), warnings: aggregate(p.readiness.soft),
	}
	for i, v := range facts.Verdicts {
		b.statuses[i] = v.Status
	}
	return b
}

// serves reports whether a pass with this basis and these conditions is known to find
// nothing to post.
func (i *idle) serves(b *basis, conditions []status.Condition, address *choice, now time.Time) bool {
	age := now.Sub(i.at)
	return age >= 0 && age < basisServes && !address.stale(now) && *b == i.basis &&
		slices.EqualFunc(conditions, i.conditions, postedAlike)
}

// postedAlike reports whether two conditions make no difference to the Node: a message
// is posted with a status or a reason.
func postedAlike(a, b status.Condition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
}
