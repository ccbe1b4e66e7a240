package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// The component sends the probes of every overlay's pods to a port of their own, and a
// real API server takes that.
func TestHealthPort(t *testing.T) {
	kubectl := controlplane.KubectlForTest(t)
	cp := controlplane.StartForTest(t)
	root := filepath.Join(build.RootForTest(t), "deploy")
	admin := "--kubeconfig=" + cp.AdminKubeconfig()
	run(t, nil, kubectl, admin, "apply", "-k", filepath.Join(root, "namespace"))
	for _, of := range []string{"base", "overlays/observe", "overlays/own"} {
		t.Run(of, func(t *testing.T) {
			overlay := t.TempDir()
			deploy := must.Get(filepath.Rel(overlay, root))(t)
			kustomization := fmt.Sprintf("resources: [%[1]s/%[2]s]\ncomponents: [%[1]s/health-port]\n", deploy, of)
			must.OK(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(kustomization), 0o600))
			rendered := run(t, nil, kubectl, "kustomize", overlay)
			run(t, rendered, kubectl, admin, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
			ds, _ := parse(t, rendered)
			checkPod(t, &ds)
			checkHealthPort(t, &ds.Spec.Template.Spec.Containers[0])
		})
	}
}

// checkHealthPort checks that probes go to a port of their own, over plain HTTP, and that
// the other one is still there to be scraped.
func checkHealthPort(t *testing.T, c *corev1.Container) {
	t.Helper()
	for name, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		get := probe.HTTPGet
		if get.Path != name || get.Port.StrVal != "health" || get.Scheme != "" && get.Scheme != corev1.URISchemeHTTP {
			t.Errorf("%s is probed by %+v", name, get)
		}
	}
	var names []string
	for _, port := range c.Ports {
		names = append(names, port.Name)
		if port.Name == "health" && port.ContainerPort != 9733 {
			t.Errorf("the port for probes is %d", port.ContainerPort)
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"health", "metrics"}) {
		t.Errorf("the ports are %q", names)
	}
}
