package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
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

// register makes sure that the Node exists, and makes it the last known one. It
// tries once.
func (u *Updater) register(ctx context.Context) error {
	turn := u.sure.turn()
	node, how, err := u.enter(ctx)
	switch {
	case errors.Is(err, errDeleted): // which is how it is to be
		return err
	case err != nil:
		u.metrics.registrations.WithLabelValues("error").Inc()
		return err
	}
	u.metrics.registrations.WithLabelValues(how).Inc()
	u.metrics.deleted.Set(0)
	u.log.Info("node is registered", "node", node.Name, "how", how, "uid", node.UID)
	u.uid, u.since = node.UID, time.Now()
	u.know(node)
	u.gone.Store(nil)
	u.sure.open(turn)
	return nil
}

// enter creates the Node, or finds it and mends it. It returns the Node as the
// API server has it.
func (u *Updater) enter(ctx context.Context) (node *v1.Node, how string, err error) {
	facts := u.cfg.Facts()
	if facts.Snapshot.Time.IsZero() {
		return nil, "", errNoFacts
	}
	name := u.cfg.NodeName
	if !u.mayCreate() {
		node, err := u.find(ctx)
		switch {
		case err == nil:
			return u.takeOver(ctx, node, nil, &facts)
		case apierrors.IsNotFound(err) && u.cfg.Register:
			return nil, "", errDeleted
		case apierrors.IsNotFound(err):
			return nil, "", fmt.Errorf("get node %s: %w; who runs the node has to register it, or this is not its name (nodeName, NODE_NAME)", name, err)
		}
		return nil, "", fmt.Errorf("get node %s: %w", name, err)
	}
	initial := u.initial(ctx, &facts)
	node, createErr := u.cfg.Nodes.Create(ctx, initial)
	switch {
	case createErr == nil:
		u.tell(transitions(nil, initial))
		return node, "created", nil
	case apierrors.IsAlreadyExists(createErr):
	case apierrors.IsForbidden(createErr):
		// A credential may be allowed to patch its Node and not to create one.
	default:
		return nil, "", fmt.Errorf("create node %s: %w", name, createErr)
	}
	existing, err := u.find(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("create node %s: %w; get node %s: %w", name, createErr, name, err)
	}
	return u.takeOver(ctx, existing, initial, &facts)
}

// initial is the Node as it would be created now.
func (u *Updater) initial(ctx context.Context, facts *Facts) *v1.Node {
	node, err := InitialNode(ctx, &u.cfg, facts, time.Now())
	u.noteSetters(err)
	return node
}

// takeOver mends what registration owns on a Node that exists, unless others register
// it. Initial is what would be created, nil if that is not known yet.
func (u *Updater) takeOver(ctx context.Context, existing, initial *v1.Node, facts *Facts) (node *v1.Node, how string, err error) {
	if err := u.cfg.Allow(existing); err != nil {
		return nil, "", err
	}
	u.adopt(existing)
	if !u.cfg.Register {
		return existing, "adopted", nil
	}
	if initial == nil {
		initial = u.initial(ctx, facts)
	}
	mended := existing.DeepCopy()
	if !reconcile(mended, initial, facts) {
		return existing, "adopted", nil
	}
	patch, err := Patch(existing, mended)
	if err != nil {
		return nil, "", err
	}
	if node, err = u.cfg.Nodes.PatchStatus(ctx, u.cfg.NodeName, patch); err != nil {
		return nil, "", fmt.Errorf("patch node %s: %w", u.cfg.NodeName, err)
	}
	return node, "adopted", nil
}

// adopt has the history taken over that a Node shows which was there before this
// process: of one that came later, this process knows more.
func (u *Updater) adopt(node *v1.Node) {
	if u.uid == "" {
		u.cfg.Adopt(node)
	}
}

// find reads the Node.
func (u *Updater) find(ctx context.Context) (*v1.Node, error) {
	if u.cfg.ReadOnly {
		return u.cfg.Nodes.Get(ctx, u.cfg.NodeName)
	}
	node, unread, err := ReadNode(ctx, u.cfg.Nodes, u.cfg.NodeName)
	if unread != nil && u.unread.news(unread) {
		u.log.Warn("node cannot be read; a patch that changes nothing is answered with it", "node", u.cfg.NodeName, "err", unread)
	}
	return node, err
}

// ReadNode reads a Node. A credential that may patch its Node but not read it gets the
// same from a patch that changes nothing; unread is then why.
func ReadNode(ctx context.Context, nodes Nodes, name string) (node *v1.Node, unread, err error) {
	node, err = nodes.Get(ctx, name)
	if !apierrors.IsForbidden(err) {
		return node, nil, err
	}
	node, patchErr := nodes.PatchStatus(ctx, name, []byte("{}"))
	if patchErr != nil && !apierrors.IsNotFound(patchErr) {
		return nil, nil, err
	}
	return node, err, patchErr
}

// registerBackoff is how long to wait before each attempt to register, as the
// kubelet waits: 0.1 s, doubling up to 7 s. It begins anew once a Node has settled.
type registerBackoff struct{ next time.Duration }

func (b *registerBackoff) step() time.Duration {
	if b.next == 0 {
		b.next = 100 * time.Millisecond
	}
	d := b.next
	b.next = min(2*b.next, 7*time.Second)
	return d
}
