package node

import (
	"maps"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

func withMeta(labels, annotations map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels), Annotations: maps.Clone(annotations)}}
}

func TestReconcileAnnotation(t *testing.T) {
	type m = map[string]string
	on := m{attachDetachAnnotation: "true"}
	for _, test := range []struct {
		name                    string
		existing, initial, want m
		changed                 bool
	}{
		{"neither", nil, nil, nil, false},
		{"both", on, on, on, false},
		{"added to none", nil, on, on, true},
		{"added to others", m{"a": "b"}, on, m{"a": "b", attachDetachAnnotation: "true"}, true},
		{"mended", m{attachDetachAnnotation: "false"}, on, on, true},
		{"removed", m{"a": "b", attachDetachAnnotation: "true"}, nil, m{"a": "b"}, true},
		{"removed although empty", m{attachDetachAnnotation: ""}, nil, m{}, true},
		{"others are not taken over", nil, m{"a": "b"}, nil, false},
	} {
		node := withMeta(nil, test.existing)
		apitest.Diff(t, test.name, test.changed, reconcileAnnotation(node, withMeta(nil, test.initial), attachDetachAnnotation))
		apitest.Diff(t, test.name, test.want, node.Annotations)
	}
}

// The cases are those of the kubelet's TestUpdateDefaultLabels.
func TestReconcileLabels(t *testing.T) {
	type m = map[string]string
	full := m{
		v1.LabelHostname: "h", v1.LabelTopologyZone: "z", v1.LabelTopologyRegion: "r",
		v1.LabelFailureDomainBetaZone: "z", v1.LabelFailureDomainBetaRegion: "r",
		v1.LabelInstanceTypeStable: "i", v1.LabelInstanceType: "i", v1.LabelOSStable: "o", v1.LabelArchStable: "a",
		"beta.kubernetes.io/os": "o", "beta.kubernetes.io/arch": "a",
	}
	with := func(base, extra m) m {
		all := maps.Clone(base)
		maps.Copy(all, extra)
		return all
	}
	for _, test := range []struct {
		name                    string
		existing, initial, want m
		changed                 bool
	}{
		{"create", m{}, full, full, true},
		{"create on nil", nil, full, full, true},
		{"update", with(full, m{v1.LabelTopologyZone: "old", v1.LabelHostname: "old"}), full, full, true},
		{"keep foreign", with(full, m{"foreign": "f", v1.LabelHostname: "old"}), full, with(full, m{"foreign": "f"}), true},
		{"no opinion", full, m{}, full, false},
		{"no-op", full, full, full, false},
		{"nil is no-op", nil, nil, nil, false},
		{"back-fill", m{"beta.kubernetes.io/os": "o"}, m{"beta.kubernetes.io/os": "o", v1.LabelOSStable: "o"}, m{"beta.kubernetes.io/os": "o", v1.LabelOSStable: "o"}, true},
		{"empty removes", m{v1.LabelTopologyZone: "z", "a": "b"}, m{v1.LabelTopologyZone: ""}, m{"a": "b"}, true},
		{"empty does not add", m{"a": "b"}, m{v1.LabelTopologyZone: ""}, m{"a": "b"}, false},
		{"custom labels are not taken over", m{}, m{"foo": "bar"}, m{}, false},
	} {
		node := withMeta(test.existing, nil)
		apitest.Diff(t, test.name, test.changed, reconcileLabels(node, withMeta(test.initial, nil)))
		apitest.Diff(t, test.name, test.want, node.Labels)
	}
}

func TestRequireLabels(t *testing.T) {
	want := map[string]string{v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH}
	for _, had := range []map[string]string{nil, {v1.LabelOSStable: "x"}, {v1.LabelArchStable: "x"}, {v1.LabelOSStable: "", v1.LabelArchStable: ""}} {
		node := withMeta(had, nil)
		if !requireLabels(node) || requireLabels(node) {
			t.Errorf("%v: mended never, or twice", had)
		}
		apitest.Diff(t, "labels", want, node.Labels)
	}
}

// The first cases are those of the kubelet's TestReconcileHugePageResource.
func TestReconcileHugePages(t *testing.T) {
	type m = map[string]string
	machine := m{"cpu": "4", "memory": "8Gi", "hugepages-2Mi": "100Mi", "hugepages-1Gi": "2Gi"}
	for _, test := range []struct {
		name                  string
		capacity, allocatable m
		initial               m
		wantCapacity          m
		wantAllocatable       m
		changed               bool
	}{
		{"same", machine, machine, machine, machine, machine, false},
		{
			"a new size",
			m{"cpu": "4", "hugepages-2Mi": "100Mi"},
			m{"hugepages-2Mi": "100Mi"},
			machine,
			m{"cpu": "4", "hugepages-2Mi": "100Mi", "hugepages-1Gi": "2Gi"},
			m{"hugepages-2Mi": "100Mi", "hugepages-1Gi": "2Gi"},
			true,
		},
		{
			"another quantity",
			m{"hugepages-2Mi": "0", "hugepages-1Gi": "4Gi"},
			m{"hugepages-2Mi": "0", "hugepages-1Gi": "4Gi"},
			machine,
			m{"hugepages-2Mi": "100Mi", "hugepages-1Gi": "2Gi"},
			m{"hugepages-2Mi": "100Mi", "hugepages-1Gi": "2Gi"},
			true,
		},
		{
			"a size is gone", machine, machine,
			m{"cpu": "2", "hugepages-2Mi": "100Mi"},
			m{"cpu": "4", "memory": "8Gi", "hugepages-2Mi": "100Mi"},
			m{"cpu": "4", "memory": "8Gi", "hugepages-2Mi": "100Mi"},
			true,
		},
		{"nothing there yet", nil, nil, m{"hugepages-2Mi": "100Mi"}, m{"hugepages-2Mi": "100Mi"}, m{"hugepages-2Mi": "100Mi"}, true},

		{"not allocatable", machine, m{}, machine, machine, m{"hugepages-2Mi": "100Mi", "hugepages-1Gi": "2Gi"}, true},
		{"another allocatable", machine, m{"hugepages-2Mi": "1Mi", "hugepages-1Gi": "2Gi"}, machine, machine, m{"hugepages-2Mi": "100Mi", "hugepages-1Gi": "2Gi"}, true},
		{"gone, and left in allocatable", m{}, m{"hugepages-2Mi": "1Mi"}, m{}, m{}, m{}, true},
		{"no huge pages anywhere", nil, nil, m{"cpu": "4"}, m{}, m{}, false},
	} {
		existing, initial := &v1.Node{}, &v1.Node{}
		existing.Status.Capacity, existing.Status.Allocatable = apitest.Resources(test.capacity), apitest.Resources(test.allocatable)
		initial.Status.Capacity, initial.Status.Allocatable = apitest.Resources(test.initial), apitest.Resources(test.initial)
		apitest.Diff(t, test.name, test.changed, reconcileHugePages(existing, initial))
		apitest.Diff(t, test.name+": capacity", test.wantCapacity, quantities(existing.Status.Capacity))
		apitest.Diff(t, test.name+": allocatable", test.wantAllocatable, quantities(existing.Status.Allocatable))
	}
}
