package node

import (
	"context"
	"maps"
	"runtime"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/status"
)

// Registration is what a Node is created with, besides its status.
type Registration struct {
	// Labels and Annotations are added to the default ones, and win over them.
	Labels, Annotations map[string]string
	// Taints are set when the Node is created, and never after.
	Taints []v1.Taint
	// ProviderID goes into spec.providerID.
	ProviderID string
	// ControllerAttachDetach leaves attaching volumes to the controller.
	ControllerAttachDetach bool
}

const (
	attachDetachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
	cloudTaint             = "node.cloudprovider.kubernetes.io/uninitialized"
)

// Initial implements status.Registrar: it returns the Node to create, with its status.
// Before the first facts there is none.
func (c *Content) Initial(ctx context.Context, now time.Time) (node *v1.Node, events []status.Event, err error) {
	facts := c.latest()
	if facts == nil {
		return nil, nil, errNoFacts
	}
	c.unreadPages = facts.Snapshot.Errors[probe.SourceHugePages] != nil
	node = c.blank()
	p := c.pass(facts, now)
	err = p.apply(ctx, node)
	return node, append(c.transitions(nil, node), p.events...), err
}

// blank returns the Node to create without its status.
func (c *Content) blank() *v1.Node {
	addresses, registration := &c.cfg.Addresses, &c.cfg.Registration
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: c.cfg.NodeName,
		Labels: map[string]string{
			v1.LabelHostname:          addresses.Hostname,
			v1.LabelOSStable:          runtime.GOOS,
			v1.LabelArchStable:        runtime.GOARCH,
			"beta.kubernetes.io/os":   runtime.GOOS,
			"beta.kubernetes.io/arch": runtime.GOARCH,
		},
	}}
	maps.Copy(node.Labels, registration.Labels)
	if len(registration.Annotations) > 0 || registration.ControllerAttachDetach {
		node.Annotations = map[string]string{}
	}
	if registration.ControllerAttachDetach {
		node.Annotations[attachDetachAnnotation] = "true"
	}
	maps.Copy(node.Annotations, registration.Annotations)
	node.Spec.Taints = append(node.Spec.Taints, registration.Taints...)
	if addresses.ExternalCloudProvider {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: cloudTaint, Value: "true", Effect: v1.TaintEffectNoSchedule})
	}
	node.Spec.ProviderID = registration.ProviderID
	return node
}

// Mend implements status.Registrar: it mends the default labels, the attach-detach
// annotation, missing resources, huge pages and declared features.
func (c *Content) Mend(existing, initial *v1.Node) (mended *v1.Node, changed bool) {
	mended = existing.DeepCopy()
	return mended, reconcile(mended, initial, !c.unreadPages)
}
