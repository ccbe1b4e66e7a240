package node

import (
	"cmp"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statusChanged reports whether the difference between two statuses is worth a patch at
// once. The times of heartbeats and the order of conditions are not.
func statusChanged(old, next *v1.NodeStatus) bool {
	if conditionsChanged(old.Conditions, next.Conditions) {
		return true
	}
	a, b := *old, *next
	a.Conditions, b.Conditions = nil, nil
	return !apiequality.Semantic.DeepEqual(a, b)
}

// unwritten returns an error if next differs from old in what a patch leaves out.
func unwritten(old, next *v1.Node) error {
	meta := next.ObjectMeta
	meta.Labels, meta.Annotations = old.Labels, old.Annotations
	switch {
	case !apiequality.Semantic.DeepEqual(old.Spec, next.Spec):
		return errors.New("a setter changes spec, which is written when the Node is created and never after")
	case !apiequality.Semantic.DeepEqual(old.ObjectMeta, meta):
		return errors.New("a setter changes metadata other than labels and annotations, which is not written")
	}
	return nil
}

func conditionsChanged(old, next []v1.NodeCondition) bool {
	if len(old) != len(next) {
		return true
	}
	a, b := byType(old), byType(next)
	for i := range a {
		if !apiequality.Semantic.DeepEqual(a[i], b[i]) {
			return true
		}
	}
	return false
}

// byType returns the conditions by type, without their heartbeats.
func byType(conditions []v1.NodeCondition) []v1.NodeCondition {
	sorted := slices.Clone(conditions)
	slices.SortStableFunc(sorted, func(a, b v1.NodeCondition) int { return cmp.Compare(a.Type, b.Type) })
	for i := range sorted {
		sorted[i].LastHeartbeatTime = metav1.Time{}
	}
	return sorted
}
