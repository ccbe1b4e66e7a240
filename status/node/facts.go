package node

import (
	v1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/volume"
)

// maxImageNames is how many of an image's names a Node shows.
const maxImageNames = 5

// RuntimeFacts returns what the container runtime reports in a Node's words; nil for a
// node without a runtime. No more than maxImages are shown; -1 is all.
func RuntimeFacts(s *cri.Snapshot, maxImages int) *Runtime {
	if s.Endpoint == "" {
		return nil
	}
	r := &Runtime{}
	if v := s.Version; v.RuntimeName != "" {
		r.Version = v.RuntimeName + "://" + plainVersion(v.RuntimeVersion)
	}
	if !s.Reads[cri.CallListImages].Time.IsZero() {
		r.Images = nodeImages(s.Images, maxImages)
	}
	if s.Reads[cri.CallStatus].Time.IsZero() {
		return r
	}
	r.Handlers = make([]v1.NodeRuntimeHandler, 0, len(s.Status.Handlers))
	for _, h := range s.Status.Handlers {
		r.Handlers = append(r.Handlers, v1.NodeRuntimeHandler{Name: h.Name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &h.RecursiveReadOnlyMounts, UserNamespaces: &h.UserNamespaces,
		}})
	}
	if f := s.Status.Features; f.Reported {
		r.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &f.SupplementalGroupsPolicy}
	}
	return r
}

// plainVersion returns a version as the kubelet shows it: without what a distribution
// adds that is no part of a version.
func plainVersion(text string) string {
	if v, err := utilversion.ParseSemantic(text); err == nil {
		return v.String()
	}
	if v, err := utilversion.ParseGeneric(text); err == nil {
		return v.String()
	}
	return "Unknown"
}

// nodeImages returns the first of the images, the largest, with the first of their
// names, digests before tags.
func nodeImages(images []cri.Image, limit int) []v1.ContainerImage {
	if limit >= 0 && len(images) > limit {
		images = images[:limit]
	}
	shown := make([]v1.ContainerImage, 0, len(images))
	for _, i := range images {
		names := append(append([]string{}, i.Digests...), i.Tags...) // not nil: the kubelet writes an empty list
		shown = append(shown, v1.ContainerImage{Names: names[:min(len(names), maxImageNames)], SizeBytes: int64(i.Size)})
	}
	return shown
}

// VolumeFacts returns the volumes in use in a Node's words; nil if none are known.
func VolumeFacts(v volume.Snapshot) *Volumes {
	if !v.Known {
		return nil
	}
	facts := &Volumes{InUse: make([]v1.UniqueVolumeName, len(v.InUse)), Partial: v.Err != nil}
	for i, inUse := range v.InUse {
		facts.InUse[i] = VolumeInUse(inUse.Driver, inUse.Handle)
	}
	return facts
}
