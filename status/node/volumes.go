package node

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Volumes are the CSI volumes in use on the node.
type Volumes struct {
	// InUse are named as VolumeInUse does.
	InUse []v1.UniqueVolumeName
	// Partial is true if there may be more.
	Partial bool
}

// VolumeLimits is how many volumes can be attached to the node, by the name of the
// resource; see VolumeLimitName.
type VolumeLimits map[v1.ResourceName]int64

const csiVolumePrefix = "kubernetes.io/csi/"

// VolumeInUse returns the name of a CSI volume in a Node's status.
func VolumeInUse(driver, handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(csiVolumePrefix + driver + "^" + handle)
}

// volumesInUse sets the volumes in use. The control plane may detach one that is left
// out, so volumes on the Node stay where it is not known whether they are in use: if the
// facts are partial, and those that are not CSI's.
func volumesInUse(facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if facts.Volumes == nil {
			return nil
		}
		names := slices.Clone(facts.Volumes.InUse)
		for _, name := range node.Status.VolumesInUse {
			if facts.Volumes.Partial || !strings.HasPrefix(string(name), csiVolumePrefix) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		node.Status.VolumesInUse = slices.Compact(names)
		return nil
	}
}

// volumeLimits sets how many volumes can be attached to the node. The kubelet did so
// before it moved them to the CSINode. Limits on the Node that are not given stay.
func volumeLimits(facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if facts.VolumeLimits == nil || len(*facts.VolumeLimits) == 0 {
			return nil
		}
		for _, list := range []*v1.ResourceList{&node.Status.Capacity, &node.Status.Allocatable} {
			if *list == nil {
				*list = v1.ResourceList{}
			}
			for name, limit := range *facts.VolumeLimits {
				(*list)[name] = *resource.NewQuantity(limit, resource.DecimalSI)
			}
		}
		return nil
	}
}

const (
	csiLimitPrefix = v1.ResourceAttachableVolumesPrefix + "csi-"
	// maxLimitName is the length from which such a name is cut.
	maxLimitName = 63
	// How many bytes of the driver's name, and of its hash, a name that is cut has.
	limitNameDriver, limitNameHash = 23, 16
)

// VolumeLimitName returns the resource that holds how many volumes of a CSI driver can
// be attached to a Node. Schedulers make the same name: that of a driver with a long name
// is cut, and ends in a part of its SHA-1.
func VolumeLimitName(driver string) v1.ResourceName {
	if len(csiLimitPrefix)+len(driver) < maxLimitName {
		return v1.ResourceName(csiLimitPrefix + driver)
	}
	hash := sha1.Sum([]byte(driver))
	return v1.ResourceName(csiLimitPrefix + driver[:limitNameDriver] + hex.EncodeToString(hash[:])[:limitNameHash])
}
