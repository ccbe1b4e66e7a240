package nodeprobe

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	clienttransport "k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
)

// clients talk to the API server about the Node, Events and the Lease. Each has
// connections of its own: a request without an answer breaks the connection that it
// went over, with everything else on it. A clientset would bring every API group into
// the binary, and 8 MiB of them into memory.
type clients struct {
	nodes  status.Nodes
	events status.Events
	leases heartbeat.Leases
	// get returns the object at a path as JSON, as old as the API server's cache. It
	// shares the connections of Events, for which nothing waits either.
	get func(ctx context.Context, path string) ([]byte, error)

	forNodes, forEvents, forLeases *connections
}

// close closes all connections.
func (c *clients) close() {
	for _, own := range []*connections{c.forNodes, c.forEvents, c.forLeases} {
		utilnet.CloseIdleConnectionsFor(own.http.Transport)
		own.tracker.CloseAll()
	}
}

// connections are those of one writer.
type connections struct {
	http        *http.Client
	tracker     *connrotation.ConnectionTracker
	silent      atomic.Bool // a request got no answer
	onReconnect func()
}

// newClients makes the clients of cfg's node.
func newClients(cfg *Config) (*clients, error) {
	base := rest.CopyConfig(cfg.API)
	base.UserAgent = cfg.FieldManager + "/" + cfg.Version
	// Retries and bounds are the writers' own: each call has a deadline, and a watch
	// lasts longer than any of them.
	base.QPS, base.RateLimiter, base.Timeout = -1, nil, 0
	var authorize clienttransport.WrapperFunc // nil for what client-go does by itself
	if path := base.BearerTokenFile; path != "" {
		// As by client-go itself, but the file is also read again after the token is
		// refused, and is not waited for.
		base.BearerToken, base.BearerTokenFile = "", ""
		authorize = clienttransport.ResettableTokenSourceWrapTransport(clienttransport.NewCachedTokenSource(&tokenFile{path: path}))
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Node{}, &v1.NodeList{}, &v1.Event{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	codecs := serializer.NewCodecFactory(scheme)
	origin := cmp.Or(cfg.APIOrigin, "Config.API")
	connect := func(apiPath string, version schema.GroupVersion) (*rest.RESTClient, *connections, error) {
		metav1.AddToGroupVersion(scheme, version)
		own := &connections{onReconnect: cfg.OnReconnect}
		c := rest.CopyConfig(base)
		c.APIPath, c.GroupVersion = apiPath, &version
		c.NegotiatedSerializer = codecs.WithoutConversion()
		client, err := own.connect(c, authorize)
		if err != nil {
			return nil, nil, fmt.Errorf("use %s: connect to %s: %w", origin, base.Host, err)
		}
		return client, own, nil
	}
	var all clients
	var nodes, events, leases *rest.RESTClient
	var err error
	if nodes, all.forNodes, err = connect("/api", v1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if events, all.forEvents, err = connect("/api", v1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if leases, all.forLeases, err = connect("/apis", coordinationv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	h := errorHints{node: cfg.NodeName, origin: origin}
	all.nodes = hintingNodes{status.NewNodes(nodes), h}
	all.events = hintingEvents{status.NewEvents(events), h}
	all.leases = hintingLeases{heartbeat.NewLeases(leases), h}
	all.get = func(ctx context.Context, path string) ([]byte, error) {
		data, err := events.Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept", "application/json").DoRaw(ctx)
		return data, h.explain("get "+path, err)
	}
	return &all, nil
}

// connect returns a client for cfg over connections that nothing else has: client-go
// shares a transport between equal configurations, and never one with a dialer of
// its own.
func (c *connections) connect(cfg *rest.Config, authorize clienttransport.WrapperFunc) (*rest.RESTClient, error) {
	// The bounds are client-go's.
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	dialer := connrotation.NewDialer(dial)
	c.tracker = dialer.ConnectionTracker
	cfg.Dial = dialer.DialContext
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{next, &c.silent} })
	cfg.Wrap(authorize)
	var err error
	if c.http, err = rest.HTTPClientFor(cfg); err != nil {
		return nil, err
	}
	return rest.RESTClientForConfigAndClient(cfg, c.http)
}

// reconnect drops the idle connections: one of them may be half dead, and would be
// used again otherwise. One over which a request got no answer is not idle while
// the watch uses it; so then all of them go.
func (c *connections) reconnect() {
	defer c.onReconnect()
	if c.silent.Swap(false) {
		c.tracker.CloseAll()
		return
	}
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
}
