package status

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	return answerOf(ctx, n.client.Get().Resource("nodes").Name(name), name)
}

func (n restNodes) Create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	return answerOf(ctx, n.client.Post().Resource("nodes").Body(node), node.Name)
}

func (n restNodes) PatchStatus(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	return answerOf(ctx, n.client.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).
		SubResource("status").Body(patch), name)
}

// answerOf makes a request, and returns the Node that answers it. Any other answer must
// not become the last known Node: the next patch would be made from it.
//
// The client's own retries are off in all requests here. The waits that the API server
// asks for may exceed the deadline, and would show nowhere.
func answerOf(ctx context.Context, request *rest.Request, name string) (*v1.Node, error) {
	result := request.MaxRetries(0).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	var node v1.Node
	if err := result.Into(&node); err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}
	if node.Name != name {
		return nil, fmt.Errorf("response is not node %s", name)
	}
	return &node, nil
}

// maxDelay bounds what asked returns, so that one wrong answer does not silence a node:
// it is the longest that anything here waits by itself before it tries again.
const maxDelay = time.Minute

// asked returns the Retry-After of the API server's answer, 0 if it has none.
func asked(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(seconds)*time.Second, maxDelay)
}

func (n restNodes) Watch(ctx context.Context, name, version string, limit time.Duration) (watch.Interface, error) {
	return n.client.Get().Resource("nodes").MaxRetries(0).
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
