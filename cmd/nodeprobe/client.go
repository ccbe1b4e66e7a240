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
	"sync"
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

// apiClient talks to the API server about nodes, events and leases, over one set of
// connections. A clientset would bring every API group into the binary, and
// 8 MiB of them into memory.
type apiClient struct {
	nodes  status.Nodes
	events status.Events
	leases heartbeat.Leases
	// get returns what is at a path as JSON, as old as the API server's cache.
	get  func(ctx context.Context, path string) ([]byte, error)
	http *http.Client

	connections *connrotation.Dialer
	silent      atomic.Bool // a request got no answer

	once   sync.Once
	settle *time.Timer // made by once
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
	// The bounds are client-go's.
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	a := &apiClient{connections: connrotation.NewDialer(dialer.DialContext)}
	cfg.Dial = a.connections.DialContext
	cfg.UserAgent = status.Manager + "/" + version()
	if impersonate {
		// Nothing but the name: with groups it would be impersonation of the old kind.
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node}
	}
	// Retries and bounds are the writers' own: each call has a deadline.
	cfg.QPS = -1
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{next, &a.silent} })
	if path := cfg.BearerTokenFile; path != "" {
		// By itself client-go reads the file once in 50 seconds; so it reads it again
		// after the token is refused, too.
		cfg.BearerToken, cfg.BearerTokenFile = "", ""
		cfg.Wrap(clienttransport.ResettableTokenSourceWrapTransport(clienttransport.NewCachedFileTokenSource(path)))
	}
	a.http, err = rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("use %s: connect to %s: %w", origin, cfg.Host, err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Node{}, &v1.NodeList{}, &v1.Event{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	codecs := serializer.NewCodecFactory(scheme)
	connect := func(apiPath string, version schema.GroupVersion) (*rest.RESTClient, error) {
		metav1.AddToGroupVersion(scheme, version)
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion = apiPath, &version
		c.NegotiatedSerializer = codecs.WithoutConversion()
		return rest.RESTClientForConfigAndClient(c, a.http)
	}
	core, err := connect("/api", v1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("use %s: connect to %s: %w", origin, cfg.Host, err)
	}
	coordination, err := connect("/apis", coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("use %s: connect to %s: %w", origin, cfg.Host, err)
	}
	e := explainer{node: node, origin: origin}
	a.nodes = clearNodes{status.NewNodes(core), e}
	a.events = clearEvents{status.NewEvents(core), e}
	a.leases = clearLeases{heartbeat.NewLeases(coordination), e}
	a.get = func(ctx context.Context, path string) ([]byte, error) {
		data, err := core.Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept", "application/json").DoRaw(ctx)
		return data, e.explain("get "+path, err)
	}
	return a, nil
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

// reconnect drops the idle connections: one of them may be half dead, and would be
// used again otherwise. One over which a request got no answer is not idle while
// the watch uses it; so then all of them go.
func (a *apiClient) reconnect() {
	// Where it fails, it has failed at the start, too, and that was logged.
	a.once.Do(func() { a.settle = time.AfterFunc(trimAgain, func() { _ = trim() }) })
	a.settle.Reset(trimAgain)
	if a.silent.Swap(false) {
		a.connections.CloseAll()
		return
	}
	utilnet.CloseIdleConnectionsFor(a.http.Transport)
}
