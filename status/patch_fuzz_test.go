package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// dice draws small numbers from fuzz input, and zeros after its end.
type dice struct{ bytes []byte }

func (d *dice) roll(sides int) int {
	if len(d.bytes) == 0 {
		return 0
	}
	b := d.bytes[0]
	d.bytes = d.bytes[1:]
	return int(b) % sides
}

// foreignSecret is in a condition that only others write.
const foreignSecret = "not a word of this in any patch"

// randomNode makes a Node of what d says. The foreign condition is the same in
// all, wherever it stands.
func randomNode(d *dice) *v1.Node {
	node := postedNode()
	node.Labels = randomMap(d)
	node.Annotations = randomMap(d)
	s := &node.Status
	s.Conditions = nil
	foreign := v1.NodeCondition{Type: "Foreign", Status: "True", Reason: "F", Message: foreignSecret, LastHeartbeatTime: apitest.At(1), LastTransitionTime: apitest.At(1)}
	place := d.roll(5)
	for i, kind := range []v1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		if i == place {
			s.Conditions = append(s.Conditions, foreign)
		}
		if d.roll(5) == 4 {
			continue
		}
		s.Conditions = append(s.Conditions, v1.NodeCondition{
			Type: kind, Status: []v1.ConditionStatus{"True", "False", "Unknown"}[d.roll(3)], Reason: []string{"", "r", "<q>"}[d.roll(3)],
			Message: []string{"", "m"}[d.roll(2)], LastHeartbeatTime: apitest.At(d.roll(3)), LastTransitionTime: apitest.At(d.roll(3)),
		})
	}
	if place == 4 {
		s.Conditions = append(s.Conditions, foreign)
	}
	s.Addresses = nil
	for range d.roll(4) {
		s.Addresses = append(s.Addresses, v1.NodeAddress{
			Type: []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeHostName, v1.NodeExternalIP}[d.roll(3)], Address: fmt.Sprint("10.0.0.", d.roll(3)),
		})
	}
	s.Capacity, s.Allocatable = randomResources(d), randomResources(d)
	s.NodeInfo = v1.NodeSystemInfo{BootID: []string{"", "a", "b"}[d.roll(3)]}
	if swap := int64(d.roll(3)); swap > 0 {
		swap += 1 << 60
		s.NodeInfo.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
	s.Images = s.Images[:d.roll(3)]
	s.DeclaredFeatures = []string{"A", "B", "C"}[:d.roll(4)]
	s.DaemonEndpoints.KubeletEndpoint.Port = int32(d.roll(2))
	return node
}

func randomMap(d *dice) map[string]string {
	m := map[string]string{}
	for range d.roll(4) {
		m[fmt.Sprint("key", d.roll(4))] = []string{"", "x", "y"}[d.roll(3)]
	}
	return m
}

func randomResources(d *dice) v1.ResourceList {
	list := v1.ResourceList{}
	for range d.roll(4) {
		list[v1.ResourceName(fmt.Sprint("res", d.roll(4)))] = *resource.NewQuantity(int64(d.roll(3))<<50, resource.BinarySI)
	}
	return list
}

// FuzzPatch checks that a patch turns one Node into the other, that it is empty
// only if they are the same, and that it holds nothing of an unchanged condition
// but its type, nothing of the spec, and no resource version.
func FuzzPatch(f *testing.F) {
	f.Add([]byte{}, []byte{1})
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz0123456789"), []byte("zyxwvutsrqponmlkjihgfedcba9876543210ABCDEFGHI"))
	f.Add(bytes.Repeat([]byte{3}, 60), bytes.Repeat([]byte{2, 1}, 30))
	f.Add(bytes.Repeat([]byte{4}, 60), bytes.Repeat([]byte{0, 3, 4}, 20))
	f.Fuzz(checkPatch)
}

// Fuzzing for a short while finds few long inputs, so here are some.
func TestPatchRandom(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	for range 500 {
		var a, b [80]byte
		random.Read(a[:])
		random.Read(b[:])
		if b[0]%2 == 0 {
			copy(b[:], a[:b[1]%80]) // mostly alike
		}
		if checkPatch(t, a[:], b[:]); t.Failed() {
			return
		}
	}
}

func checkPatch(t *testing.T, a, b []byte) {
	old, next := randomNode(&dice{a}), randomNode(&dice{b})
	patch, err := Patch(old, next)
	if err != nil {
		t.Fatal(err)
	}
	next.Spec = v1.NodeSpec{Unschedulable: true}
	next.ResourceVersion = "another"
	if again, _ := Patch(old, next); !bytes.Equal(patch, again) {
		t.Errorf("the spec or the resource version makes a difference:\n%s\n%s", patch, again)
	}
	if bytes.Contains(patch, []byte(foreignSecret)) {
		t.Errorf("patch repeats a foreign condition:\n%s", patch)
	}
	patched, err := apitest.ApplyPatch(old, patch)
	if err != nil {
		t.Fatalf("%v in\n%s", err, patch)
	}
	want := old.DeepCopy()
	want.Labels, want.Annotations, want.Status = next.Labels, next.Annotations, next.Status
	if !sameButForOrder(want, patched) {
		t.Errorf("patch\n%s", patch)
		apitest.Diff(t, "patched", want, patched, apitest.SameTimes())
	}
	if (string(patch) == `{}`) != sameButForOrder(old, want) {
		t.Errorf("empty although there is something to change, or the other way round: %s", patch)
	}
	checkForeign(t, patch)
}

// sameButForOrder ignores the order of conditions: if nothing else changed there
// is nothing to send.
func sameButForOrder(a, b *v1.Node) bool {
	same := maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
	x, y := a.Status.DeepCopy(), b.Status.DeepCopy()
	if len(x.Conditions) != len(y.Conditions) {
		return false
	}
	cx, cy := byTypeWithHeartbeats(x.Conditions), byTypeWithHeartbeats(y.Conditions)
	x.Conditions, y.Conditions = nil, nil
	return same && apiequality.Semantic.DeepEqual(cx, cy) && apiequality.Semantic.DeepEqual(x, y)
}

func byTypeWithHeartbeats(conditions []v1.NodeCondition) map[v1.NodeConditionType]v1.NodeCondition {
	m := map[v1.NodeConditionType]v1.NodeCondition{}
	for _, c := range conditions {
		m[c.Type] = c
	}
	return m
}

// checkForeign finds the foreign condition in the order of elements, and nowhere
// else.
func checkForeign(t *testing.T, patch []byte) {
	t.Helper()
	var p struct {
		Status struct {
			Conditions []map[string]any
		}
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Status.Conditions {
		if c["type"] == "Foreign" {
			t.Errorf("the foreign condition is among the changes: %s", patch)
		}
	}
	if n := bytes.Count(patch, []byte("Foreign")); n > 1 || n == 1 && !bytes.Contains(patch, []byte(`{"type":"Foreign"}`)) {
		t.Errorf("patch has more of the foreign condition than its type: %s", patch)
	}
}
