package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Resources is what is kept from pods of the node's capacity.
type Resources struct {
	// MaxPods bounds the pods; PodsPerCore bounds them further if it is not 0.
	MaxPods, PodsPerCore int64
	// SystemReserved and KubeReserved hold quantities of cpu, memory,
	// ephemeral-storage and pid. The last is accepted, and never shown.
	SystemReserved, KubeReserved v1.ResourceList
	// Thresholds are the eviction thresholds; the hard ones on
	// memory.available and nodefs.available are reserved as well.
	Thresholds []pressure.Threshold
	// LocalStorageCapacityIsolation shows ephemeral-storage.
	LocalStorageCapacityIsolation bool
}

// Reservation returns what is kept from pods of each resource of capacity.
func (r *Resources) Reservation(capacity v1.ResourceList) v1.ResourceList {
	result := v1.ResourceList{}
	eviction := r.hardEviction(capacity)
	for name, has := range capacity {
		// Old statuses may hold ephemeral storage that is not shown any more.
		if name == v1.ResourcePods || name == v1.ResourceEphemeralStorage && !r.LocalStorageCapacityIsolation {
			continue
		}
		sum := resource.Quantity{Format: has.Format}
		for _, list := range []v1.ResourceList{r.SystemReserved, r.KubeReserved, eviction} {
			if q, ok := list[name]; ok {
				sum.Add(q)
			}
		}
		if !sum.IsZero() {
			result[name] = sum
		}
	}
	return result
}

// hardEviction returns what must stay free for the hard thresholds not to be met.
func (r *Resources) hardEviction(capacity v1.ResourceList) v1.ResourceList {
	result := v1.ResourceList{}
	for _, t := range r.Thresholds {
		if !t.Hard() {
			continue
		}
		var name v1.ResourceName
		switch t.Signal {
		case probe.MemoryAvailable:
			name = v1.ResourceMemory
		case probe.NodeFsAvailable:
			name = v1.ResourceEphemeralStorage
		default:
			continue
		}
		has := capacity[name]
		result[name] = *resource.NewQuantity(t.Value.Of(has.Value()), resource.BinarySI)
	}
	return result
}

// Check returns an error, in the kubelet's words, if more of a resource is reserved than
// the node has. The kubelet does not start then.
func (r *Resources) Check(c *probe.Capacity) error {
	capacity := r.capacity(c)
	var problems []string
	reservation := r.Reservation(capacity)
	for _, name := range slices.Sorted(maps.Keys(reservation)) {
		reserved, has := reservation[name], capacity[name]
		if reserved.Cmp(has) > 0 {
			problems = append(problems, fmt.Sprintf("Resource %q has a reservation of %s but capacity of %s. Expected capacity >= reservation.",
				name, reserved.String(), has.String()))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return errors.New("invalid Node Allocatable configuration. " + strings.Join(problems, " "))
}
