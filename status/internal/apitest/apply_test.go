package apitest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The applier is trusted by other tests, so it is tested itself.
func TestApplyPatch(t *testing.T) {
	node := &v1.Node{Status: v1.NodeStatus{
		Conditions: []v1.NodeCondition{{Type: "A", Status: "True"}, {Type: "X", Status: "True"}, {Type: "B", Status: "True"}},
		Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "10.0.0.2"}, {Type: v1.NodeHostName, Address: NodeName}},
		Capacity:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi")},
	}}
	for _, test := range []struct{ patch, conditions, addresses, capacity string }{
		{`{}`, "A=True X=True B=True", "10.0.0.1 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"capacity":{"cpu":null}},"spec":{"podCIDR":"10.0.0.0/8"}}`, "A=True X=True B=True", "10.0.0.1 10.0.0.2 node-1", "memory"},
		{`{"status":{"capacity":null,"conditions":[{"type":"B","status":"False"}]}}`, "A=True X=True B=False", "10.0.0.1 10.0.0.2 node-1", ""},
		{`{"status":{"$setElementOrder/conditions":[{"type":"B"},{"type":"A"}],"conditions":[{"type":"C"},{"$patch":"delete","type":"A"}]}}`, "X=True B=True C=", "10.0.0.1 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"$setElementOrder/conditions":[{"type":"B"},{"type":"A"}]}}`, "B=True X=True A=True", "10.0.0.1 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.3"}]}}`, "A=True X=True B=True", "10.0.0.3 10.0.0.2 node-1", "cpu memory"},
		{`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.3"},{"type":"InternalIP","address":"10.0.0.4"},{"$patch":"replace"}]}}`, "A=True X=True B=True", "10.0.0.3 10.0.0.4", "cpu memory"},
	} {
		got, err := ApplyPatch(node, []byte(test.patch))
		if err != nil {
			t.Errorf("%s: %v", test.patch, err)
			continue
		}
		var conditions, addrs, capacity []string
		for _, c := range got.Status.Conditions {
			conditions = append(conditions, string(c.Type)+"="+string(c.Status))
		}
		for _, a := range got.Status.Addresses {
			addrs = append(addrs, a.Address)
		}
		for _, name := range slices.Sorted(maps.Keys(got.Status.Capacity)) {
			capacity = append(capacity, string(name))
		}
		Diff(t, test.patch, []string{test.conditions, test.addresses, test.capacity},
			[]string{strings.Join(conditions, " "), strings.Join(addrs, " "), strings.Join(capacity, " ")})
		Diff(t, "spec", node.Spec, got.Spec)
	}
	if _, err := ApplyPatch(node, []byte(`{"status":{"unheardOf":1}}`)); err == nil {
		t.Error("an unknown field is accepted")
	}
}
