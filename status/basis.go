package status

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// basis is what a status is made of, but for what a setter finds out by itself. If
// nothing of it has changed since a pass that found nothing to post, the next one
// need not run: most passes are of that kind, and on an idle node they would be a
// quarter of all that is spent.
type basis struct {
	node      *v1.Node
	machine   probe.Machine
	capacity  probe.Capacity
	statuses  [pressure.NumConditions]pressure.Status
	runtime   *Runtime
	volumes   *Volumes
	limits    *VolumeLimits
	unhealthy string
}

// basisServes is how long a pass is taken for granted, unless an address that it
// took from an earlier one (choice) has to be looked up before.
const basisServes = time.Minute

// idle is the latest pass that found nothing to post.
type idle struct {
	basis basis
	at    time.Time
}

func newBasis(node *v1.Node, facts *Facts) basis {
	b := basis{
		node: node, machine: facts.Snapshot.Machine, capacity: facts.Snapshot.Capacity,
		runtime: facts.Runtime, volumes: facts.Volumes, limits: facts.VolumeLimits,
	}
	for i, v := range facts.Verdicts {
		b.statuses[i] = v.Status
	}
	if facts.Unhealthy != nil {
		b.unhealthy = facts.Unhealthy.Error()
	}
	return b
}

// serves says whether a pass with this basis is known to find nothing to post.
func (i *idle) serves(b *basis, address *choice, now time.Time) bool {
	age := now.Sub(i.at)
	return age >= 0 && age < basisServes && !address.stale(now) && *b == i.basis
}
