package main

import (
	"fmt"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeprobe/nodeprobe/heartbeat"
	"github.com/nodeprobe/nodeprobe/status"
)

// apiClient talks to the API server about nodes and leases, over one set of
// connections. A clientset would bring every API group into the binary, and
// 8 MiB of them into memory.
type apiClient struct {
	nodes  status.Nodes
	leases heartbeat.Leases
	http   *http.Client
}

func newAPIClient(kubeconfig string) (*apiClient, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "nodeprobe/" + version()
	// Retries and bounds are the writers' own: each call has a deadline.
	cfg.QPS = -1
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.SchemeGroupVersion, &v1.Node{}, &v1.NodeList{})
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	codecs := serializer.NewCodecFactory(scheme)
	connect := func(apiPath string, version schema.GroupVersion) (*rest.RESTClient, error) {
		metav1.AddToGroupVersion(scheme, version)
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion = apiPath, &version
		c.NegotiatedSerializer = codecs.WithoutConversion()
		return rest.RESTClientForConfigAndClient(c, client)
	}
	core, err := connect("/api", v1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	coordination, err := connect("/apis", coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	return &apiClient{nodes: status.NewNodes(core), leases: heartbeat.NewLeases(coordination), http: client}, nil
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
	loaded, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	// A kubeconfig without a server would have us talk to localhost:8080.
	if current := loaded.Contexts[loaded.CurrentContext]; current != nil {
		if cluster := loaded.Clusters[current.Cluster]; cluster == nil || cluster.Server == "" {
			return nil, fmt.Errorf("read kubeconfig %s: cluster %q of context %q has no server", kubeconfig, current.Cluster, loaded.CurrentContext)
		}
	}
	return cfg, nil
}

// reconnect drops the idle connections: one of them may be half dead, and
// would be used again otherwise.
func (c *apiClient) reconnect() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }
