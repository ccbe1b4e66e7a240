package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// components are added to these kustomizations.
var components = map[string]struct {
	to    []string
	check func(t *testing.T, rendered []byte)
}{
	"health-port":               {[]string{"base", "overlays/observe", "overlays/own"}, checkHealthPort},
	"network-policy":            {[]string{"base"}, checkNetworkPolicy},
	"prometheus/podmonitor":     {[]string{"base"}, checkMonitor("PodMonitor", "PrometheusRule")},
	"prometheus/servicemonitor": {[]string{"base"}, checkMonitor("PrometheusRule", "Service", "ServiceMonitor")},
}

func TestComponents(t *testing.T) {
	s := dryRunCluster(t)
	for component, tt := range components {
		for _, dir := range tt.to {
			t.Run(component+" "+dir, func(t *testing.T) {
				rendered := s.kustomize(t, dir, component)
				if !strings.HasPrefix(component, "prometheus/") { // which needs the operator's kinds
					s.checkVariant(t, rendered, kustomizations[dir])
				}
				tt.check(t, rendered)
			})
		}
	}
}

// checkHealthPort checks that probes go to a port of their own, over plain HTTP, and that
// the other one is still there to be scraped.
func checkHealthPort(t *testing.T, rendered []byte) {
	t.Helper()
	ds, _ := parse(t, rendered)
	c := &ds.Spec.Template.Spec.Containers[0]
	for name, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		get := probe.HTTPGet
		if get.Path != name || get.Port.StrVal != "health" || get.Scheme != "" && get.Scheme != corev1.URISchemeHTTP {
			t.Errorf("%s is probed by %+v", name, get)
		}
	}
	ports := map[string]int32{}
	for _, port := range c.Ports {
		ports[port.Name] = port.ContainerPort
	}
	if len(ports) != 2 || ports["metrics"] == 0 || ports["health"] != 9733 {
		t.Errorf("the ports are %v", ports)
	}
}

// checkNetworkPolicy checks that the policy selects the pods, and admits one client to
// their port.
func checkNetworkPolicy(t *testing.T, rendered []byte) {
	t.Helper()
	ds, _ := parse(t, rendered)
	policy := as[networkingv1.NetworkPolicy](t, find(t, rendered, "NetworkPolicy"))
	if !within(policy.Spec.PodSelector.MatchLabels, ds.Spec.Template.Labels) || policy.Namespace != ds.Namespace {
		t.Errorf("it does not select the pods: %+v", policy)
	}
	port := ds.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort
	if rules := policy.Spec.Ingress; len(rules) != 1 || len(rules[0].From) != 1 || len(rules[0].Ports) != 1 || rules[0].Ports[0].Port.IntVal != port {
		t.Errorf("it does not admit one client to port %d: %+v", port, rules)
	}
}

// monitor is what a PodMonitor and a ServiceMonitor have in common.
type monitor struct {
	Spec struct {
		Selector                       struct{ MatchLabels map[string]string }
		JobLabel                       string
		PodMetricsEndpoints, Endpoints []struct{ Port string }
	}
}

// checkMonitor checks that the component adds objects of these kinds to deploy/base,
// which select its pods by labels and port, and name the job as the alerts expect it.
func checkMonitor(kinds ...string) func(*testing.T, []byte) {
	return func(t *testing.T, rendered []byte) {
		t.Helper()
		ds, _ := parse(t, rendered)
		pod := ds.Spec.Template
		service := as[corev1.Service](t, find(t, rendered, "Service"))
		var found []string
		for _, o := range objects(t, rendered) {
			if slices.Contains([]string{"Namespace", "ConfigMap", "DaemonSet", "ResourceQuota"}, o.GetKind()) {
				continue
			}
			found = append(found, o.GetKind())
			m, labels := as[monitor](t, &o).Spec, pod.Labels
			switch o.GetKind() {
			case "Service":
				if !within(service.Spec.Selector, pod.Labels) || service.Spec.Ports[0].TargetPort.StrVal != pod.Spec.Containers[0].Ports[0].Name {
					t.Errorf("the Service does not select the pods: %+v", service.Spec)
				}
			case "ServiceMonitor":
				labels = service.Labels
				if m.Endpoints[0].Port != service.Spec.Ports[0].Name {
					t.Errorf("the Service has no port %s", m.Endpoints[0].Port)
				}
			case "PodMonitor":
				if m.PodMetricsEndpoints[0].Port != pod.Spec.Containers[0].Ports[0].Name {
					t.Errorf("the pods have no port %s", m.PodMetricsEndpoints[0].Port)
				}
			}
			if strings.HasSuffix(o.GetKind(), "Monitor") && (labels[m.JobLabel] != "nodeprobe" || !within(m.Selector.MatchLabels, labels)) {
				t.Errorf("%s does not select %v: %+v", o.GetKind(), labels, m)
			}
			if o.GetNamespace() != ds.Namespace {
				t.Errorf("%s is in namespace %q", o.GetKind(), o.GetNamespace())
			}
		}
		if slices.Sort(found); !slices.Equal(found, kinds) {
			t.Errorf("got %q, want %q", found, kinds)
		}
	}
}

// within reports whether a selector that is not empty selects what has the labels.
func within(selector, labels map[string]string) bool {
	all := maps.Clone(labels)
	maps.Copy(all, selector)
	return len(selector) > 0 && maps.Equal(all, labels)
}
