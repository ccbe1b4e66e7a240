package node

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

func TestTransitions(t *testing.T) {
	// node is a Node by its boot ID and the statuses of its conditions.
	node := func(boot string, memory, disk, pid, ready v1.ConditionStatus) *v1.Node {
		n := &v1.Node{}
		n.Name = apitest.NodeName
		n.Status.NodeInfo.BootID = boot
		for kind, status := range map[v1.NodeConditionType]v1.ConditionStatus{
			v1.NodeMemoryPressure: memory, v1.NodeDiskPressure: disk, v1.NodePIDPressure: pid, v1.NodeReady: ready,
		} {
			if status != "" {
				n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: kind, Status: status})
			}
		}
		return n
	}
	const yes, no, unknown = v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown
	good := node("b1", no, no, no, yes)
	for name, c := range map[string]struct {
		old, now *v1.Node
		want     []string
	}{
		"created":        {nil, good, []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"}},
		"created bad":    {nil, node("b1", yes, yes, yes, no), []string{"NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID"}},
		"first evidence": {node("b1", unknown, unknown, unknown, yes), good, []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"}},
		"same":           {good, good, nil},
		"memory":         {good, node("b1", yes, no, no, yes), []string{"NodeHasInsufficientMemory"}},
		"memory is over": {node("b1", yes, no, no, yes), good, []string{"NodeHasSufficientMemory"}},
		"no evidence":    {good, node("b1", unknown, no, no, yes), nil},
		"not ready":      {good, node("b1", no, no, no, no), []string{"NodeNotReady"}},
		"ready again":    {node("b1", no, no, no, unknown), good, []string{"NodeReady"}},
		"reboot":         {node("b0", no, no, no, yes), good, []string{"Rebooted"}},
		"no boot ID":     {good, node("", no, no, no, yes), nil},
		"first boot ID":  {node("", no, no, no, yes), good, nil},
		"everything":     {node("b0", no, no, no, no), node("b1", yes, yes, yes, yes), []string{"Rebooted", "NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID", "NodeReady"}},
		"the first Ready counts": {node("b1", no, no, no, no), func() *v1.Node {
			n := node("b1", no, no, no, yes)
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: v1.NodeReady, Status: no})
			return n
		}(), []string{"NodeReady"}},
		"the last counts": {good, func() *v1.Node {
			n := node("b1", yes, no, no, yes)
			n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: v1.NodeMemoryPressure, Status: no})
			return n
		}(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range new(Content).transitions(c.old, c.now) {
				got = append(got, e.Reason)
				kind, message := "Normal", fmt.Sprintf("Node %s status is now: %s", apitest.NodeName, e.Reason)
				if e.Reason == "Rebooted" {
					kind, message = "Warning", "Node "+apitest.NodeName+" has been rebooted, boot id: b1"
				}
				apitest.Diff(t, "type", kind, e.Type)
				apitest.Diff(t, "message", message, e.Message)
			}
			apitest.Diff(t, "events", c.want, got)
		})
	}
}

// Each change is recorded once, when the API server has it, and not at each attempt.
func TestUpdaterRecordsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		failures := 3
		s.api.Fail = func(string) error {
			if failures--; failures >= 0 {
				return apitest.ErrDown
			}
			return nil
		}
		s.play(s.config(), func() {
			s.sleep(10 * time.Second)
			apitest.Diff(t, "registration", []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"}, s.events.Take())

			s.api.Edit(func() { failures = 8 }) // more than one pass
			s.judge(pressure.MemoryPressure, true)
			synctest.Wait()
			apitest.Diff(t, "while it cannot be posted", []string(nil), s.events.Take())
			s.sleep(time.Minute)
			apitest.Diff(t, "posted", []string{"NodeHasInsufficientMemory"}, s.events.Take())

			s.mu.Lock()
			s.unhealthy = errors.New("sampler is stuck")
			s.mu.Unlock()
			s.sleep(10 * time.Minute)
			apitest.Diff(t, "unhealthy", []string{"NodeNotReady"}, s.events.Take())

			s.api.Put(func(n *v1.Node) { n.Spec.Unschedulable = true })
			s.sleep(time.Second)
			apitest.Diff(t, "cordon", []string{"NodeNotSchedulable"}, s.events.Take())
			s.api.Put(func(n *v1.Node) { n.Spec.Unschedulable = false })
			s.sleep(time.Minute)
			apitest.Diff(t, "uncordon", []string{"NodeSchedulable"}, s.events.Take())

			// Another Node of that name never was cordoned.
			s.api.Put(func(n *v1.Node) { n.Spec.Unschedulable = true })
			s.sleep(time.Minute)
			s.events.Take()
			s.api.Remove()
			s.sleep(time.Minute)
			apitest.Diff(t, "deleted while cordoned", false, slices.Contains(s.events.Take(), "NodeSchedulable"))
		})
	})
}
