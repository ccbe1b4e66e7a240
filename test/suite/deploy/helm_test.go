package deploy

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// helm returns a Helm of the version in modules/helm.
func helm(t *testing.T) string {
	t.Helper()
	file := build.Cached(t, build.Target{
		Name: "helm", Dir: "suite/deploy/modules/helm", Package: "helm.sh/helm/v4/cmd/helm", Module: "helm.sh/helm/v4",
	})
	// None of the user's settings, plugins or clusters.
	for _, name := range []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"} {
		t.Setenv(name, t.TempDir())
	}
	return file
}

// charts are the values that correspond to the kustomizations.
var charts = []struct {
	name, release  string
	values         []string
	kustomizations []string // the pods', and what these need
	components     []string
}{
	{"augment", "nodeprobe", nil, []string{"base", "identity"}, nil},
	{"observe", "nodeprobe", []string{"mode=observe"}, []string{"overlays/observe"}, nil},
	{"own", "nodeprobe-own", []string{"mode=own"}, []string{"overlays/own", "overlays/own/identity"}, nil},
	{"least privilege", "nodeprobe", []string{"privileged=false"}, []string{"overlays/least-privilege", "identity"}, nil},
	{"impersonation", "nodeprobe", []string{"config.impersonateNode=true"}, []string{"overlays/impersonation", "overlays/impersonation/identity"}, nil},
	{"network policy", "nodeprobe", []string{"networkPolicy.enabled=true"}, []string{"base", "identity"}, []string{"network-policy"}},
}

// The chart makes what the kustomizations make. Helm accepts it, and so do a real API
// server and nodeprobe.
func TestHelm(t *testing.T) {
	helm := helm(t)
	s := dryRunCluster(t)
	chart := filepath.Join(s.deploy, "helm", "nodeprobe")
	for _, tt := range charts {
		t.Run(tt.name, func(t *testing.T) {
			values := []string{"--namespace=nodeprobe"}
			for _, value := range tt.values {
				values = append(values, "--set="+value)
			}
			run(t, nil, helm, append([]string{"lint", "--strict", chart}, values...)...)
			rendered := run(t, nil, helm, append([]string{"template", tt.release, chart}, values...)...)
			s.checkVariant(t, rendered, kustomizations[tt.kustomizations[0]])
			run(t, nil, helm, append([]string{"install", tt.release, chart, "--kubeconfig=" + s.cp.AdminKubeconfig(), "--dry-run=server"}, values...)...)

			want := essence(t, s.kustomize(t, tt.kustomizations[0], tt.components...))
			for _, dir := range tt.kustomizations[1:] {
				maps.Copy(want, essence(t, s.kustomize(t, dir)))
			}
			delete(want, "Namespace nodeprobe") // Helm has --create-namespace.
			if diff := cmp.Diff(want, essence(t, rendered)); diff != "" {
				t.Errorf("the chart differs from the kustomizations (-kustomizations +chart):\n%s", diff)
			}
		})
	}
}

// A name that the values change is changed wherever it occurs; the pods are found by
// what scrapes them.
func TestHelmNames(t *testing.T) {
	helm := helm(t)
	deploy := filepath.Join(build.RootForTest(t), "deploy")
	rendered := run(t, nil, helm, "template", "nodeprobe-b", filepath.Join(deploy, "helm", "nodeprobe"), "--namespace=monitoring",
		"--set=serviceAccount.name=reporter,podMonitor.enabled=true,prometheusRule.enabled=true,prometheusRule.labels.release=x",
		"--set=podMonitor.endpoint.scheme=https,podMonitor.endpoint.interval=1m",
		"--set=config.webConfigFile=/host/root/etc/nodeprobe/web.yml,networkPolicy.enabled=true,extraArgs[0]=--kubelet-config=/etc/kubelet.yaml",
		`--set-json=config={"webListenAddress":":9999","conditions":{"nodeprobe.dev/A":{"when":["MemoryPressure"]},"example.com/B":{"when":["DiskPressure"]}}}`)
	if n := bytes.Count(rendered, []byte("request.userInfo.username == 'system:serviceaccount:monitoring:reporter'")); n != 2 {
		t.Errorf("%d policies know of the service account, want 2", n)
	}
	if !bytes.Contains(rendered, []byte(`expression: "['example.com/B']"`)) {
		t.Error("the policy does not allow the condition that is configured")
	}
	ds, config := parse(t, rendered)
	checkHealthPort(t, rendered)
	c := &ds.Spec.Template.Spec.Containers[0]
	if port, last := c.Ports[0].ContainerPort, c.Args[len(c.Args)-1]; port != 9999 || last != "--kubelet-config=/etc/kubelet.yaml" {
		t.Errorf("the port is %d, the last argument %s", port, last)
	}
	if !strings.Contains(config, `webHealthListenAddress: :9733`) {
		t.Errorf("no port for probes is served:\n%s", config)
	}
	for _, o := range objects(t, rendered) {
		if name := o.GetName(); o.GetKind() != "ServiceAccount" && name != "nodeprobe-b" && !strings.HasPrefix(name, "nodeprobe-b-") {
			t.Errorf("%s is called %s", o.GetKind(), name)
		}
		if namespace := o.GetNamespace(); namespace != "" && namespace != "monitoring" && namespace != "default" {
			t.Errorf("%s is in namespace %s", o.GetKind(), namespace)
		}
		switch o.GetKind() {
		case "NetworkPolicy": // the kubelet is let in anyway
			ingress, _, _ := unstructured.NestedSlice(o.Object, "spec", "ingress")
			if ports := fmt.Sprint(ingress[0].(map[string]any)["ports"]); len(ingress) != 1 || ports != "[map[port:9999 protocol:TCP]]" {
				t.Errorf("it lets in by %s of %v", ports, ingress)
			}
		case "PodMonitor":
			m, labels := as[monitor](t, &o).Spec, ds.Spec.Template.Labels
			if !within(m.Selector.MatchLabels, labels) || labels[m.JobLabel] != "nodeprobe" {
				t.Errorf("it selects %+v; the pods have %v", m, labels)
			}
			endpoints, _, _ := unstructured.NestedSlice(o.Object, "spec", "podMetricsEndpoints")
			relabelings := []any{map[string]any{"sourceLabels": []any{"__meta_kubernetes_pod_node_name"}, "targetLabel": "instance"}}
			if want := []any{map[string]any{"port": "metrics", "scheme": "https", "interval": "1m", "relabelings": relabelings}}; !reflect.DeepEqual(endpoints, want) {
				t.Errorf("got endpoints %v, want %v", endpoints, want)
			}
		case "PrometheusRule":
			file := must.Get(os.ReadFile(filepath.Join(deploy, "prometheus", "rules", "prometheusrule.yaml")))(t)
			if want := objects(t, file)[0].Object["spec"]; !reflect.DeepEqual(o.Object["spec"], want) || o.GetLabels()["release"] != "x" {
				t.Errorf("got labels %v and other rules than deploy/prometheus, or those", o.GetLabels())
			}
		}
	}
}

// Installed, the chart's policies limit the pods to their own nodes and to the
// conditions that are configured; uninstalled, nothing of it is left.
func TestHelmInstalled(t *testing.T) {
	helm := helm(t)
	s := newCluster(t, "", "namespace")
	release := []string{"nodeprobe", "--namespace=nodeprobe", "--kubeconfig=" + s.cp.AdminKubeconfig()}
	run(t, nil, helm, append([]string{
		"install", "--set=serviceAccount.name=reporter", `--set-json=config.conditions={"example.com/Ours":{"when":["DiskPressure"]}}`,
	}, release[0], filepath.Join(s.deploy, "helm", "nodeprobe"), release[1], release[2])...)
	onA := s.client(s.config(s.pod("a")))
	s.waitPolicies(onA, "nodeprobe-node", "nodeprobe-event")
	check(t, []request{
		{"its own", onA, merge, "nodes/a/status", status(ourCondition), ""},
		{"a configured one", onA, merge, "nodes/a/status", status(`"type":"example.com/Ours","status":"False","reason":"DiskIsSufficient"`), ""},
		{
			"another's", onA, merge, "nodes/a/status", status(`"type":"example.com/Problem3","status":"True"`),
			"nodeprobe may not add, change or remove conditions of others: example.com/Problem3",
		},
		{"another node", onA, merge, "nodes/b/status", status(ourCondition), "nodeprobe on node a may not write node b"},
	})

	run(t, nil, helm, append([]string{"uninstall"}, release...)...)
	const kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings,roles,rolebindings,daemonsets,configmaps,serviceaccounts"
	stage.Until(t, "all is gone", func() bool {
		return s.run("get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/managed-by=Helm", "--output=name") == ""
	})
}

// Values that cannot work are refused before anything is installed.
func TestHelmRefuses(t *testing.T) {
	helm := helm(t)
	chart := filepath.Join(build.RootForTest(t), "deploy", "helm", "nodeprobe")
	for set, want := range map[string]string{
		"mode=watch":                                             "mode",
		"config.mode=own":                                        "config",
		"resources.limits.memory=1Gi":                            "limits",
		"mode=own,config.registerNode=true":                      "",
		"mode=own,config.impersonateNode=false":                  "mode own needs config.impersonateNode or config.kubeconfig",
		"mode=observe,config.shadow=true":                        "config.shadow in mode observe needs config.kubeconfig",
		"config.webListenAddress=":                               "config.webListenAddress is required: Prometheus scrapes it",
		"config.webConfigFile=/x,config.webHealthListenAddress=": "a web configuration file needs config.webHealthListenAddress, for the pod's probes",
		"config.webHealthListenAddress=:1":                       "",
		"probes.scheme=HTTP":                                     "", // a default of earlier charts, which --reuse-values keeps
		"probes.scheme=HTTPS,config.webConfigFile=/x":            "",
		"probes=null":                                            "",
	} {
		out, err := exec.CommandContext(t.Context(), helm, "template", chart, "--set="+set).CombinedOutput()
		if refused := err != nil; refused != (want != "") || !bytes.Contains(out, []byte(want)) {
			t.Errorf("%s: want it refused because of %q, got %v\n%s", set, want, err, out)
		}
	}
}

// essence returns the objects by kind and name, without labels and without what
// depends on the tool that rendered them.
func essence(t *testing.T, rendered []byte) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, o := range objects(t, rendered) {
		name := o.GetName()
		o.SetLabels(nil)
		switch o.GetKind() {
		case "ConfigMap":
			name = ""
			o.SetName("")
			config, _, _ := unstructured.NestedString(o.Object, "data", "config.yaml")
			var fields any
			must.OK(t, yaml.Unmarshal([]byte(config), &fields))
			o.Object["data"] = fields
		case "NetworkPolicy": // the chart's also selects by the release's label
			delete(o.Object["spec"].(map[string]any), "podSelector")
		case "DaemonSet":
			spec := o.Object["spec"].(map[string]any)
			delete(spec, "selector")
			pod := spec["template"].(map[string]any)
			metadata, podSpec := pod["metadata"].(map[string]any), pod["spec"].(map[string]any)
			delete(metadata, "labels")
			delete(metadata["annotations"].(map[string]any), "checksum/config")
			delete(podSpec["containers"].([]any)[0].(map[string]any), "imagePullPolicy")
			delete(podSpec["volumes"].([]any)[0].(map[string]any), "configMap")
		}
		all[o.GetKind()+" "+name] = o.Object
	}
	return all
}
