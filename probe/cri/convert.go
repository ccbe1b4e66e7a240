package cri

import (
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The functions below keep of a reply what a Snapshot holds. They share its
// strings and lists of strings, each of which was decoded into memory of its own.

var errMissing = errors.New("RuntimeReady or NetworkReady is missing")

func convertVersion(r *runtimeapi.VersionResponse) Version {
	return Version{
		RuntimeName:       r.GetRuntimeName(),
		RuntimeVersion:    r.GetRuntimeVersion(),
		RuntimeAPIVersion: r.GetRuntimeApiVersion(),
	}
}

// convertStatus requires two conditions, as the kubelet does.
func convertStatus(r *runtimeapi.StatusResponse) (Status, error) {
	conditions := r.GetStatus().GetConditions()
	if len(conditions) < 2 {
		return Status{}, errMissing
	}
	s := Status{
		Runtime: findCondition(conditions, runtimeapi.RuntimeReady),
		Network: findCondition(conditions, runtimeapi.NetworkReady),
		Features: Features{
			Reported:                  r.GetFeatures() != nil,
			SupplementalGroupsPolicy:  r.GetFeatures().GetSupplementalGroupsPolicy(),
			UserNamespacesHostNetwork: r.GetFeatures().GetUserNamespacesHostNetwork(),
		},
	}
	for _, h := range r.GetRuntimeHandlers() {
		s.Handlers = append(s.Handlers, Handler{
			Name:                    h.GetName(),
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(),
			UserNamespaces:          h.GetFeatures().GetUserNamespaces(),
		})
	}
	s.sort()
	return s, nil
}

// findCondition returns the first condition of a type.
func findCondition(conditions []*runtimeapi.RuntimeCondition, name string) Condition {
	for _, c := range conditions {
		if c.GetType() == name {
			return Condition{Type: name, Status: c.GetStatus(), Reason: c.GetReason(), Message: c.GetMessage()}
		}
	}
	return Condition{}
}

func convertImages(r *runtimeapi.ListImagesResponse) []Image {
	if len(r.GetImages()) == 0 {
		return nil
	}
	images := make([]Image, len(r.GetImages()))
	for i, image := range r.GetImages() {
		images[i] = Image{ID: image.GetId(), Tags: image.GetRepoTags(), Digests: image.GetRepoDigests(), Size: image.GetSize()}
	}
	sortImages(images)
	return images
}

func convertFilesystems(list []*runtimeapi.FilesystemUsage) []Filesystem {
	var all []Filesystem
	for _, f := range list {
		x := Filesystem{
			Mountpoint: f.GetFsId().GetMountpoint(),
			Bytes:      convertUsage(f.GetUsedBytes()),
			Inodes:     convertUsage(f.GetInodesUsed()),
		}
		if t := f.GetTimestamp(); t != 0 {
			x.Time = time.Unix(0, t)
		}
		all = append(all, x)
	}
	return all
}

func convertUsage(v *runtimeapi.UInt64Value) Usage {
	return Usage{Value: v.GetValue(), OK: v != nil}
}
