package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clienttransport "k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
)

// apiClient talks to the API server about nodes, events and leases. The status with
// its watch, the Lease, and Events have connections of their own: a request without
// an answer breaks the connection that it went over, and what else does. A
// clientset would bring every API group into the binary, and 8 MiB of them into
// memory.
type apiClient struct {
	nodes  status.Nodes
	events status.Events
	leases heartbeat.Leases
	// get returns what is at a path as JSON, as old as the API server's cache. It
	// shares the connections of Events, for which nothing waits either.
	get func(ctx context.Context, path string) ([]byte, error)

	forNodes, forEvents, forLeases *connections
}

// connections are those of one writer.
type connections struct {
	http    *http.Client
	tracker *connrotation.ConnectionTracker
	silent  atomic.Bool // a request got no answer
	settle  *time.Timer // trims memory some time after the latest reconnect; one for all
}

// newAPIClient makes the client of a node, from a kubeconfig or else from the
// pod's service account, which may have to impersonate the node.
func newAPIClient(kubeconfig, node string, impersonate bool) (*apiClient, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	origin := "service account" // whose files may be at fault
	if kubeconfig != "" {
		origin = "kubeconfig " + kubeconfig
	}
	cfg.UserAgent = status.DefaultFieldManager + "/" + version()
	if impersonate {
		// Nothing but the name: with groups it would be impersonation of the old kind.
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node}
	}
	// Retries and bounds are the writers' own: each call has a deadline.
	cfg.QPS = -1
	var authorize clienttransport.WrapperFunc // nil for what client-go does by itself
	if path := cfg.BearerTokenFile; path != "" {
		// As by client-go itself, but the file is read again after the token is refused,
		// too, and is not waited for.
		cfg.BearerToken, cfg.BearerTokenFile = "", ""
		authorize = clienttransport.ResettableTokenSourceWrapTransport(clienttransport.NewCachedTokenSource(&tokenFile{path: path}))
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Node{}, &v1.NodeList{}, &v1.Event{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	codecs := serializer.NewCodecFactory(scheme)
	// Where it fails, it has failed at the start, too, and that was logged.
	settle := time.AfterFunc(trimAgain, func() { _ = trim() })
	settle.Stop()
	connect := func(apiPath string, version schema.GroupVersion) (*rest.RESTClient, *connections, error) {
		metav1.AddToGroupVersion(scheme, version)
		own := &connections{settle: settle}
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion = apiPath, &version
		c.NegotiatedSerializer = codecs.WithoutConversion()
		client, err := own.connect(c, authorize)
		if err != nil {
			return nil, nil, fmt.Errorf("use %s: connect to %s: %w", origin, cfg.Host, err)
		}
		return client, own, nil
	}
	a := &apiClient{}
	var nodes, events, leases *rest.RESTClient
	if nodes, a.forNodes, err = connect("/api", v1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if events, a.forEvents, err = connect("/api", v1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if leases, a.forLeases, err = connect("/apis", coordinationv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	e := explainer{node: node, origin: origin}
	a.nodes = clearNodes{status.NewNodes(nodes), e}
	a.events = clearEvents{status.NewEvents(events), e}
	a.leases = clearLeases{heartbeat.NewLeases(leases), e}
	a.get = func(ctx context.Context, path string) ([]byte, error) {
		data, err := events.Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept", "application/json").DoRaw(ctx)
		return data, e.explain("get "+path, err)
	}
	return a, nil
}

// connect returns a client for cfg over connections that nobody else has: client-go
// shares a transport between equal configurations, and never one with a dialer of
// its own.
func (c *connections) connect(cfg *rest.Config, authorize clienttransport.WrapperFunc) (*rest.RESTClient, error) {
	// The bounds are client-go's.
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext)
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
	c.settle.Reset(trimAgain)
	if c.silent.Swap(false) {
		c.tracker.CloseAll()
		return
	}
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
}

// restConfig reads a kubeconfig, or the pod's service account if there is none.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig is given, and there is no service account to use instead: %w", err)
		}
		return cfg, nil
	}
	// Unlike LoadFromFile this finds files that are named relative to the
	// kubeconfig.
	loaded, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}).Load()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	if err := complete(loaded); err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	if plugin := cfg.ExecProvider; plugin != nil && !findable(plugin.Command) {
		return nil, fmt.Errorf("read kubeconfig %s: there is no credential plugin %s", kubeconfig, plugin.Command)
	}
	return cfg, nil
}

// findable says whether a command is there: waiting for the first request to
// find out would be late.
func findable(command string) bool {
	places := []string{command}
	if !strings.ContainsRune(command, filepath.Separator) {
		places = nil
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			places = append(places, filepath.Join(dir, command))
		}
	}
	return slices.ContainsFunc(places, func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && !info.IsDir()
	})
}

// complete checks that the chain from the current context to a server has no
// gap. client-go's words for a gap are about other things, and without a server
// it would have us talk to localhost:8080.
func complete(c *clientcmdapi.Config) error {
	if c.CurrentContext == "" {
		return errors.New("there is no current-context")
	}
	current := c.Contexts[c.CurrentContext]
	if current == nil {
		return fmt.Errorf("there is no context %q", c.CurrentContext)
	}
	cluster := c.Clusters[current.Cluster]
	switch {
	case cluster == nil:
		return fmt.Errorf("there is no cluster %q, which context %q names", current.Cluster, c.CurrentContext)
	case cluster.Server == "":
		return fmt.Errorf("cluster %q of context %q has no server", current.Cluster, c.CurrentContext)
	case current.AuthInfo != "" && c.AuthInfos[current.AuthInfo] == nil:
		return fmt.Errorf("there is no user %q, whom context %q names", current.AuthInfo, c.CurrentContext)
	}
	return nil
}
