package main

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// mostImageNames is how many of an image's names a Node shows.
const mostImageNames = 5

// runtimeFacts puts what the container runtime tells into the Node's words; nil
// for a node without a runtime. No more than mostImages are shown; -1 is all.
func runtimeFacts(s *cri.Snapshot, mostImages int) *node.Runtime {
	if s.Endpoint == "" {
		return nil
	}
	r := &node.Runtime{Unready: s.Unready()}
	if v := s.Version; v.RuntimeName != "" {
		r.Version = v.RuntimeName + "://" + plainVersion(v.RuntimeVersion)
	}
	if !s.Reads[cri.CallListImages].Time.IsZero() {
		r.Images = nodeImages(s.Images, mostImages)
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

// plainVersion is a version as the kubelet shows it: without what a distribution
// adds in a way that is none of a version's.
func plainVersion(text string) string {
	if v, err := utilversion.ParseSemantic(text); err == nil {
		return v.String()
	}
	if v, err := utilversion.ParseGeneric(text); err == nil {
		return v.String()
	}
	return "Unknown"
}

// nodeImages is the first of the images, the largest, with the first of their
// names, digests before tags.
func nodeImages(images []cri.Image, most int) []v1.ContainerImage {
	if most >= 0 && len(images) > most {
		images = images[:most]
	}
	shown := make([]v1.ContainerImage, 0, len(images))
	for _, i := range images {
		names := append(append([]string{}, i.Digests...), i.Tags...) // not nil: the kubelet writes an empty list
		shown = append(shown, v1.ContainerImage{Names: names[:min(len(names), mostImageNames)], SizeBytes: int64(i.Size)})
	}
	return shown
}

// imageDirectory is where the runtime keeps its images, a directory of the node;
// "" while it has not told. The kubelet takes the first as well.
func imageDirectory(s *cri.Snapshot) string {
	if len(s.ImageFilesystems) == 0 || !filepath.IsAbs(s.ImageFilesystems[0].Mountpoint) {
		return ""
	}
	return s.ImageFilesystems[0].Mountpoint
}

// podCIDRs are the addresses that the Node's pods have, as a runtime is told them.
func podCIDRs(node *v1.Node) string {
	if len(node.Spec.PodCIDRs) == 0 {
		return node.Spec.PodCIDR
	}
	return strings.Join(node.Spec.PodCIDRs, ",")
}

// newRuntime returns what asks the container runtime; of a node that has none if
// none is configured.
func newRuntime(cfg *config, paths paths, log *slog.Logger, reg prometheus.Registerer) (*cri.Sampler, error) {
	onNode := func(endpoint string) string {
		path, err := cri.SocketPath(endpoint)
		if err != nil {
			return endpoint // none, or one that is refused below
		}
		return "unix://" + filepath.Join(paths.rootfs, path)
	}
	sampler, err := cri.New(cri.Config{
		Endpoint: onNode(cfg.ContainerRuntimeEndpoint), ImageEndpoint: onNode(cfg.ImageServiceEndpoint),
		Logger: log, Registerer: reg,
	})
	if err != nil {
		return nil, fmt.Errorf("set up container runtime: %w", err)
	}
	return sampler, nil
}
