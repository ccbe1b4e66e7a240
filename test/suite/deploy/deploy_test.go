// Package deploy tests what is in the product's deploy directory: kubectl and Helm
// render it, a real API server accepts it, and the product accepts its configuration.
package deploy

import (
	"bytes"
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// cluster is a control plane, and what renders manifests for it.
type cluster struct {
	t       *testing.T
	cp      *controlplane.ControlPlane
	kubectl string
	deploy  string // the directory
}

// dryRunCluster is shared: only the namespace is there, and nothing else may be made.
func dryRunCluster(t *testing.T) *cluster {
	t.Helper()
	s := &cluster{t: t, cp: controlplane.StartForTest(t), kubectl: controlplane.Program(t, "kubectl"), deploy: filepath.Join(build.RootForTest(t), "deploy")}
	s.apply("namespace")
	return s
}

func (s *cluster) run(args ...string) string {
	s.t.Helper()
	return string(run(s.t, nil, s.kubectl, append([]string{"--kubeconfig=" + s.cp.AdminKubeconfig()}, args...)...))
}

func (s *cluster) apply(kustomization string) {
	s.t.Helper()
	s.run("apply", "--validate=strict", "-k", filepath.Join(s.deploy, kustomization))
}

// kustomize renders a kustomization below deploy, with components if there are any.
func (s *cluster) kustomize(t *testing.T, dir string, components ...string) []byte {
	t.Helper()
	if len(components) == 0 {
		return run(t, nil, s.kubectl, "kustomize", filepath.Join(s.deploy, dir))
	}
	overlay := t.TempDir()
	deploy := must.Get(filepath.Rel(overlay, s.deploy))(t)
	text := fmt.Sprintf("resources: [%s/%s]\ncomponents:\n", deploy, dir)
	for _, component := range components {
		text += fmt.Sprintf("- %s/%s\n", deploy, component)
	}
	must.OK(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600))
	return run(t, nil, s.kubectl, "kustomize", overlay)
}

// dryRun has the API server check what would be applied.
func (s *cluster) dryRun(t *testing.T, rendered []byte) string {
	t.Helper()
	return string(run(t, rendered, s.kubectl, "--kubeconfig="+s.cp.AdminKubeconfig(), "apply", "--dry-run=server", "--validate=strict", "-f", "-"))
}

// variant is one way to run nodeprobe.
type variant struct {
	mode     string
	identity string // the kustomization that makes the service account; "" if there is none
	also     func(*appsv1.DaemonSet) error
}

var kustomizations = map[string]variant{
	"base":                     {"augment", "identity", privileged},
	"overlays/observe":         {"observe", "", privileged},
	"overlays/least-privilege": {"augment", "identity", leastPrivileged},
	"overlays/own":             {"own", "overlays/own/identity", onlyChosenNodes},
	"overlays/k3s":             {"augment", "identity", privileged},
	"overlays/impersonation":   {"augment", "overlays/impersonation/identity", privileged},
}

// Every kustomization below deploy is accepted, and so is what makes its identity.
func TestKustomizations(t *testing.T) {
	s := dryRunCluster(t)
	for dir, want := range kustomizations {
		t.Run(dir, func(t *testing.T) {
			rendered := s.kustomize(t, dir)
			s.checkVariant(t, rendered, want)
			accounts := "default"
			if want.identity != "" {
				identity := s.kustomize(t, want.identity)
				s.dryRun(t, identity)
				accounts = find(t, identity, "ServiceAccount").GetName()
			}
			ds, _ := parse(t, rendered)
			if spec := ds.Spec.Template.Spec; spec.ServiceAccountName != accounts || *spec.AutomountServiceAccountToken != (want.identity != "") {
				t.Errorf("it has service account %q, and a token: %t; the identity has %q", spec.ServiceAccountName, *spec.AutomountServiceAccountToken, accounts)
			}
		})
	}
	must.OK(t, filepath.WalkDir(s.deploy, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		dir, _ := filepath.Rel(s.deploy, filepath.Dir(path)) // path is below it
		_, tested := kustomizations[dir]
		_, isComponent := components[dir]
		// The rules are in TestMonitors and in suite/prometheus.
		if !tested && !isComponent && dir != "namespace" && dir != "prometheus/rules" && !strings.HasSuffix(dir, "identity") {
			t.Errorf("nothing tests deploy/%s", dir)
		}
		return nil
	}))
}

// checkVariant checks the pod, and that the API server accepts all of it and nodeprobe
// its configuration and arguments.
func (s *cluster) checkVariant(t *testing.T, rendered []byte, want variant) {
	t.Helper()
	ds, config := parse(t, rendered)
	checkPod(t, &ds)
	must.Note(t, want.also(&ds))
	if out := s.dryRun(t, rendered); !strings.Contains(out, "daemonset.apps/"+ds.Name+" created (server dry run)") {
		t.Errorf("kubectl apply printed\n%s", out)
	}
	var mode struct{ Mode string }
	must.OK(t, yaml.Unmarshal([]byte(config), &mode))
	if mode.Mode != want.mode {
		t.Errorf("configuration is not in mode %s:\n%s", want.mode, config)
	}
	file, binary := filepath.Join(t.TempDir(), "config.yaml"), build.ProductForTest(t)
	must.OK(t, os.WriteFile(file, []byte(config), 0o644))
	run(t, nil, binary, "config", "check", file)
	// --help parses the flags before it, and runs nothing.
	run(t, nil, binary, append(ds.Spec.Template.Spec.Containers[0].Args, "--help")...)
}

func checkPod(t *testing.T, ds *appsv1.DaemonSet) {
	t.Helper()
	spec := &ds.Spec.Template.Spec
	c := &spec.Containers[0]
	if request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory(); limit.IsZero() || !request.Equal(*limit) {
		t.Errorf("memory: request %s, limit %s", request, limit)
	}
	if locked := lockedMemoryLimit(t); locked.Cmp(*c.Resources.Limits.Memory()) >= 0 {
		t.Errorf("%s may be locked, the memory limit is %s", &locked, c.Resources.Limits.Memory())
	}
	if i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" }); i < 0 {
		t.Error("no GOMEMLIMIT")
	} else if soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[i].Value, "B")); err != nil || 2*soft.Value() != c.Resources.Limits.Memory().Value() {
		t.Errorf("GOMEMLIMIT is %s, %v, the memory limit %s", c.Env[i].Value, err, c.Resources.Limits.Memory())
	}
	if !slices.Contains(c.Env, corev1.EnvVar{Name: "GODEBUG", Value: "asyncpreemptoff=1"}) {
		t.Error("signals interrupt its threads")
	}
	if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpExists && t.Key == "" && t.Effect == ""
	}) {
		t.Errorf("it does not tolerate every taint: %+v", spec.Tolerations)
	}
	if grace := spec.TerminationGracePeriodSeconds; grace == nil || *grace < 10 {
		t.Error("it has less than 10 s to stop")
	}
	if spec.PriorityClassName != "system-node-critical" || !spec.HostPID || c.LivenessProbe == nil || c.ReadinessProbe == nil {
		t.Fatalf("priority, the host's PIDs or a probe are missing: %+v", spec)
	}
	// A kubelet's default, a second, is too little on a node that is thrashing; a pod
	// that is restarted then removes its conditions.
	if c.LivenessProbe.TimeoutSeconds < 5 || c.ReadinessProbe.TimeoutSeconds < 5 {
		t.Errorf("probes time out after %d and %d seconds", c.LivenessProbe.TimeoutSeconds, c.ReadinessProbe.TimeoutSeconds)
	}
	if root := c.SecurityContext.ReadOnlyRootFilesystem; root == nil || !*root {
		t.Error("the root file system is writable")
	}
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			t.Errorf("mount %s is writable", m.MountPath)
		}
	}
	// "make image" builds the image that the manifests name.
	makefile := must.Get(os.ReadFile(filepath.Join(build.RootForTest(t), "Makefile")))(t)
	if version := regexp.MustCompile(`(?m)^VERSION +\?= (.+)$`).FindSubmatch(makefile); version == nil || c.Image != "nodeprobe:"+string(version[1]) {
		t.Errorf("the image is %s, make builds version %s", c.Image, version)
	}
}

// lockedMemoryLimit is the default, which the manifests leave as it is.
func lockedMemoryLimit(t *testing.T) resource.Quantity {
	t.Helper()
	var config struct{ LockedMemoryLimit string }
	must.OK(t, yaml.Unmarshal(run(t, nil, build.ProductForTest(t), "config", "default"), &config))
	return resource.MustParse(config.LockedMemoryLimit)
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
		!slices.Equal(s.Capabilities.Add, []corev1.Capability{"BPF", "PERFMON", "IPC_LOCK"}) {
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

// find returns the first object of a kind; one without a name if there is none.
func find(t *testing.T, rendered []byte, kind string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range objects(t, rendered) {
		if o.GetKind() == kind {
			return &o
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{}}
}

// as decodes an object.
func as[T any](t *testing.T, o *unstructured.Unstructured) (v T) {
	t.Helper()
	must.OK(t, json.Unmarshal(must.Get(json.Marshal(o.Object))(t), &v))
	return v
}

func parse(t *testing.T, rendered []byte) (ds appsv1.DaemonSet, config string) {
	t.Helper()
	ds = as[appsv1.DaemonSet](t, find(t, rendered, "DaemonSet"))
	config = as[corev1.ConfigMap](t, find(t, rendered, "ConfigMap")).Data["config.yaml"]
	if !strings.HasPrefix(ds.Name, "nodeprobe") || config == "" || len(ds.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("no DaemonSet nodeprobe with one container and a config.yaml in\n%s", rendered)
	}
	return ds, config
}
