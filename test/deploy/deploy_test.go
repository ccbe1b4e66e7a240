// Package deploy tests what is in the product's deploy directory: kubectl
// renders it, a real API server accepts it, and the product accepts what it is
// configured with.
package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/build"
	"github.com/nodeprobe/nodeprobe/test/controlplane"
	"github.com/nodeprobe/nodeprobe/test/pressure"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

// run runs a command and returns its standard output.
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

// productRoot is the root of the product's module.
func productRoot(t *testing.T) string {
	t.Helper()
	root, err := build.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(root)
}

func TestBase(t *testing.T) {
	kubectl, err := controlplane.Kubectl(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	root := productRoot(t)
	rendered := run(t, nil, kubectl, "kustomize", filepath.Join(root, "deploy", "base"))

	daemonSet, config := parse(t, rendered)
	t.Run("API server accepts it", func(t *testing.T) {
		cp := controlplane.StartForTest(t)
		// A dry run does not make the namespace that the rest is to go into.
		admin := "--kubeconfig=" + cp.AdminKubeconfig()
		run(t, nil, kubectl, admin, "create", "namespace", daemonSet.Namespace)
		out := run(t, rendered, kubectl, admin, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		if !strings.Contains(string(out), "daemonset.apps/nodeprobe created (server dry run)") {
			t.Errorf("kubectl apply printed\n%s", out)
		}
	})
	t.Run("product accepts it", func(t *testing.T) {
		binary, err := build.Product(t.Context(), t.TempDir(), os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, nil, binary, "config", "check", file)
		// --help parses the flags that stand before it, and runs nothing.
		args := daemonSet.Spec.Template.Spec.Containers[0].Args
		run(t, nil, binary, append(args, "--help")...)
	})
	t.Run("it only observes", func(t *testing.T) {
		spec := daemonSet.Spec.Template.Spec
		if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
			t.Error("the pod gets a service account token, which observe mode does not need")
		}
		if !strings.Contains(config, "\nmode: observe\n") {
			t.Errorf("configuration is not in observe mode:\n%s", config)
		}
		for _, m := range spec.Containers[0].VolumeMounts {
			if !m.ReadOnly {
				t.Errorf("mount %s is writable", m.MountPath)
			}
		}
	})
}

// parse finds the DaemonSet and its configuration among the rendered objects.
func parse(t *testing.T, rendered []byte) (ds appsv1.DaemonSet, config string) {
	t.Helper()
	for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "DaemonSet":
			if err := yaml.UnmarshalStrict(document, &ds); err != nil {
				t.Fatal(err)
			}
		case "ConfigMap":
			var m corev1.ConfigMap
			if err := yaml.UnmarshalStrict(document, &m); err != nil {
				t.Fatal(err)
			}
			config = m.Data["config.yaml"]
		}
	}
	if ds.Name != "nodeprobe" || config == "" || len(ds.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("no DaemonSet nodeprobe with one container and a config.yaml in\n%s", rendered)
	}
	return ds, config
}
