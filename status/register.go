package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Registration is what a Node is created with, besides its status.
type Registration struct {
	// Labels are added to the default ones, and win over them.
	Labels map[string]string
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

// reconciledLabels are those that registration mends on a Node that exists
// already. All others belong to whoever set them.
var reconciledLabels = []string{
	v1.LabelHostname,
	v1.LabelTopologyZone, v1.LabelTopologyRegion,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
	v1.LabelOSStable, v1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// InitialNode returns the Node that would be created now, with its status. The
// error tells which setters failed; the Node holds what the others set.
func InitialNode(ctx context.Context, cfg *Config, facts *Facts, now time.Time) (*v1.Node, error) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: cfg.NodeName,
		Labels: map[string]string{
			v1.LabelHostname:          cfg.Addresses.Hostname,
			v1.LabelOSStable:          runtime.GOOS,
			v1.LabelArchStable:        runtime.GOARCH,
			"beta.kubernetes.io/os":   runtime.GOOS,
			"beta.kubernetes.io/arch": runtime.GOARCH,
		},
	}}
	maps.Copy(node.Labels, cfg.Registration.Labels)
	node.Spec.Taints = append(node.Spec.Taints, cfg.Registration.Taints...)
	if cfg.Addresses.ExternalCloudProvider {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: cloudTaint, Value: "true", Effect: v1.TaintEffectNoSchedule})
	}
	node.Spec.ProviderID = cfg.Registration.ProviderID
	if cfg.Registration.ControllerAttachDetach {
		node.Annotations = map[string]string{attachDetachAnnotation: "true"}
	}
	err := apply(ctx, node, setters(cfg, facts, now))
	return node, err
}

// register makes sure that the Node exists, and returns it as the API server
// has it. It tries once; existed is true if the Node was there before.
func register(ctx context.Context, cfg *Config, initial *v1.Node) (node *v1.Node, existed bool, err error) {
	node, err = cfg.Nodes.Create(ctx, initial)
	if err == nil {
		return node, false, nil
	}
	// A credential may be allowed to patch its Node and not to create one.
	if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
		return nil, false, fmt.Errorf("create node %s: %w", cfg.NodeName, err)
	}
	createErr := err
	existing, err := cfg.Nodes.Get(ctx, cfg.NodeName)
	if err != nil {
		if apierrors.IsForbidden(createErr) {
			err = errors.Join(createErr, err)
		}
		return nil, false, fmt.Errorf("get node %s: %w", cfg.NodeName, err)
	}
	mended := existing.DeepCopy()
	if !reconcile(mended, initial) {
		return existing, true, nil
	}
	patch, err := Patch(existing, mended)
	if err != nil {
		return nil, false, err
	}
	node, err = cfg.Nodes.PatchStatus(ctx, cfg.NodeName, patch)
	if err != nil {
		return nil, false, fmt.Errorf("patch node %s: %w", cfg.NodeName, err)
	}
	return node, true, nil
}

// reconcile mends what registration owns on a Node that was there before, and
// says whether anything had to be.
func reconcile(existing, initial *v1.Node) bool {
	changed := reconcileAnnotation(existing, initial, attachDetachAnnotation)
	changed = reconcileLabels(existing, initial) || changed
	return reconcileHugePages(existing, initial) || changed
}

func reconcileAnnotation(existing, initial *v1.Node, key string) bool {
	want, wanted := initial.Annotations[key]
	have, had := existing.Annotations[key]
	switch {
	case wanted == had && want == have:
		return false
	case !wanted:
		delete(existing.Annotations, key)
	default:
		if existing.Annotations == nil {
			existing.Annotations = map[string]string{}
		}
		existing.Annotations[key] = want
	}
	return true
}

func reconcileLabels(existing, initial *v1.Node) bool {
	changed := false
	for _, key := range reconciledLabels {
		want, ok := initial.Labels[key]
		if !ok || existing.Labels[key] == want {
			continue
		}
		changed = true
		if want == "" {
			delete(existing.Labels, key)
			continue
		}
		if existing.Labels == nil {
			existing.Labels = map[string]string{}
		}
		existing.Labels[key] = want
	}
	return changed
}

// requireLabels mends the two labels that schedulers cannot do without.
func requireLabels(node *v1.Node) bool {
	return reconcileLabels(node, &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH,
	}}})
}

// reconcileHugePages makes the page sizes on the Node those of the machine.
func reconcileHugePages(existing, initial *v1.Node) bool {
	changed := false
	for name, want := range initial.Status.Capacity {
		if !isHugePages(name) {
			continue
		}
		have, ok := existing.Status.Capacity[name]
		_, allocatable := existing.Status.Allocatable[name]
		if ok && allocatable && have.Cmp(want) == 0 {
			continue
		}
		if existing.Status.Capacity == nil {
			existing.Status.Capacity = v1.ResourceList{}
		}
		if existing.Status.Allocatable == nil {
			existing.Status.Allocatable = v1.ResourceList{}
		}
		existing.Status.Capacity[name] = want
		existing.Status.Allocatable[name] = initial.Status.Allocatable[name]
		changed = true
	}
	for _, list := range []v1.ResourceList{existing.Status.Capacity, existing.Status.Allocatable} {
		for name := range list {
			if _, ok := initial.Status.Capacity[name]; isHugePages(name) && !ok {
				delete(list, name)
				changed = true
			}
		}
	}
	return changed
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// registerBackoff is how long to wait before each attempt to register, as the
// kubelet waits: 0.1 s, doubling up to 7 s.
type registerBackoff struct{ next time.Duration }

func (b *registerBackoff) step() time.Duration {
	if b.next == 0 {
		b.next = 100 * time.Millisecond
	}
	d := b.next
	b.next = min(2*b.next, 7*time.Second)
	return d
}
