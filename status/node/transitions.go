package node

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// eventRebooted is recorded once per process.
const eventRebooted = "Rebooted"

// transitions returns the Events for the change from what the API server had to what it
// has now, in the kubelet's order; old is nil for a Node that was created. They follow
// from what was posted, so that each is recorded once, however many attempts that took.
// The kubelet records them before each attempt.
//
// A process does not outlive a boot: another boot ID after the first reboot was written
// by mistake.
func (c *Content) transitions(old, now *v1.Node) []status.Event {
	var events []status.Event
	record := func(reason string) { events = append(events, statusEvent(now, reason)) }
	var was v1.NodeStatus
	if old != nil {
		was = old.Status
	}
	if before, after := was.NodeInfo.BootID, now.Status.NodeInfo.BootID; before != "" && after != "" && before != after && !c.rebooted {
		c.rebooted = true
		events = append(events, status.Event{
			Type: v1.EventTypeWarning, Reason: eventRebooted,
			Message: fmt.Sprintf("Node %s has been rebooted, boot id: %s", now.Name, after),
		})
	}
	for i := range pressureWords {
		kind := v1.NodeConditionType(pressure.Condition(i).String())
		is := statusOf(now.Status.Conditions, kind)
		if words, ok := pressureWords[i][is]; ok && is != statusOf(was.Conditions, kind) {
			record(words.event)
		}
	}
	switch before, after := firstCondition(was.Conditions, v1.NodeReady), firstCondition(now.Status.Conditions, v1.NodeReady); {
	case before == nil || after == nil || before.Status == after.Status:
	case after.Status == v1.ConditionTrue:
		record("NodeReady")
	default:
		record("NodeNotReady")
	}
	return events
}

// statusOf returns the status of the last condition of a type, "" if there is none.
func statusOf(conditions []v1.NodeCondition, kind v1.NodeConditionType) (is v1.ConditionStatus) {
	for i := range conditions {
		if conditions[i].Type == kind {
			is = conditions[i].Status
		}
	}
	return is
}

func statusEvent(node *v1.Node, reason string) status.Event {
	return status.Event{Type: v1.EventTypeNormal, Reason: reason, Message: fmt.Sprintf("Node %s status is now: %s", node.Name, reason)}
}

// scheduling is whether a Node was last seen cordoned. The zero value has seen none.
type scheduling struct {
	node          types.UID
	unschedulable bool
}

// observe returns the Event for a Node that was cordoned or uncordoned. A Node that was
// not seen before is taken for one that was not cordoned.
func (s *scheduling) observe(node *v1.Node) []status.Event {
	was := s.unschedulable && s.node == node.UID
	*s = scheduling{node.UID, node.Spec.Unschedulable}
	switch {
	case was == s.unschedulable:
		return nil
	case was:
		return []status.Event{statusEvent(node, "NodeSchedulable")}
	}
	return []status.Event{statusEvent(node, "NodeNotSchedulable")}
}
