package node

import (
	"context"
	"maps"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
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
			Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute, TimeAdded: new(apitest.At(1))}},
		}
	}
	facts := machineFacts(apitest.Epoch)
	facts.Runtime, facts.Volumes, facts.VolumeLimits = newRuntime(), newVolumes(), newLimits()
	facts.Snapshot.Capacity.Swap = gib
	cfg := newScene(t).config()
	cfg.Registration = newRegistration()
	cfg.Resources.SystemReserved = apitest.Resources(map[string]string{"cpu": "100m"})
	before := initial(t, cfg, &facts)
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
	initial(t, cfg, &facts)
	c := New(cfg)
	c.Observe(facts)
	if draft := c.Draft(t.Context(), last, apitest.Epoch, true); draft.Err == nil || draft.Patch == nil {
		t.Errorf("draft %+v, want one with the error that metadata is changed", draft)
	}

	apitest.Diff(t, "last known Node", wantLast, last)
	apitest.Diff(t, "runtime", newRuntime(), facts.Runtime)
	apitest.Diff(t, "volumes", newVolumes(), facts.Volumes)
	apitest.Diff(t, "limits", newLimits(), facts.VolumeLimits)
	apitest.Diff(t, "registration", newRegistration(), cfg.Registration)
	apitest.Diff(t, "reserved", map[string]string{"cpu": "100m"}, quantities(cfg.Resources.SystemReserved))
	cfg.Setters = nil
	after := initial(t, cfg, &facts)
	apitest.Diff(t, "Node without the setter", before, after)
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
