package node

import (
	"runtime"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reconciledLabels are those that registration mends on a Node that exists. All others
// belong to the client that set them.
var reconciledLabels = []string{
	v1.LabelHostname,
	v1.LabelTopologyZone, v1.LabelTopologyRegion,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
	v1.LabelOSStable, v1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// reconcile mends what registration owns on a Node that exists, and reports whether
// anything had to be. Huge pages are left alone if their sizes could not be read: a
// size that is missing in initial is not gone then.
func reconcile(existing, initial *v1.Node, pagesRead bool) bool {
	changed := reconcileAnnotation(existing, initial, attachDetachAnnotation)
	changed = reconcileLabels(existing, initial) || changed
	changed = reconcileResources(existing, initial) || changed
	changed = reconcileFeatures(existing, initial) || changed
	if pagesRead {
		changed = reconcileHugePages(existing, initial) || changed
	}
	return changed
}

func reconcileAnnotation(existing, initial *v1.Node, key string) bool {
	want, wanted := initial.Annotations[key]
	have, had := existing.Annotations[key]
	switch {
	case wanted == had && want == have:
		return false
	case !wanted:
		delete(existing.Annotations, key)
	default:
		if existing.Annotations == nil {
			existing.Annotations = map[string]string{}
		}
		existing.Annotations[key] = want
	}
	return true
}

func reconcileLabels(existing, initial *v1.Node) bool {
	changed := false
	for _, key := range reconciledLabels {
		want, ok := initial.Labels[key]
		if !ok || existing.Labels[key] == want {
			continue
		}
		changed = true
		if want == "" {
			delete(existing.Labels, key)
			continue
		}
		if existing.Labels == nil {
			existing.Labels = map[string]string{}
		}
		existing.Labels[key] = want
	}
	return changed
}

// requireLabels mends the two labels that schedulers need.
func requireLabels(node *v1.Node) bool {
	return reconcileLabels(node, &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH,
	}}})
}

// reconcileResources sets the resources of a Node that has none. If it has some, the
// rest follows with the first status.
func reconcileResources(existing, initial *v1.Node) bool {
	changed := false
	for _, list := range []struct {
		existing *v1.ResourceList
		initial  v1.ResourceList
	}{
		{&existing.Status.Capacity, initial.Status.Capacity},
		{&existing.Status.Allocatable, initial.Status.Allocatable},
	} {
		if len(*list.existing) == 0 && len(list.initial) > 0 {
			*list.existing = list.initial.DeepCopy()
			changed = true
		}
	}
	return changed
}

// reconcileFeatures removes what a kubelet declared that ran this node before:
// schedulers would place pods here because of features that are not provided any more.
// A user's setter may declare others.
func reconcileFeatures(existing, initial *v1.Node) bool {
	if slices.Equal(existing.Status.DeclaredFeatures, initial.Status.DeclaredFeatures) {
		return false
	}
	existing.Status.DeclaredFeatures = slices.Clone(initial.Status.DeclaredFeatures)
	return true
}

// reconcileHugePages makes the page sizes on the Node those of the machine.
func reconcileHugePages(existing, initial *v1.Node) bool {
	changed := false
	for name, want := range initial.Status.Capacity {
		if !isHugePages(name) {
			continue
		}
		allocatable := initial.Status.Allocatable[name]
		if same(existing.Status.Capacity, name, want) && same(existing.Status.Allocatable, name, allocatable) {
			continue
		}
		if existing.Status.Capacity == nil {
			existing.Status.Capacity = v1.ResourceList{}
		}
		if existing.Status.Allocatable == nil {
			existing.Status.Allocatable = v1.ResourceList{}
		}
		existing.Status.Capacity[name] = want
		existing.Status.Allocatable[name] = allocatable
		changed = true
	}
	for _, list := range []v1.ResourceList{existing.Status.Capacity, existing.Status.Allocatable} {
		for name := range list {
			if _, ok := initial.Status.Capacity[name]; isHugePages(name) && !ok {
				delete(list, name)
				changed = true
			}
		}
	}
	return changed
}

func same(list v1.ResourceList, name v1.ResourceName, want resource.Quantity) bool {
	have, ok := list[name]
	return ok && have.Cmp(want) == 0
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}
