package status

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// told is an Event that a change of the Node is worth.
type told struct{ kind, reason, message string }

// eventRebooted is told once per process.
const eventRebooted = "Rebooted"

// transitions returns the Events for the change from what the API server had to
// what it has now, in the kubelet's order; old is nil for a Node that was
// created. They follow from what was posted, so that each is told once, however
// many attempts that took. The kubelet tells them before each attempt.
func transitions(old, now *v1.Node) []told {
	var events []told
	tell := func(reason string) {
		events = append(events, told{v1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", now.Name, reason)})
	}
	var was v1.NodeStatus
	if old != nil {
		was = old.Status
	}
	if before, after := was.NodeInfo.BootID, now.Status.NodeInfo.BootID; before != "" && after != "" && before != after {
		events = append(events, told{
			v1.EventTypeWarning, eventRebooted,
			fmt.Sprintf("Node %s has been rebooted, boot id: %s", now.Name, after),
		})
	}
	for c := range pressureWords {
		kind := v1.NodeConditionType(pressure.Condition(c).String())
		status := statusOf(now.Status.Conditions, kind)
		if words, ok := pressureWords[c][status]; ok && status != statusOf(was.Conditions, kind) {
			tell(words.event)
		}
	}
	switch before, after := firstCondition(was.Conditions, v1.NodeReady), firstCondition(now.Status.Conditions, v1.NodeReady); {
	case before == nil || after == nil || before.Status == after.Status:
	case after.Status == v1.ConditionTrue:
		tell("NodeReady")
	default:
		tell("NodeNotReady")
	}
	return events
}

// statusOf returns the status of the last condition of a type, "" if there is none.
func statusOf(conditions []v1.NodeCondition, kind v1.NodeConditionType) (status v1.ConditionStatus) {
	for i := range conditions {
		if conditions[i].Type == kind {
			status = conditions[i].Status
		}
	}
	return status
}

// schedulable returns the Event for a Node that was cordoned or uncordoned.
func schedulable(node *v1.Node) told {
	reason := "NodeSchedulable"
	if node.Spec.Unschedulable {
		reason = "NodeNotSchedulable"
	}
	return told{v1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", node.Name, reason)}
}
