package deploy

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// monitor is what a PodMonitor and a ServiceMonitor have in common with what they
// are to find.
type monitor struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Selector                       struct{ MatchLabels map[string]string }
		JobLabel                       string
		PodMetricsEndpoints, Endpoints []struct{ Port string }
	}
}

// Each component finds the pods of deploy/base by labels and port, and names the
// job as the alerts expect it.
func TestMonitors(t *testing.T) {
	kubectl := controlplane.KubectlForTest(t)
	for component, kinds := range map[string][]string{
		"podmonitor":     {"PodMonitor", "PrometheusRule"},
		"servicemonitor": {"PrometheusRule", "Service", "ServiceMonitor"},
	} {
		t.Run(component, func(t *testing.T) {
			overlay := t.TempDir()
			deploy := must.Get(filepath.Rel(overlay, filepath.Join(build.RootForTest(t), "deploy")))(t)
			text := fmt.Sprintf("resources: [%[1]s/base]\ncomponents: [%[1]s/prometheus/%[2]s]\n", deploy, component)
			must.OK(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600))
			rendered := run(t, nil, kubectl, "kustomize", overlay)
			daemonSet, _ := parse(t, rendered)
			pod := daemonSet.Spec.Template

			var found []string
			var service corev1.Service
			for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
				var m monitor
				must.OK(t, yaml.Unmarshal(document, &m))
				labels := pod.Labels
				switch m.Kind {
				case "Namespace", "ConfigMap", "DaemonSet", "ResourceQuota":
					continue
				case "Service":
					must.OK(t, yaml.UnmarshalStrict(document, &service))
					if !within(service.Spec.Selector, pod.Labels) || service.Spec.Ports[0].TargetPort.StrVal != pod.Spec.Containers[0].Ports[0].Name {
						t.Errorf("the Service does not find the pods: %+v", service.Spec)
					}
				case "ServiceMonitor":
					labels = service.Labels
					if m.Spec.Endpoints[0].Port != service.Spec.Ports[0].Name {
						t.Errorf("the Service has no port %s", m.Spec.Endpoints[0].Port)
					}
				case "PodMonitor":
					if m.Spec.PodMetricsEndpoints[0].Port != pod.Spec.Containers[0].Ports[0].Name {
						t.Errorf("the pods have no port %s", m.Spec.PodMetricsEndpoints[0].Port)
					}
				}
				if m.Spec.JobLabel != "" && (labels[m.Spec.JobLabel] != "nodeprobe" || !within(m.Spec.Selector.MatchLabels, labels)) {
					t.Errorf("%s does not find %v: %+v", m.Kind, labels, m.Spec)
				}
				if m.Metadata.Namespace != daemonSet.Namespace {
					t.Errorf("%s is in namespace %q", m.Kind, m.Metadata.Namespace)
				}
				found = append(found, m.Kind)
			}
			if slices.Sort(found); !slices.Equal(found, kinds) {
				t.Errorf("got %q, want %q", found, kinds)
			}
		})
	}
}

// within says whether a selector that is not empty selects what has the labels.
func within(selector, labels map[string]string) bool {
	all := maps.Clone(labels)
	maps.Copy(all, selector)
	return len(selector) > 0 && maps.Equal(all, labels)
}
