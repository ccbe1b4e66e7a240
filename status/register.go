package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeprobe/nodeprobe/internal/once"
)

// register makes one attempt to create or find the Node, and makes it the last known one.
func (u *Updater) register(ctx context.Context) error {
	turn := u.sure.turn()
	node, how, err := u.enter(ctx)
	switch {
	case errors.Is(err, errDeleted): // as intended, and no failure
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

// enter creates the Node, or finds and mends it. It returns the Node as the API server
// has it, and "created" or "adopted".
func (u *Updater) enter(ctx context.Context) (node *v1.Node, how string, err error) {
	name := u.cfg.NodeName
	if !u.mayCreate() {
		node, err := u.find(ctx)
		switch {
		case err == nil:
			return u.takeOver(ctx, node, nil)
		case apierrors.IsNotFound(err) && u.cfg.Registrar != nil:
			return nil, "", errDeleted
		case apierrors.IsNotFound(err):
			return nil, "", fmt.Errorf("get node %s: %w; it must be registered by whatever runs the node, or its name is another (nodeName, NODE_NAME)", name, err)
		}
		return nil, "", fmt.Errorf("get node %s: %w", name, err)
	}
	initial, events, err := u.initial(ctx)
	if err != nil {
		return nil, "", err
	}
	node, createErr := u.cfg.Nodes.Create(ctx, initial)
	switch {
	case createErr == nil:
		u.record(events)
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
	return u.takeOver(ctx, existing, initial)
}

// initial returns the Node as it would be created now.
func (u *Updater) initial(ctx context.Context) (*v1.Node, []Event, error) {
	node, events, err := u.cfg.Registrar.Initial(ctx, time.Now())
	if node == nil {
		return nil, nil, cmp.Or(err, errNoInitial)
	}
	u.notePartial(err)
	return node, events, nil
}

var errNoInitial = errors.New("there is no Node to create yet")

// takeOver mends what registration owns on a Node that exists, unless others register
// it. Initial is the Node that would be created, nil if that is not known yet.
func (u *Updater) takeOver(ctx context.Context, existing, initial *v1.Node) (node *v1.Node, how string, err error) {
	if err := u.cfg.Allow(existing); err != nil {
		return nil, "", err
	}
	u.adopt(existing)
	if u.cfg.Registrar == nil {
		return existing, "adopted", nil
	}
	if initial == nil {
		if initial, _, err = u.initial(ctx); err != nil {
			return nil, "", err
		}
	}
	mended, changed := u.cfg.Registrar.Mend(existing, initial)
	if !changed {
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

// adopt passes a Node that is older than this process to Adopt. About one that came
// later, this process knows more.
func (u *Updater) adopt(node *v1.Node) {
	if u.uid == "" {
		u.cfg.Adopt(node)
	}
}

// find reads the Node.
func (u *Updater) find(ctx context.Context) (*v1.Node, error) {
	if u.follows {
		return u.cfg.Nodes.Get(ctx, u.cfg.NodeName)
	}
	node, unread, err := ReadNode(ctx, u.cfg.Nodes, u.cfg.NodeName)
	if unread != nil {
		u.log.Warn("cannot read the node; reading it by a patch that changes nothing", once.Failure, "reading the node", "node", u.cfg.NodeName, "err", unread)
	}
	return node, err
}

// ReadNode reads a Node. A credential that may patch its Node but not read it reads it by
// a patch that changes nothing; unread is then the error of the GET.
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

// registerBackoff returns how long to wait before each attempt to register, as the
// kubelet does: 0.1 s, doubling up to 7 s. It starts over once a Node has settled.
type registerBackoff struct{ next time.Duration }

func (b *registerBackoff) step() time.Duration {
	if b.next == 0 {
		b.next = 100 * time.Millisecond
	}
	d := b.next
	b.next = min(2*b.next, 7*time.Second)
	return d
}
