package node

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeprobe/nodeprobe/probe"
)

// machineInfo sets the machine's identity, its capacity, and what of that pods may use.
// Resources that it does not compute are left as they are.
func machineInfo(cfg *Resources, fieldManager string, facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if facts.Snapshot.Time.IsZero() {
			return errNoFacts
		}
		setIdentity(&node.Status.NodeInfo, &facts.Snapshot)
		if node.Status.Capacity == nil {
			node.Status.Capacity = v1.ResourceList{}
		}
		maps.Copy(node.Status.Capacity, cfg.capacity(&facts.Snapshot.Capacity))
		// A reservation holds for what could not be read this time, too.
		setAllocatable(node, cfg.Reservation(node.Status.Capacity), fieldManager)
		return nil
	}
}

// setIdentity keeps what could not be read: an empty boot ID is no reboot.
func setIdentity(info *v1.NodeSystemInfo, s *probe.Snapshot) {
	info.MachineID = cmp.Or(s.Machine.MachineID, info.MachineID)
	info.SystemUUID = cmp.Or(s.Machine.SystemUUID, info.SystemUUID)
	info.BootID = cmp.Or(s.Machine.BootID, info.BootID)
	if s.Capacity.Swap > 0 {
		swap := s.Capacity.Swap
		info.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	} else if s.Capacity.MemoryOK {
		info.Swap = nil // the kubelet leaves a stale value
	}
}

// capacity returns what the node has, in the kubelet's formats. What could not be read
// is left out, so that the Node keeps its last value.
func (r *Resources) capacity(c *probe.Capacity) v1.ResourceList {
	list := v1.ResourceList{}
	if pods, ok := r.pods(c.CPUs); ok {
		list[v1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	}
	if c.CPUs > 0 {
		list[v1.ResourceCPU] = *resource.NewMilliQuantity(c.CPUs*1000, resource.DecimalSI)
	}
	if c.MemoryOK {
		list[v1.ResourceMemory] = *resource.NewQuantity(c.Memory, resource.BinarySI)
	}
	if r.LocalStorageCapacityIsolation && c.EphemeralStorage > 0 {
		list[v1.ResourceEphemeralStorage] = *resource.NewQuantity(c.EphemeralStorage, resource.BinarySI)
	}
	for _, p := range c.HugePages[:c.NumHugePages] {
		list[hugePagesName(p.PageSize)] = *resource.NewQuantity(p.PageSize*p.Total, resource.BinarySI)
	}
	return list
}

func hugePagesName(pageSize int64) v1.ResourceName {
	return v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(pageSize, resource.BinarySI).String())
}

// pods returns how many pods the node takes, if the CPUs are known where they matter.
func (r *Resources) pods(cpus int64) (pods int64, ok bool) {
	if r.PodsPerCore > 0 {
		return min(cpus*r.PodsPerCore, r.MaxPods), cpus > 0
	}
	return r.MaxPods, true
}

// setAllocatable sets allocatable to capacity less the reservation, not below zero. Huge
// pages are taken out of memory: no other process can use what they hold. The owner of a
// resource with a domain knows how much is usable, and may have withheld a broken device:
// less than capacity stays as it is, unless the owner writes the capacity alone.
func setAllocatable(node *v1.Node, reservation v1.ResourceList, fieldManager string) {
	status := &node.Status
	if status.Allocatable == nil {
		status.Allocatable = v1.ResourceList{}
	}
	for name := range status.Allocatable {
		if _, ok := status.Capacity[name]; !ok && isExtendedResource(name) {
			delete(status.Allocatable, name)
		}
	}
	for name, q := range status.Capacity {
		value := q.DeepCopy()
		if reserved, ok := reservation[name]; ok {
			subtract(&value, reserved)
		}
		if usable, ok := status.Allocatable[name]; ok && foreign(name) && usable.Cmp(value) < 0 && !byCapacityAlone(node, name, fieldManager) {
			continue
		}
		status.Allocatable[name] = value
	}
	for name, q := range status.Capacity {
		if !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			continue
		}
		if memory, ok := status.Allocatable[v1.ResourceMemory]; ok {
			subtract(&memory, q)
			status.Allocatable[v1.ResourceMemory] = memory
		}
	}
}

// subtract takes b from a, and stops at zero.
func subtract(a *resource.Quantity, b resource.Quantity) {
	a.Sub(b)
	if a.Sign() < 0 {
		a.Set(0)
	}
}

// foreign reports whether another client sets a resource: names that are computed here
// have no domain.
func foreign(name v1.ResourceName) bool { return strings.Contains(string(name), "/") }

// byCapacityAlone reports, by metadata.managedFields, whether another client writes a
// resource's capacity and leaves allocatable to us. A kubelet's allocatable follows such
// a capacity as it grows.
func byCapacityAlone(node *v1.Node, name v1.ResourceName, fieldManager string) bool {
	type list map[string]struct{}
	capacityIsOurs, allocatableIsOurs := false, false
	for _, entry := range node.ManagedFields {
		if entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Status struct {
				Capacity    list `json:"f:capacity"`
				Allocatable list `json:"f:allocatable"`
			} `json:"f:status"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		_, capacity := fields.Status.Capacity["f:"+string(name)]
		_, allocatable := fields.Status.Allocatable["f:"+string(name)]
		switch {
		case entry.Manager == fieldManager:
			capacityIsOurs = capacityIsOurs || capacity
			allocatableIsOurs = allocatableIsOurs || allocatable
		case allocatable:
			return false
		}
	}
	return allocatableIsOurs && !capacityIsOurs
}

// isExtendedResource follows the kubelet: a name with a domain that is not
// Kubernetes' own.
func isExtendedResource(name v1.ResourceName) bool {
	s := string(name)
	if !strings.Contains(s, "/") || strings.Contains(s, v1.ResourceDefaultNamespacePrefix) || strings.HasPrefix(s, v1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+s)) == 0
}
