package node

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// The first cases are the kubelet's TestNodeStatusHasChanged.
func TestStatusChanged(t *testing.T) {
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: apitest.At(1), LastTransitionTime: apitest.At(1)}
	pids := v1.NodeCondition{Type: v1.NodePIDPressure, Status: v1.ConditionFalse, LastHeartbeatTime: apitest.At(1), LastTransitionTime: apitest.At(1)}
	with := func(c v1.NodeCondition, change func(*v1.NodeCondition)) v1.NodeCondition {
		change(&c)
		return c
	}
	conditions := func(list ...v1.NodeCondition) v1.NodeStatus {
		return v1.NodeStatus{Conditions: list, Phase: v1.NodeRunning}
	}
	capacity := func(q resource.Quantity) v1.NodeStatus {
		return v1.NodeStatus{Capacity: v1.ResourceList{v1.ResourceMemory: q}}
	}
	local := ready
	local.LastTransitionTime.Time = local.LastTransitionTime.In(time.FixedZone("", 3600))
	for _, test := range []struct {
		name      string
		old, next v1.NodeStatus
		want      bool
	}{
		{"both empty", v1.NodeStatus{}, v1.NodeStatus{}, false},
		{"from nothing", v1.NodeStatus{}, conditions(ready), true},
		{"to nothing", conditions(ready), v1.NodeStatus{}, true},
		{"same", conditions(ready, pids), conditions(ready, pids), false},
		{"heartbeat", conditions(ready), conditions(with(ready, func(c *v1.NodeCondition) { c.LastHeartbeatTime = apitest.At(9) })), false},
		{"order", conditions(ready, pids), conditions(pids, ready), false},
		{"order and heartbeat", conditions(ready, pids), conditions(pids, with(ready, func(c *v1.NodeCondition) { c.LastHeartbeatTime = apitest.At(9) })), false},
		{"status", conditions(ready), conditions(with(ready, func(c *v1.NodeCondition) { c.Status = v1.ConditionFalse })), true},
		{"transition", conditions(ready), conditions(with(ready, func(c *v1.NodeCondition) { c.LastTransitionTime = apitest.At(9) })), true},
		{"one more", conditions(ready), conditions(ready, pids), true},
		{"one less", conditions(ready, pids), conditions(ready), true},
		{"another instead", conditions(ready), conditions(pids), true},
		{"phase", conditions(ready), v1.NodeStatus{Conditions: []v1.NodeCondition{ready}, Phase: v1.NodePending}, true},

		{"V15: message", conditions(ready), conditions(with(ready, func(c *v1.NodeCondition) { c.Message = "x" })), true},
		{"reason", conditions(ready), conditions(with(ready, func(c *v1.NodeCondition) { c.Reason = "x" })), true},
		{"same instant in another zone", conditions(ready), conditions(local), false},
		{"same quantity in other words", capacity(resource.MustParse("1Gi")), capacity(resource.MustParse("1024Mi")), false},
		{"other quantity", capacity(resource.MustParse("1Gi")), capacity(resource.MustParse("1G")), true},
		{"nil and empty", v1.NodeStatus{}, v1.NodeStatus{Capacity: v1.ResourceList{}, Addresses: []v1.NodeAddress{}}, false},
		{"order of addresses", v1.NodeStatus{Addresses: apitest.Addresses("10.0.0.1", apitest.NodeName)}, v1.NodeStatus{Addresses: apitest.Addresses(apitest.NodeName, "10.0.0.1")}, true},
	} {
		old, next := *test.old.DeepCopy(), *test.next.DeepCopy()
		if got := statusChanged(&test.old, &test.next); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
		apitest.Diff(t, test.name+": the arguments are left alone", []v1.NodeStatus{old, next}, []v1.NodeStatus{test.old, test.next}, apitest.SameTimes())
	}
}

// V17: metadata alone is no reason for a patch; it rides along with the next.
func TestAnnotationIsNoChange(t *testing.T) {
	cfg := testAddresses()
	cfg.ExternalCloudProvider = true
	old := &v1.Node{Status: v1.NodeStatus{Addresses: apitest.Addresses("10.0.0.1", apitest.NodeName)}}
	next := old.DeepCopy()
	set(t, next, nodeAddress(cfg))
	apitest.Diff(t, "annotation", "10.0.0.1", next.Annotations[providedNodeIP])
	if statusChanged(&old.Status, &next.Status) || requireLabels(old.DeepCopy()) != true {
		t.Error("an annotation is a change, or missing labels are none")
	}
}
