// Package oracle holds the product together with the Kubernetes code whose place
// it takes, where that code is too large to be a part of it.
package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// kubeletPatch is PatchNodeStatus of k8s.io/component-helpers v0.36.3
// (node/util/status.go), retold.
func kubeletPatch(t *testing.T, old, next *v1.Node) []byte {
	t.Helper()
	byHand := len(old.Status.Addresses) > 0 && !apiequality.Semantic.DeepEqual(old.Status.Addresses, next.Status.Addresses)
	shown := next.DeepCopy()
	shown.Spec = old.Spec
	if byHand {
		shown.Status.Addresses = old.Status.Addresses
	}
	patch := must.Get(strategicpatch.CreateTwoWayMergePatch(encode(t, old), encode(t, shown), v1.Node{}))(t)
	if !byHand {
		return patch
	}
	var m, s map[string]json.RawMessage
	must.OK(t, json.Unmarshal(patch, &m))
	if m["status"] != nil {
		must.OK(t, json.Unmarshal(m["status"], &s))
	} else {
		s = map[string]json.RawMessage{}
	}
	var items []any
	for _, a := range next.Status.Addresses {
		items = append(items, a)
	}
	s["addresses"] = encode(t, append(items, map[string]string{"$patch": "replace"}))
	m["status"] = encode(t, s)
	return encode(t, m)
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	return must.Get(json.Marshal(value))(t)
}

// Patch is, value for value, what the kubelet sends, and the API server's code
// makes of it what was meant.
func TestPatchIsTheKubelets(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		old := randomNode(random)
		next := old.DeepCopy()
		if i%2 == 0 {
			next = randomNode(random)
		}
		change(random, next)
		got := must.Get(status.Patch(old, next))(t)
		want := kubeletPatch(t, old, next)
		// The kubelet tells an order that nothing else has changed in; it means
		// nothing, and change detection ignores it as well.
		if g, w := canonical(t, got), canonical(t, want); g != w && !orderOnly(old, next) {
			t.Fatalf("patch %d\n%s\nthe kubelet sends\n%s", i, g, w)
		}
		checkApplied(t, old, next, got)
	}
}

func checkApplied(t *testing.T, old, next *v1.Node, patch []byte) {
	t.Helper()
	data, err := strategicpatch.StrategicMergePatch(encode(t, old), patch, v1.Node{})
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	var patched v1.Node
	must.OK(t, json.Unmarshal(data, &patched))
	want := next.DeepCopy()
	want.Spec = old.Spec
	if orderOnly(old, next) {
		want.Status.Conditions = old.Status.Conditions
	}
	// The API server puts addresses of one type side by side.
	for _, s := range []*v1.NodeStatus{&want.Status, &patched.Status} {
		slices.SortStableFunc(s.Addresses, func(a, b v1.NodeAddress) int { return strings.Compare(string(a.Type), string(b.Type)) })
	}
	if !apiequality.Semantic.DeepEqual(want, &patched) {
		t.Fatalf("patch\n%s\nmakes\n%s\nwant\n%s", patch, data, encode(t, want))
	}
}

// orderOnly reports whether the conditions differ in their order alone.
func orderOnly(a, b *v1.Node) bool {
	x, y := slices.Clone(a.Status.Conditions), slices.Clone(b.Status.Conditions)
	if slices.Equal(x, y) {
		return false
	}
	for _, list := range [][]v1.NodeCondition{x, y} {
		slices.SortFunc(list, func(a, b v1.NodeCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	}
	return apiequality.Semantic.DeepEqual(x, y)
}

func canonical(t *testing.T, data []byte) string {
	t.Helper()
	var v any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	must.OK(t, decoder.Decode(&v))
	return string(encode(t, v))
}

func randomNode(r *rand.Rand) *v1.Node {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-1", UID: "uid", ResourceVersion: "1",
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "<&>"},
		},
		Spec: v1.NodeSpec{PodCIDR: "10.0.0.0/24"},
	}
	for range 12 {
		change(r, node)
	}
	return node
}

func change(r *rand.Rand, node *v1.Node) {
	s := &node.Status
	for range 1 + r.IntN(4) {
		switch r.IntN(10) {
		case 0:
			s.Addresses = nil
			for i := range r.IntN(4) {
				kind := []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeInternalIP, v1.NodeHostName}[r.IntN(3)]
				s.Addresses = append(s.Addresses, v1.NodeAddress{Type: kind, Address: fmt.Sprint("10.0.", r.IntN(2), ".", i)})
			}
		case 1, 2, 3:
			changeCondition(r, s)
		case 4:
			changeMap(r, &node.Labels)
		case 5:
			changeMap(r, &node.Annotations)
		case 6:
			changeResources(r, &s.Capacity)
		case 7:
			changeResources(r, &s.Allocatable)
		case 8:
			s.NodeInfo.BootID = []string{"", "a", "b"}[r.IntN(3)]
			s.NodeInfo.Swap = nil
			if r.IntN(2) == 0 {
				s.NodeInfo.Swap = &v1.NodeSwapStatus{Capacity: new(int64(1)<<60 + r.Int64N(2))}
			}
		case 9:
			s.Images = []v1.ContainerImage{{Names: []string{"b"}}, {Names: []string{"a"}, SizeBytes: 1}}[:r.IntN(3)]
			s.VolumesInUse = []v1.UniqueVolumeName{"x", "y"}[:r.IntN(3)]
			s.DaemonEndpoints.KubeletEndpoint.Port = r.Int32N(2)
			s.DeclaredFeatures = []string{"A", "B"}[:r.IntN(3)]
			s.RuntimeHandlers = []v1.NodeRuntimeHandler{{Name: ""}, {Name: "runc", Features: &v1.NodeRuntimeHandlerFeatures{UserNamespaces: new(r.IntN(2) == 0)}}}[:r.IntN(3)]
		}
	}
}

func changeCondition(r *rand.Rand, s *v1.NodeStatus) {
	at := func() metav1.Time { return metav1.NewTime(time.Unix(r.Int64N(3), 0)) }
	kind := v1.NodeConditionType([]string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready", "Foreign"}[r.IntN(5)])
	i := slices.IndexFunc(s.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
	switch {
	case i < 0:
		s.Conditions = append(s.Conditions, v1.NodeCondition{Type: kind, Status: "True", LastHeartbeatTime: at(), LastTransitionTime: at()})
	case r.IntN(8) == 0:
		s.Conditions = slices.Delete(s.Conditions, i, i+1)
	default:
		s.Conditions[i].LastHeartbeatTime = at()
		s.Conditions[i].Message = []string{"", "m", "<q>"}[r.IntN(3)]
		s.Conditions[i].Status = []v1.ConditionStatus{"True", "False"}[r.IntN(2)]
	}
}

func changeMap(r *rand.Rand, m *map[string]string) {
	if *m == nil {
		*m = map[string]string{}
	}
	if key := fmt.Sprint("k", r.IntN(3)); r.IntN(3) == 0 {
		delete(*m, key)
	} else {
		(*m)[key] = []string{"", "x", "y"}[r.IntN(3)]
	}
}

func changeResources(r *rand.Rand, list *v1.ResourceList) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	if name := v1.ResourceName(fmt.Sprint("r", r.IntN(3))); r.IntN(3) == 0 {
		delete(*list, name)
	} else {
		(*list)[name] = *resource.NewQuantity(r.Int64N(3)<<40, resource.BinarySI)
	}
}
