package controlplane

import (
	"context"
	"io"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
)

// Kubectl returns the file of a kubectl of the API server's version, building
// it first if the cache lacks it.
func Kubectl(ctx context.Context, log io.Writer) (string, error) {
	target := apiServer.target
	target.Name, target.Package = "kubectl", "k8s.io/kubernetes/cmd/kubectl"
	return build.Cached(ctx, target, log)
}
