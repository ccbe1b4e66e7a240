// Package kube finds out how to reach the API server, and as whom.
package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Config returns what a client of the API server is made from: the kubeconfig of that
// path, or the pod's service account if it is "". With impersonate, requests act as the
// node. The version is that of the program, for the user agent. The origin names in
// errors where the credentials come from.
//
// There is no limit on the rate of requests: the writers bound their own.
func Config(kubeconfig, node string, impersonate bool, version string) (cfg *rest.Config, origin string, err error) {
	origin = "service account" // whose files may be at fault
	if kubeconfig != "" {
		origin = "kubeconfig " + kubeconfig
		cfg, err = read(kubeconfig)
	} else {
		cfg, err = inCluster()
	}
	if err != nil {
		return nil, "", err
	}
	// What is wrong with the address or with a certificate is found here, not by the
	// first client.
	if _, _, err := rest.DefaultServerUrlFor(cfg); err != nil {
		return nil, "", fmt.Errorf("use %s: connect to %s: %w", origin, cfg.Host, err)
	}
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		return nil, "", fmt.Errorf("use %s: connect to %s: %w", origin, cfg.Host, err)
	}
	cfg.UserAgent = "nodeprobe/" + version
	cfg.QPS = -1
	if impersonate {
		// Nothing but the name: with groups it would be unconstrained impersonation.
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node}
	}
	return cfg, origin, nil
}

// inCluster returns the pod's service account.
func inCluster() (*rest.Config, error) {
	cfg, err := rest.InClusterConfig()
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("no credentials for the API server: use --kubeconfig FILE or kubeconfig: in the configuration file" +
			" (a kubelet's is /etc/kubernetes/kubelet.conf), or run as a pod with a service account, or use mode observe, which needs none")
	case err != nil:
		return nil, fmt.Errorf("read service account (another identity takes --kubeconfig): %w", err)
	}
	return cfg, nil
}

// read returns what a kubeconfig comes to.
func read(path string) (*rest.Config, error) {
	wrap := func(err error) error { return fmt.Errorf("read kubeconfig %s: %w", path, err) }
	// Unlike LoadFromFile this finds files that are named relative to the kubeconfig.
	loaded, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}).Load()
	if err != nil {
		return nil, wrap(err)
	}
	if err := complete(loaded); err != nil {
		return nil, wrap(err)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, wrap(err)
	}
	if plugin := cfg.ExecProvider; plugin != nil && !findable(plugin.Command) {
		return nil, wrap(fmt.Errorf("there is no credential plugin %s", plugin.Command))
	}
	return cfg, nil
}

// findable reports whether a command exists, before the first request needs it.
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

// complete checks that the chain from the current context to a server has no gap.
// client-go's errors for a gap are about other things, and without a server it would
// use localhost:8080.
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
		return fmt.Errorf("there is no user %q, which context %q names", current.AuthInfo, c.CurrentContext)
	}
	return nil
}
