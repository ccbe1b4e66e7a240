package status

import (
	"context"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Nodes is the part of the API that the Updater needs. Each call must return
// when its context ends; nothing else bounds it.
type Nodes interface {
	Get(ctx context.Context, name string) (*v1.Node, error)
	Create(ctx context.Context, node *v1.Node) (*v1.Node, error)
	// PatchStatus sends a strategic-merge patch of nodes/<name>/status.
	PatchStatus(ctx context.Context, name string, patch []byte) (*v1.Node, error)
	// Watch follows the changes of one Node after a resource version, with
	// bookmarks, until ctx ends or limit is over. After version 0 it begins with
	// the Node as it is.
	Watch(ctx context.Context, name, version string, limit time.Duration) (watch.Interface, error)
}

// NewNodes returns Nodes over a REST client for the core/v1 API. The typed
// clientset would do the same, and bring every API group into the binary.
func NewNodes(client rest.Interface) Nodes { return restNodes{client} }

type restNodes struct{ client rest.Interface }

func (n restNodes) Get(ctx context.Context, name string) (*v1.Node, error) {
	var node v1.Node
	if err := n.client.Get().Resource("nodes").Name(name).Do(ctx).Into(&node); err != nil {
		return nil, err
	}
	return &node, nil
}

func (n restNodes) Create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	var created v1.Node
	if err := n.client.Post().Resource("nodes").Body(node).Do(ctx).Into(&created); err != nil {
		return nil, err
	}
	return &created, nil
}

func (n restNodes) PatchStatus(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	var node v1.Node
	err := n.client.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).
		SubResource("status").Body(patch).Do(ctx).Into(&node)
	if err != nil {
		return nil, err
	}
	return &node, nil
}

func (n restNodes) Watch(ctx context.Context, name, version string, limit time.Duration) (watch.Interface, error) {
	return n.client.Get().Resource("nodes").
		Param("watch", "true").
		Param("allowWatchBookmarks", "true").
		Param("fieldSelector", "metadata.name="+name).
		Param("resourceVersion", version).
		Param("timeoutSeconds", strconv.Itoa(int(limit.Seconds()))).
		Watch(ctx)
}

// boundedNodes bounds every call but Watch, whose answer has no end.
type boundedNodes struct {
	Nodes
	timeout time.Duration
}

func (n boundedNodes) Get(ctx context.Context, name string) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	return n.Nodes.Get(ctx, name)
}

func (n boundedNodes) Create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	return n.Nodes.Create(ctx, node)
}

func (n boundedNodes) PatchStatus(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	return n.Nodes.PatchStatus(ctx, name, patch)
}

// NewEvents returns Events over a REST client for the core/v1 API.
func NewEvents(client rest.Interface) Events { return restEvents{client} }

type restEvents struct{ client rest.Interface }

func (e restEvents) Create(ctx context.Context, event *v1.Event) error {
	return e.client.Post().Resource("events").Namespace(event.Namespace).Body(event).Do(ctx).Error()
}

func (e restEvents) Patch(ctx context.Context, namespace, name string, patch []byte) error {
	return e.client.Patch(types.StrategicMergePatchType).Resource("events").Namespace(namespace).Name(name).
		Body(patch).Do(ctx).Error()
}
