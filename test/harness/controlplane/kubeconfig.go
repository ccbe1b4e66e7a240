package controlplane

import (
	"fmt"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ConfigFor returns a client configuration for the given user and groups. Each
// call issues a certificate of its own.
func (cp *ControlPlane) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	pair, err := cp.ca.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: loopbackURL("https", cp.ports.apiServer),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   cp.ca.pem,
			CertData: pair.cert,
			KeyData:  pair.key,
		},
		// A test is no controller: it may ask as often as it likes.
		QPS: -1,
	}, nil
}

// Kubeconfig writes a kubeconfig for the given user and groups, with a client
// certificate inside, and returns its path. It is removed with the control plane.
func (cp *ControlPlane) Kubeconfig(user string, groups ...string) (string, error) {
	config, err := cp.ConfigFor(user, groups...)
	if err != nil {
		return "", err
	}
	return cp.WriteKubeconfig(user, config)
}

// NodeKubeconfig is Kubeconfig for the identity of a kubelet: the user
// system:node:NAME in the group system:nodes.
func (cp *ControlPlane) NodeKubeconfig(name string) (string, error) {
	user, groups := NodeUser(name)
	return cp.Kubeconfig(user, groups...)
}

// NodeUser returns the user and the groups of the kubelet of the named node.
func NodeUser(name string) (user string, groups []string) {
	return "system:node:" + name, []string{"system:nodes"}
}

// WriteKubeconfig writes a kubeconfig that says the same as config, and returns
// its path. Writing again under the same name replaces the file.
func (cp *ControlPlane) WriteKubeconfig(name string, config *rest.Config) (string, error) {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.CurrentContext = name
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   config.Host,
		CertificateAuthorityData: config.CAData,
	}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Token:                 config.BearerToken,
	}
	// User names hold colons, which separate the files in $KUBECONFIG.
	path := cp.file(strings.NewReplacer(":", "-", "/", "-").Replace(name) + ".kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return "", fmt.Errorf("write kubeconfig of %q: %w", name, err)
	}
	return path, nil
}
