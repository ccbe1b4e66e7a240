// Package outsider runs the agent of test/outsider, a module that knows no more of
// nodeprobe than its root package, against a real API server and beside a real kubelet.
package outsider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

const (
	gpu      = "example.com/gpu"
	patience = 2 * time.Minute
)

// buildAgent builds the outsider's module as it would be built anywhere else.
func buildAgent(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "outsider")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, ".")
	cmd.Dir = filepath.Join(build.RootForTest(t), "test", "outsider")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}

// writeGPUs replaces the file, as the agent may be reading it.
func writeGPUs(t *testing.T, file, count string) {
	t.Helper()
	must.OK(t, os.WriteFile(file+".new", []byte(count), 0o644))
	must.OK(t, os.Rename(file+".new", file))
}

// Registered, Ready, a changed value within a second, the Lease renewed.
func TestAgent(t *testing.T) {
	cp := controlplane.StartForTest(t)
	name, dir, binary := controlplane.ObjectName(t), t.TempDir(), buildAgent(t)
	gpus := filepath.Join(dir, "gpus")
	writeGPUs(t, gpus, "2\n")
	agent := must.Get(process.Start(process.Spec{
		Path: binary, Args: []string{name, must.Get(cp.NodeKubeconfig(name))(t), gpus}, LogFile: filepath.Join(dir, "log"),
	}))(t)
	t.Cleanup(func() {
		agent.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("its last lines:\n%s", process.LogTail(filepath.Join(dir, "log"), 20))
		}
	})
	nodes, leases := cp.Client().CoreV1().Nodes(), cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var node *corev1.Node
	wait.Until(t, patience, "the Node is registered and Ready", func() (err error) {
		if node, err = nodes.Get(t.Context(), name, metav1.GetOptions{}); err == nil && !nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue)(node) {
			err = fmt.Errorf("conditions: %+v", node.Status.Conditions)
		}
		return err
	})
	if got := node.Labels["example.com/gpu-agent"]; got != "outsider" {
		t.Errorf("label %q", got)
	}
	if got := node.Status.NodeInfo.KubeletVersion; got != "v1.2.3" {
		t.Errorf("version %q", got)
	}
	checkGPUs(t, node, "2")

	// The file is looked at every 200 ms; the rest of the second is the Agent's.
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	history := nodewatch.FollowForTest(t, cp.Client(), name)
	written := time.Now()
	writeGPUs(t, gpus, "7\n")
	seen := must.Get(history.Wait(ctx, written, func(n *corev1.Node) bool { return count(n) == "7" }))(t)
	checkGPUs(t, seen.Node, "7")
	if took := seen.At.Sub(written); took > time.Second {
		t.Errorf("a changed value took %s", took)
	}

	lease := must.Get(leases.Get(t.Context(), name, metav1.GetOptions{}))(t)
	wait.Until(t, patience, "the Lease is renewed", func() error {
		now, err := leases.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !now.Spec.RenewTime.After(lease.Spec.RenewTime.Time) {
			err = errors.New("not yet")
		}
		return err
	})
	for _, entry := range must.Get(nodes.Get(t.Context(), name, metav1.GetOptions{}))(t).ManagedFields {
		if entry.Manager != "outsider" {
			t.Errorf("field manager %q", entry.Manager)
		}
	}
}

func count(node *corev1.Node) string {
	q := node.Status.Capacity[gpu]
	return q.String()
}

func checkGPUs(t *testing.T, node *corev1.Node, want string) {
	t.Helper()
	allocatable := node.Status.Allocatable[gpu]
	if got := count(node); got != want || allocatable.String() != want {
		t.Errorf("%s of %s GPUs allocatable, want %s", allocatable.String(), got, want)
	}
}

// Beside a kubelet that is alive the agent refuses to run, and writes nothing.
func TestBesideKubelet(t *testing.T) {
	need.Root(t)
	cp := controlplane.StartForTest(t)
	name, dir, binary := controlplane.ObjectName(t), t.TempDir(), buildAgent(t)
	runtime := containerd.Start(t, containerd.Options{Dir: t.TempDir()})
	kubelet.Start(t, cp, kubelet.Options{NodeName: name, RuntimeEndpoint: runtime.Endpoint, Dir: t.TempDir()})
	wait.Until(t, patience, "the kubelet has a Lease", func() error {
		_, err := cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
		return err
	})
	gpus := filepath.Join(dir, "gpus")
	writeGPUs(t, gpus, "2\n")
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	out, err := exec.CommandContext(ctx, binary, name, must.Get(cp.NodeKubeconfig(name))(t), gpus).CombinedOutput()
	if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "kubelet renewed its lease") {
		t.Errorf("it did not refuse: %v\n%s", err, out)
	}
	node, err := cp.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return // the kubelet has not registered yet
	}
	must.OK(t, err)
	if _, written := node.Status.Capacity[gpu]; written || node.Labels["example.com/gpu-agent"] != "" {
		t.Errorf("it wrote to the kubelet's Node: %+v", node)
	}
}
