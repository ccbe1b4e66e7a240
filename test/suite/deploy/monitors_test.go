package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
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

// within reports whether a selector that is not empty selects what has the labels.
func within(selector, labels map[string]string) bool {
	all := maps.Clone(labels)
	maps.Copy(all, selector)
	return len(selector) > 0 && maps.Equal(all, labels)
}

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

// mostExposed is tenths of what "systemd-analyze security" may come to; without any
// of the unit's restrictions it is 96.
const mostExposed = "25"

func TestSystemd(t *testing.T) {
	dir := filepath.Join(build.RootForTest(t), "deploy", "systemd")
	binary := build.ProductForTest(t)
	t.Run("product accepts the configuration", func(t *testing.T) {
		run(t, nil, binary, "config", "check", filepath.Join(dir, "config.yaml"))
	})
	text := must.Get(os.ReadFile(filepath.Join(dir, "nodeprobe.service")))(t)
	command := regexp.MustCompile(`(?m)^ExecStart=(\S+) (.*)$`).FindSubmatch(text)
	if command == nil {
		t.Fatalf("no ExecStart in\n%s", text)
	}
	t.Run("product accepts the arguments", func(t *testing.T) {
		run(t, nil, binary, append(strings.Fields(string(command[2])), "--help")...)
	})

	// systemd wants the program to be there.
	unit := filepath.Join(t.TempDir(), "nodeprobe.service")
	must.OK(t, os.WriteFile(unit, []byte(strings.Replace(string(text), string(command[1]), binary, 1)), 0o644))
	t.Run("systemd accepts the unit", func(t *testing.T) {
		need.Command(t, "systemd-analyze", "systemd")
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
	})
	t.Run("the unit may not do much", func(t *testing.T) {
		need.Command(t, "systemd-analyze", "systemd")
		out := run(t, nil, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+mostExposed, unit)
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Log(lines[len(lines)-1])
	})
	t.Run("the capabilities are enough", func(t *testing.T) {
		need.Root(t)
		need.Command(t, "setpriv", "util-linux")
		set := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(text)
		if set == nil {
			t.Fatal("they are not restricted")
		}
		bounds := "-all"
		for name := range strings.FieldsSeq(string(set[1])) {
			bounds += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
		}
		type finding struct{ What, Outcome, Detail string }
		findings := func(name string, args ...string) (all []finding) {
			cmd := exec.CommandContext(t.Context(), name, args...)
			cmd.Stderr = os.Stderr
			out, _ := cmd.Output() // it fails if anything is missing
			if err := json.Unmarshal(out, &all); err != nil {
				t.Fatalf("%s %v: %v\n%s", name, args, err, out)
			}
			for i := range all {
				all[i].Detail = "" // has figures
			}
			return all
		}
		free := findings(binary, "preflight", "-o", "json")
		bound := findings("setpriv", "--bounding-set="+bounds, "--inh-caps=-all", "--no-new-privs", binary, "preflight", "-o", "json")
		if !slices.Equal(free, bound) {
			t.Errorf("with %s:\n%v\nwith all:\n%v", bounds, bound, free)
		}
	})
}
