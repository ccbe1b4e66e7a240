// Package apiclient talks to the API server about one node: its Node, Events, its Lease
// and its CSINode. Errors come with what an operator can do about them.
package apiclient

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/event"
)

// Clients talk to the API server about the Node, Events and the Lease. Each has
// connections of its own: a request without an answer breaks the connection that it
// went over, with everything else on it. A clientset would bring every API group into
// the binary, and 8 MiB of them into memory.
type Clients struct {
	Nodes  status.Nodes
	Events event.API
	Leases heartbeat.Leases
	// Get returns the object at a path as JSON, as old as the API server's cache. It
	// shares the connections of Events, for which nothing waits either.
	Get func(ctx context.Context, path string) ([]byte, error)

	ForNodes, ForEvents, ForLeases *Connections
}

// Close closes all connections.
func (c *Clients) Close() {
	for _, own := range []*Connections{c.ForNodes, c.ForEvents, c.ForLeases} {
		utilnet.CloseIdleConnectionsFor(own.http.Transport)
		own.tracker.CloseAll()
	}
}

// Connections are those of one writer.
type Connections struct {
	http        *http.Client
	tracker     *connrotation.ConnectionTracker
	silent      atomic.Bool // a request got no answer
	onReconnect func()
	mishaps     *mishaps // nil but in a rehearsal
}

// Config is what New needs.
type Config struct {
	// API reaches the API server. It is left as it is.
	API *rest.Config
	// Origin names in errors where API's credentials come from.
	Origin string
	// NodeName is the node whose credentials these should be.
	NodeName string
	// UserAgent is "manager/version": the API server takes the field manager from it.
	UserAgent string
	// OnReconnect is called after connections were dropped. It must not block.
	OnReconnect func()
	// Rehearsal makes every write a dry run, and requests fail on demand: see
	// [Connections.Fail].
	Rehearsal bool
}

// New makes the clients. It sends nothing. The error is about API, and names its origin.
func New(cfg Config) (*Clients, error) {
	base := rest.CopyConfig(cfg.API)
	base.UserAgent = cfg.UserAgent
	// Retries and bounds are the writers' own: each call has a deadline, and a watch
	// lasts longer than any of them.
	base.QPS, base.RateLimiter, base.Timeout = -1, nil, 0
	origin := cfg.Origin
	connecting := func(err error) error {
		return fmt.Errorf("use %s: connect to %s: %w", origin, base.Host, err)
	}
	files, err := newFiles(base)
	if err != nil {
		return nil, connecting(err)
	}
	if base.Dial == nil {
		base.Dial = newDialer().DialContext
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Node{}, &v1.NodeList{}, &v1.Event{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	codecs := serializer.NewCodecFactory(scheme)
	connect := func(apiPath string, version schema.GroupVersion) (rest.Interface, *Connections, error) {
		metav1.AddToGroupVersion(scheme, version)
		own := &Connections{onReconnect: cfg.OnReconnect}
		if cfg.Rehearsal {
			own.mishaps = new(mishaps)
		}
		c := rest.CopyConfig(base)
		c.APIPath, c.GroupVersion = apiPath, &version
		c.NegotiatedSerializer = codecs.WithoutConversion()
		client, err := own.connect(c, files)
		if err != nil {
			return nil, nil, connecting(err)
		}
		if cfg.Rehearsal {
			return dryRun{client}, own, nil
		}
		return client, own, nil
	}
	var all Clients
	var nodes, events, leases rest.Interface
	if nodes, all.ForNodes, err = connect("/api", v1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if events, all.ForEvents, err = connect("/api", v1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if leases, all.ForLeases, err = connect("/apis", coordinationv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	h := errorHints{node: cfg.NodeName, origin: origin}
	all.Nodes = hintingNodes{status.NewNodes(nodes), h}
	all.Events = hintingEvents{event.NewAPI(events), h}
	all.Leases = hintingLeases{heartbeat.NewLeases(leases), h}
	all.Get = func(ctx context.Context, path string) ([]byte, error) {
		data, err := events.Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept", "application/json").DoRaw(ctx)
		return data, h.explain("get "+path, err)
	}
	return &all, nil
}

// connect returns a client for cfg over connections that nothing else has: client-go
// shares a transport between equal configurations, and never one with a dialer of
// its own.
func (c *Connections) connect(cfg *rest.Config, f *files) (*rest.RESTClient, error) {
	dialer := connrotation.NewDialer(connrotation.DialFunc(cfg.Dial))
	c.tracker = dialer.ConnectionTracker
	cfg.Dial = dialer.DialContext
	if c.mishaps != nil {
		cfg.Wrap(c.mishaps.wrap)
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{next, &c.silent} })
	if f.token != nil {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return authorizer{next, f.token, f.bearer} })
	}
	transportCfg, err := cfg.TransportConfig()
	if err != nil {
		return nil, err
	}
	rotating, err := newRotator(transportCfg, f, c.tracker.CloseAll)
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{Transport: rotating}
	return rest.RESTClientForConfigAndClient(cfg, c.http)
}

// Reconnect drops the idle connections: one of them may be half dead, and would be
// used again otherwise. One over which a request got no answer is not idle while
// the watch uses it; so then all of them go.
func (c *Connections) Reconnect() {
	defer c.onReconnect()
	if c.silent.Swap(false) {
		c.tracker.CloseAll()
		return
	}
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
}
