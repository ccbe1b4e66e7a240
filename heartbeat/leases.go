package heartbeat

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
)

// Namespace is where the leases of nodes live.
const Namespace = "kube-node-lease"

// Leases reads and writes leases in Namespace. Errors are those of the API
// server: a Heartbeater classifies them with k8s.io/apimachinery's api/errors.
// A call must end when its context does. It must neither change nor keep the lease
// that it is passed, and the caller may change the one that it returns.
type Leases interface {
	// Get reads a lease by name.
	Get(ctx context.Context, name string) (*coordinationv1.Lease, error)
	// Create writes a new lease and returns it as stored.
	Create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
	// Update replaces the lease if its resourceVersion and UID are still the
	// stored ones, and returns it as stored; else the error is a Conflict.
	Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// NewLeases returns Leases over a REST client. The typed client of client-go's
// kubernetes package would do the same, and link every API group.
//
// The client must be for the group version coordination.k8s.io/v1 under /apis,
// and its NegotiatedSerializer must come from a scheme that contains it:
//
//	scheme := runtime.NewScheme()
//	err := coordinationv1.AddToScheme(scheme)
//	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // Status, that is errors
//	config.GroupVersion = &coordinationv1.SchemeGroupVersion
//	config.APIPath = "/apis"
//	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
//	config.QPS = -1 // a heartbeat does not queue behind anything
//	client, err := rest.RESTClientFor(config)
//
// If the config names no content type, leases are sent as protobuf.
func NewLeases(client rest.Interface) Leases {
	return restLeases{client}
}

type restLeases struct{ client rest.Interface }

func (l restLeases) Get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	return l.do(ctx, l.client.Get().Name(name), name)
}

func (l restLeases) Create(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	// UseProtobufAsDefault comes before Body, which encodes.
	return l.do(ctx, l.client.Post().UseProtobufAsDefault().Body(lease), lease.Name)
}

func (l restLeases) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.do(ctx, l.client.Put().Name(lease.Name).UseProtobufAsDefault().Body(lease), lease.Name)
}

// do makes a request and returns the lease that answers it. The client's own
// retries are off: the waits that the API server asks for may exceed the deadline,
// and would show nowhere.
func (l restLeases) do(ctx context.Context, request *rest.Request, name string) (*coordinationv1.Lease, error) {
	result := request.UseProtobufAsDefault().
		MaxRetries(0).
		Namespace(Namespace).
		Resource("leases").
		Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	lease := new(coordinationv1.Lease)
	if err := result.Into(lease); err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}
	if lease.Name != name {
		return nil, fmt.Errorf("response is not lease %s", name)
	}
	return lease, nil
}
