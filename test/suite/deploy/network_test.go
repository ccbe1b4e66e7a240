package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// The NetworkPolicy to take is about nodeprobe's pods and their port, and lets somebody
// in; a real API server accepts it. The chart makes the same, where it is asked to.
func TestNetworkPolicy(t *testing.T) {
	helm := helm(t)
	kubectl := controlplane.KubectlForTest(t)
	cp := controlplane.StartForTest(t)
	root := filepath.Join(build.RootForTest(t), "deploy")
	overlay := t.TempDir()
	deploy := must.Get(filepath.Rel(overlay, root))(t)
	kustomization := fmt.Sprintf("resources: [%[1]s/namespace, %[1]s/base]\ncomponents: [%[1]s/network-policy]\n", deploy)
	must.OK(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(kustomization), 0o600))
	rendered := run(t, nil, kubectl, "kustomize", overlay)
	admin := "--kubeconfig=" + cp.AdminKubeconfig()
	run(t, nil, kubectl, admin, "apply", "-k", filepath.Join(root, "namespace"))
	run(t, rendered, kubectl, admin, "apply", "--dry-run=server", "--validate=strict", "-f", "-")

	const name = "NetworkPolicy nodeprobe"
	ds, _ := parse(t, rendered)
	var policy networkingv1.NetworkPolicy
	for _, o := range objects(t, rendered) {
		if o.GetKind() == "NetworkPolicy" {
			must.OK(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &policy))
		}
	}
	if !within(policy.Spec.PodSelector.MatchLabels, ds.Spec.Template.Labels) || policy.Namespace != ds.Namespace {
		t.Errorf("it does not find the pods: %+v", policy)
	}
	port := ds.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort
	if rules := policy.Spec.Ingress; len(rules) != 1 || len(rules[0].From) != 1 || len(rules[0].Ports) != 1 || rules[0].Ports[0].Port.IntVal != port {
		t.Errorf("it does not let one client in to port %d: %+v", port, rules)
	}

	chart := []string{"template", "nodeprobe", filepath.Join(root, "helm", "nodeprobe"), "--namespace=nodeprobe"}
	if _, ok := essence(t, run(t, nil, helm, chart...))[name]; ok {
		t.Error("the chart has a policy that nobody asked for")
	}
	got := essence(t, run(t, nil, helm, append(chart, "--set=networkPolicy.enabled=true")...))[name].(map[string]any)
	want := essence(t, rendered)[name].(map[string]any)
	// It looks for the release's label besides.
	delete(got["spec"].(map[string]any), "podSelector")
	delete(want["spec"].(map[string]any), "podSelector")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the chart has\n%s\nthe component\n%s", text(got), text(want))
	}
}
