package status

import (
	"context"
	"maps"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whatever a user's setter does to its Node, the facts, the configuration and the
// last known Node are as before.
func TestSettersGetCopies(t *testing.T) {
	newRuntime := func() *Runtime {
		return &Runtime{
			Images: []v1.ContainerImage{{Names: []string{"a@sha256:1", "a:1"}, SizeBytes: 2}, {Names: []string{"b:1"}, SizeBytes: 1}},
			Handlers: []v1.NodeRuntimeHandler{{Name: "runc", Features: &v1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: new(true), UserNamespaces: new(true),
			}}},
			Features: &v1.NodeFeatures{SupplementalGroupsPolicy: new(true)},
		}
	}
	newVolumes := func() *Volumes { return &Volumes{InUse: []v1.UniqueVolumeName{VolumeInUse("d", "a")}} }
	newLimits := func() *VolumeLimits { return &VolumeLimits{"attachable-volumes-csi-d": 1} }
	newRegistration := func() Registration {
		return Registration{
			Labels: map[string]string{"team": "a"},
			Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute, TimeAdded: new(at(1))}},
		}
	}
	facts := machineFacts(epoch)
	facts.Runtime, facts.Volumes, facts.VolumeLimits = newRuntime(), newVolumes(), newLimits()
	facts.Snapshot.Capacity.Swap = gib
	cfg := newScene(t).config()
	cfg.Registration = newRegistration()
	cfg.Resources.SystemReserved = resources(map[string]string{"cpu": "100m"})
	before, err := InitialNode(t.Context(), &cfg, &facts, epoch)
	if err != nil {
		t.Fatal(err)
	}
	last := before.DeepCopy()
	last.UID, last.OwnerReferences = "uid-1", []metav1.OwnerReference{{Name: "o"}}
	wantLast := last.DeepCopy()

	cfg.Setters = []Setter{func(_ context.Context, n *v1.Node) error {
		if len(n.Status.Images) != 2 || len(n.Status.RuntimeHandlers) != 1 || len(n.Status.VolumesInUse) != 1 {
			t.Errorf("the setter is not given all of the Node: %v", n.Status)
		}
		ruin(reflect.ValueOf(n))
		return nil
	}}
	if _, err := InitialNode(t.Context(), &cfg, &facts, epoch); err != nil {
		t.Error(err)
	}
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	u.draft(t.Context(), last, &facts, epoch, true)

	diff(t, "last known Node", wantLast, last)
	diff(t, "runtime", newRuntime(), facts.Runtime)
	diff(t, "volumes", newVolumes(), facts.Volumes)
	diff(t, "limits", newLimits(), facts.VolumeLimits)
	diff(t, "registration", newRegistration(), cfg.Registration)
	diff(t, "reserved", map[string]string{"cpu": "100m"}, quantities(cfg.Resources.SystemReserved))
	cfg.Setters = nil
	after, err := InitialNode(t.Context(), &cfg, &facts, epoch)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "Node without the setter", before, after)
}

// ruin empties all that can be reached from v, from the leaves up.
func ruin(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			ruin(v.Elem())
			v.Elem().SetZero()
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				ruin(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			ruin(v.Index(i))
			v.Index(i).SetZero()
		}
	case reflect.Map:
		if list, ok := reflect.TypeAssert[v1.ResourceList](v); ok {
			for _, q := range maps.Clone(list) {
				q.Add(resource.MustParse("7"))
			}
		}
		v.Clear()
	}
}
