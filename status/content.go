// Package status keeps a Node's status on the API server up to date.
//
// An [Updater] follows the Node, and asks a [Content] at each pass what there is to
// say. If the draft differs from the last known Node, or if the report period is over,
// it sends the difference as one patch of nodes/<name>/status, and the answer becomes
// the last known Node. In steady state it reads nothing.
//
// What is posted is the content's business. [Conditions] are conditions of our own on a
// Node that a kubelet posts; package status/node is all that a kubelet posts; [Follow]
// is nothing. Package status/event posts Events.
package status

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Content is what an Updater keeps posted. Its methods are called by one goroutine at a
// time. They may take time, which delays everything else that the Updater does.
type Content interface {
	// Draft compares the last known Node, which it must not change, with what the Node
	// should say at now. If due is true, the patch is posted whether it changes
	// anything or not.
	Draft(ctx context.Context, old *v1.Node, now time.Time, due bool) Draft
}

// HealthObserver is a Content whose health changes by the mere passing of time.
// ObserveHealth is called at each attempt to post, also while the API server is away, so
// that a condition's transition time is when it changed and not when it could be posted.
type HealthObserver interface {
	ObserveHealth(now time.Time)
}

// Registrar creates the Node. Methods are called by the goroutine that calls Draft.
type Registrar interface {
	// Initial returns the Node to create at now, and the Events that its creation is
	// worth. A nil Node means that there is none yet, for the reason in err. Otherwise
	// err is about the parts that could not be set.
	Initial(ctx context.Context, now time.Time) (node *v1.Node, events []Event, err error)
	// Mend returns a copy of a Node that exists, with the parts that registration owns
	// as in initial, which Initial has just returned. It reports whether it differs.
	Mend(existing, initial *v1.Node) (mended *v1.Node, changed bool)
}

// Draft is what a pass may post.
type Draft struct {
	// Changed reports whether there is something that the API server does not have yet.
	Changed bool
	// Worse reports whether a condition gets worse by the change, see [Worse]. It may take
	// the last token of the bucket, which other changes leave alone.
	Worse bool
	// Urgent sends a change at once even if the token bucket is empty. It takes a token
	// all the same.
	Urgent bool
	// Patch returns the body. If it is nil, nothing is posted, due or not.
	Patch func() ([]byte, error)
	// Events returns the Events to record once the patch is posted. May be nil.
	Events func() []Event
	// Observed are Events about what others did to the Node. They are recorded whether
	// anything is posted or not.
	Observed []Event
	// Err is about the parts that could not be set. It is logged once per change, and
	// keeps nothing else from being posted.
	Err error
}

// Worse reports whether the conditions of a Node are worse in next than in old: it is no
// longer ready, or has a problem that it did not have. A condition that is not there is
// neither.
func Worse(old, next []v1.NodeCondition) bool {
	was := make(map[v1.NodeConditionType]v1.ConditionStatus, len(old))
	for i := range old {
		was[old[i].Type] = old[i].Status
	}
	for i := range next {
		kind, is := next[i].Type, next[i].Status
		if is != was[kind] && (kind == v1.NodeReady && was[kind] == v1.ConditionTrue || kind != v1.NodeReady && is == v1.ConditionTrue) {
			return true
		}
	}
	return false
}

// Event is a Kubernetes Event about the Node that is to be recorded. Type is
// v1.EventTypeNormal or v1.EventTypeWarning.
type Event struct{ Type, Reason, Message string }

// Follow is a Content that posts nothing: the Updater only keeps the last known Node.
// With it, the Updater sends nothing but GETs and watches.
type Follow struct{}

// Draft implements Content.
func (Follow) Draft(context.Context, *v1.Node, time.Time, bool) Draft { return Draft{} }
