package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
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

// charts are the values for what the kustomizations do.
var charts = []struct {
	name, release  string
	values         []string
	kustomizations []string // the pods', and what it needs
	also           func(*appsv1.DaemonSet) error
}{
	{"augment", "nodeprobe", nil, []string{"base", "identity"}, privileged},
	{"observe", "nodeprobe", []string{"mode=observe"}, []string{"overlays/observe"}, privileged},
	{"own", "nodeprobe-own", []string{"mode=own"}, []string{"overlays/own", "overlays/own/identity"}, onlyChosenNodes},
	{"least privilege", "nodeprobe", []string{"privileged=false"}, []string{"overlays/least-privilege", "identity"}, leastPrivileged},
	{
		"impersonation", "nodeprobe",
		[]string{"config.impersonateNode=true"},
		[]string{"overlays/impersonation", "overlays/impersonation/identity"},
		privileged,
	},
}

// The chart makes what the kustomizations make: Helm has no objection to it, nor has a
// real API server, nor has nodeprobe to its configuration.
func TestHelm(t *testing.T) {
	helm := helm(t)
	kubectl := controlplane.KubectlForTest(t)
	binary := build.ProductForTest(t)
	deploy := filepath.Join(build.RootForTest(t), "deploy")
	chart := filepath.Join(deploy, "helm", "nodeprobe")
	cp := controlplane.StartForTest(t)
	admin := "--kubeconfig=" + cp.AdminKubeconfig()
	run(t, nil, kubectl, admin, "apply", "-k", filepath.Join(deploy, "namespace"))
	for _, tt := range charts {
		t.Run(tt.name, func(t *testing.T) {
			values := []string{"--namespace=nodeprobe"}
			for _, value := range tt.values {
				values = append(values, "--set="+value)
			}
			run(t, nil, helm, append([]string{"lint", "--strict", chart}, values...)...)
			rendered := run(t, nil, helm, append([]string{"template", tt.release, chart}, values...)...)
			ds, config := parse(t, rendered)
			checkPod(t, &ds)
			must.Note(t, tt.also(&ds))
			file := filepath.Join(t.TempDir(), "config.yaml")
			must.OK(t, os.WriteFile(file, []byte(config), 0o644))
			run(t, nil, binary, "config", "check", file)
			run(t, rendered, kubectl, admin, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
			run(t, nil, helm, append([]string{"install", tt.release, chart, admin, "--dry-run=server"}, values...)...)

			want := map[string]any{}
			for _, dir := range tt.kustomizations {
				maps.Copy(want, essence(t, run(t, nil, kubectl, "kustomize", filepath.Join(deploy, dir))))
			}
			delete(want, "Namespace nodeprobe") // Helm has --create-namespace.
			got := essence(t, rendered)
			if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
				t.Fatalf("it makes\n%q, the kustomizations\n%q", g, w)
			}
			for name := range want {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s: got\n%s\nthe kustomization has\n%s", name, text(got[name]), text(want[name]))
				}
			}
		})
	}
}

// Whatever is called differently is called so wherever it is meant; what is to be
// scraped is found.
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
	if port := ds.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort; port != 9999 {
		t.Errorf("the port is %d", port)
	}
	c := &ds.Spec.Template.Spec.Containers[0]
	checkHealthPort(t, c)
	if !strings.Contains(config, `webHealthListenAddress: :9733`) {
		t.Errorf("no port for probes is served:\n%s", config)
	}
	if last := c.Args[len(c.Args)-1]; last != "--kubelet-config=/etc/kubelet.yaml" {
		t.Errorf("the last argument is %s", last)
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
			selector, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
			job, _, _ := unstructured.NestedString(o.Object, "spec", "jobLabel")
			if labels := ds.Spec.Template.Labels; !within(selector, labels) || labels[job] != "nodeprobe" {
				t.Errorf("it selects %v and names the job by %s; the pods have %v", selector, job, labels)
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

// Installed, the chart's policies hold the pods to their own nodes and to the conditions
// that are configured; uninstalled, nothing of it is left.
func TestHelmInstalled(t *testing.T) {
	helm := helm(t)
	s := newStage(t, "namespace")
	release := []string{"nodeprobe", "--namespace=nodeprobe", "--kubeconfig=" + s.cp.AdminKubeconfig()}
	run(t, nil, helm, append([]string{"install"}, append(release, filepath.Join(build.RootForTest(t), "deploy", "helm", "nodeprobe"),
		"--set=serviceAccount.name=reporter", `--set-json=config.conditions={"example.com/Ours":{"when":["DiskPressure"]}}`)...)...)
	onA := s.client(s.config(s.pod("a")))
	s.waitPolicies(onA, "nodeprobe-node", "nodeprobe-event")
	const ours, others = `"type":"example.com/Ours","status":"False","reason":"DiskIsSufficient"`, `"type":"example.com/Problem3","status":"True"`
	for _, tt := range []struct{ node, condition, want string }{
		{"a", ourCondition, ""},
		{"a", ours, ""},
		{"a", others, "nodeprobe may not add, change or remove conditions of others: example.com/Problem3"},
		{"b", ourCondition, "nodeprobe on node a may not write node b"},
	} {
		err := patchStatus(t, onA, tt.node, conditionPatch(tt.condition), metav1.PatchOptions{})
		if tt.want != "" {
			err = wantError(err, tt.want)
		}
		if err != nil {
			t.Errorf("on node %s, %s: %v", tt.node, tt.condition, err)
		}
	}

	run(t, nil, helm, append([]string{"uninstall"}, release...)...)
	const kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings,roles,rolebindings,daemonsets,configmaps,serviceaccounts"
	s.eventually("all is gone", func() error {
		if left := s.run("get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/managed-by=Helm", "--output=name"); left != "" {
			return errors.New(left)
		}
		return nil
	})
}

// However a web configuration file is named, probes do not need what it asks for.
func TestHelmProbes(t *testing.T) {
	helm := helm(t)
	chart := filepath.Join(build.RootForTest(t), "deploy", "helm", "nodeprobe")
	for _, set := range []string{
		"config.webConfigFile=/x", "probes.scheme=HTTPS,config.webConfigFile=/x",
		"extraArgs={--web.config.file=/x}", `extraArgs={--table=off,--web.config.file,/x}`,
	} {
		ds, config := parse(t, run(t, nil, helm, "template", "nodeprobe", chart, "--set="+set))
		checkHealthPort(t, &ds.Spec.Template.Spec.Containers[0])
		if !strings.Contains(config, "webHealthListenAddress: :9733") {
			t.Errorf("%s: no port for probes is served:\n%s", set, config)
		}
	}
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

func objects(t *testing.T, rendered []byte) (all []unstructured.Unstructured) {
	t.Helper()
	for document := range bytes.SplitSeq(append([]byte("\n"), rendered...), []byte("\n---\n")) {
		var o unstructured.Unstructured
		must.OK(t, yaml.Unmarshal(document, &o.Object))
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// essence is what each of the objects does, by kind and name: apart from labels, and
// from what follows from the tool that rendered it.
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

func text(v any) string {
	out, err := yaml.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}
