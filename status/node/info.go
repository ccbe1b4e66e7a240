package node

import (
	"cmp"
	"context"
	"runtime"

	v1 "k8s.io/api/core/v1"
)

// versionInfo sets the versions of the kernel, the OS image and this program. What could
// not be read is kept. The kube-proxy version is always empty, as
// from Kubernetes 1.33 on.
func versionInfo(kubeletVersion string, facts *Facts) Setter {
	return func(_ context.Context, node *v1.Node) error {
		if facts.Snapshot.Time.IsZero() {
			return errNoFacts
		}
		info, m := &node.Status.NodeInfo, &facts.Snapshot.Machine
		info.KernelVersion = cmp.Or(m.KernelVersion, info.KernelVersion)
		info.OSImage = cmp.Or(m.OSImage, info.OSImage)
		info.KubeletVersion, info.KubeProxyVersion = kubeletVersion, "" //nolint:staticcheck // clearing the deprecated field is what the kubelet does
		return nil
	}
}

// daemonEndpoints sets the port on which a kubelet would answer.
func daemonEndpoints(port int32) Setter {
	return func(_ context.Context, node *v1.Node) error {
		node.Status.DaemonEndpoints = v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: port}}
		return nil
	}
}

// goRuntime sets the operating system and the architecture, by Go's names.
func goRuntime() Setter {
	return func(_ context.Context, node *v1.Node) error {
		node.Status.NodeInfo.OperatingSystem = runtime.GOOS
		node.Status.NodeInfo.Architecture = runtime.GOARCH
		return nil
	}
}
