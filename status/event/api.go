package event

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// API is the part of the API that a Recorder needs. Each call must return when its
// context ends.
type API interface {
	Create(ctx context.Context, event *v1.Event) error
	// Patch sends a strategic-merge patch of one Event.
	Patch(ctx context.Context, namespace, name string, patch []byte) error
}

// NewAPI returns an API over a REST client for the core/v1 API.
func NewAPI(client rest.Interface) API { return restAPI{client} }

type restAPI struct{ client rest.Interface }

func (a restAPI) Create(ctx context.Context, event *v1.Event) error {
	return a.client.Post().Resource("events").Namespace(event.Namespace).Body(event).MaxRetries(0).Do(ctx).Error()
}

func (a restAPI) Patch(ctx context.Context, namespace, name string, patch []byte) error {
	return a.client.Patch(types.StrategicMergePatchType).Resource("events").Namespace(namespace).Name(name).
		Body(patch).MaxRetries(0).Do(ctx).Error()
}
