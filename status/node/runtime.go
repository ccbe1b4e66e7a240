package node

import (
	"cmp"
	"context"

	v1 "k8s.io/api/core/v1"
)

// Runtime is what the container runtime reports. A part that is not known yet is nil or
// "", and stays as the Node has it.
type Runtime struct {
	// Version is such as "containerd://1.7.2".
	Version string
	// Images are those that the runtime holds, in the order to show them in; not nil
	// once they are known.
	Images []v1.ContainerImage
	// Handlers are sorted by name; not nil once they are known.
	Handlers []v1.NodeRuntimeHandler
	// Features is nil if the runtime does not report features.
	Features *v1.NodeFeatures
}

// runtimeVersion sets the version of the container runtime.
func runtimeVersion(facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if r := facts.Runtime; r != nil {
			info := &node.Status.NodeInfo
			info.ContainerRuntimeVersion = cmp.Or(r.Version, info.ContainerRuntimeVersion)
		}
		return nil
	}
}

// images sets the images that the runtime holds.
func images(facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if r := facts.Runtime; r != nil && r.Images != nil {
			node.Status.Images = r.Images
		}
		return nil
	}
}

// runtimeHandlers sets what a RuntimeClass can name.
func runtimeHandlers(facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if r := facts.Runtime; r != nil && r.Handlers != nil {
			node.Status.RuntimeHandlers = r.Handlers
		}
		return nil
	}
}

// nodeFeatures sets what the runtime supports with every handler.
func nodeFeatures(facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if r := facts.Runtime; r != nil && r.Features != nil {
			node.Status.Features = r.Features
		}
		return nil
	}
}
