// Package deploy tests what is in the product's deploy directory: kubectl
// renders it, a real API server accepts it, and the product accepts what it is
// configured with.
package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

func run(t *testing.T, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.Bytes()
}

// kustomizations that run nodeprobe, and what each is about.
var kustomizations = map[string]struct {
	mode     string
	identity string // who makes the service account; "" if there is none
	also     func(*appsv1.DaemonSet) error
}{
	"base":                     {"augment", "identity", privileged},
	"overlays/observe":         {"observe", "", privileged},
	"overlays/least-privilege": {"augment", "identity", leastPrivileged},
	"overlays/own":             {"own", "overlays/own/identity", onlyChosenNodes},
	"overlays/k3s":             {"augment", "identity", privileged},
	"overlays/impersonation":   {"augment", "overlays/impersonation/identity", privileged},
}

// Every kustomization below deploy is rendered by kubectl, accepted by a real API
// server and, as far as it is nodeprobe's configuration, by nodeprobe.
func TestKustomizations(t *testing.T) {
	kubectl := controlplane.KubectlForTest(t)
	binary := build.ProductForTest(t)
	root := filepath.Join(build.RootForTest(t), "deploy")
	cp := controlplane.StartForTest(t)
	admin := "--kubeconfig=" + cp.AdminKubeconfig()
	// A dry run does not make the namespace that the rest is to go into.
	run(t, nil, kubectl, admin, "apply", "-k", filepath.Join(root, "namespace"))
	for dir, want := range kustomizations {
		t.Run(dir, func(t *testing.T) {
			rendered := run(t, nil, kubectl, "kustomize", filepath.Join(root, dir))
			ds, config := parse(t, rendered)
			checkPod(t, &ds)
			must.Note(t, want.also(&ds))
			if !strings.Contains(config, "\nmode: "+want.mode+"\n") {
				t.Errorf("configuration is not in mode %s:\n%s", want.mode, config)
			}
			spec, accounts := ds.Spec.Template.Spec, "default"
			if want.identity != "" {
				identity := run(t, nil, kubectl, "kustomize", filepath.Join(root, want.identity))
				accounts = serviceAccount(t, identity)
				run(t, identity, kubectl, admin, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
			}
			if spec.ServiceAccountName != accounts || *spec.AutomountServiceAccountToken != (want.identity != "") {
				t.Errorf("it has service account %q, and a token: %t; the identity has %q", spec.ServiceAccountName, *spec.AutomountServiceAccountToken, accounts)
			}
			out := run(t, rendered, kubectl, admin, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
			if !strings.Contains(string(out), "daemonset.apps/"+ds.Name+" created (server dry run)") {
				t.Errorf("kubectl apply printed\n%s", out)
			}

			file := filepath.Join(t.TempDir(), "config.yaml")
			must.OK(t, os.WriteFile(file, []byte(config), 0o644))
			run(t, nil, binary, "config", "check", file)
			// --help parses the flags that stand before it, and runs nothing.
			run(t, nil, binary, append(spec.Containers[0].Args, "--help")...)
		})
	}
	for _, dir := range directories(t, root) {
		// Those for Prometheus and the network are components; see TestMonitors and
		// TestNetworkPolicy, and TestHealthPort.
		if _, ok := kustomizations[dir]; !ok && dir != "namespace" && dir != "network-policy" && dir != "health-port" && !strings.HasSuffix(dir, "identity") && !strings.HasPrefix(dir, "prometheus/") {
			t.Errorf("nothing tests deploy/%s", dir)
		}
	}
}

func directories(t *testing.T, root string) (dirs []string) {
	t.Helper()
	must.OK(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "kustomization.yaml" {
			dir, _ := filepath.Rel(root, filepath.Dir(path)) // path is below root
			dirs = append(dirs, dir)
		}
		return err
	}))
	return dirs
}

func checkPod(t *testing.T, ds *appsv1.DaemonSet) {
	t.Helper()
	spec := &ds.Spec.Template.Spec
	c := &spec.Containers[0]
	if request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory(); limit.IsZero() || !request.Equal(*limit) {
		t.Errorf("memory: request %s, limit %s", request, limit)
	}
	if i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" }); i < 0 {
		t.Error("Go does not know of the memory limit")
	} else if soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[i].Value, "B")); err != nil || 4*soft.Value() != 3*c.Resources.Limits.Memory().Value() {
		t.Errorf("GOMEMLIMIT is %s, %v, the memory limit %s", c.Env[i].Value, err, c.Resources.Limits.Memory())
	}
	if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpExists && t.Key == "" && t.Effect == ""
	}) {
		t.Errorf("it does not tolerate every taint: %+v", spec.Tolerations)
	}
	if grace := spec.TerminationGracePeriodSeconds; grace == nil || *grace < 10 {
		t.Error("it has less than 10 s to end in")
	}
	if spec.PriorityClassName != "system-node-critical" || !spec.HostPID || c.LivenessProbe == nil || c.ReadinessProbe == nil {
		t.Errorf("priority, the host's PIDs or a probe are missing: %+v", spec)
	}
	// What a kubelet gives a probe by default, a second, is too little on a node that is
	// thrashing; and who is restarted then takes the conditions along.
	if c.LivenessProbe.TimeoutSeconds < 5 || c.ReadinessProbe.TimeoutSeconds < 5 {
		t.Errorf("a probe is given up after %d and %d seconds", c.LivenessProbe.TimeoutSeconds, c.ReadinessProbe.TimeoutSeconds)
	}
	if root := c.SecurityContext.ReadOnlyRootFilesystem; root == nil || !*root {
		t.Error("the root file system is writable")
	}
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			t.Errorf("mount %s is writable", m.MountPath)
		}
	}
}

// "make image" builds the image that the manifests are about.
func TestImage(t *testing.T) {
	root := build.RootForTest(t)
	kubectl := controlplane.KubectlForTest(t)
	makefile := must.Get(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	version := regexp.MustCompile(`(?m)^VERSION +\?= (.+)$`).FindSubmatch(makefile)
	if version == nil {
		t.Fatal("the Makefile has no VERSION")
	}
	for name, rendered := range map[string][]byte{
		"kustomize": run(t, nil, kubectl, "kustomize", filepath.Join(root, "deploy", "base")),
		"Helm":      run(t, nil, helm(t), "template", "nodeprobe", filepath.Join(root, "deploy", "helm", "nodeprobe")),
	} {
		ds, _ := parse(t, rendered)
		if image := ds.Spec.Template.Spec.Containers[0].Image; image != "nodeprobe:"+string(version[1]) {
			t.Errorf("%s wants %s, make builds version %s", name, image, version[1])
		}
	}
}

func privileged(ds *appsv1.DaemonSet) error {
	if s := ds.Spec.Template.Spec.Containers[0].SecurityContext; s.Privileged == nil || !*s.Privileged {
		return errors.New("it is not privileged")
	}
	return nil
}

func leastPrivileged(ds *appsv1.DaemonSet) error {
	s := ds.Spec.Template.Spec.Containers[0].SecurityContext
	if *s.Privileged || *s.AllowPrivilegeEscalation || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		s.SELinuxOptions == nil || s.SELinuxOptions.Type != "spc_t" || // other containers may not use BPF
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!slices.Equal(s.Capabilities.Add, []corev1.Capability{"BPF", "PERFMON"}) {
		return fmt.Errorf("it may do more, or less: %+v", s)
	}
	return nil
}

func onlyChosenNodes(ds *appsv1.DaemonSet) error {
	if len(ds.Spec.Template.Spec.NodeSelector) == 0 {
		return errors.New("it runs on nodes that have a kubelet")
	}
	return privileged(ds)
}

func serviceAccount(t *testing.T, rendered []byte) (name string) {
	t.Helper()
	for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
		var object metav1.PartialObjectMetadata
		must.OK(t, yaml.Unmarshal(document, &object))
		if object.Kind == "ServiceAccount" {
			name = object.Name
		}
	}
	return name
}

func parse(t *testing.T, rendered []byte) (ds appsv1.DaemonSet, config string) {
	t.Helper()
	for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
		var kind struct{ Kind string }
		must.OK(t, yaml.Unmarshal(document, &kind))
		switch kind.Kind {
		case "DaemonSet":
			must.OK(t, yaml.UnmarshalStrict(document, &ds))
		case "ConfigMap":
			var m corev1.ConfigMap
			must.OK(t, yaml.UnmarshalStrict(document, &m))
			config = m.Data["config.yaml"]
		}
	}
	if !strings.HasPrefix(ds.Name, "nodeprobe") || config == "" || len(ds.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("no DaemonSet nodeprobe with one container and a config.yaml in\n%s", rendered)
	}
	return ds, config
}
