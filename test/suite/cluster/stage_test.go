package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	nodeName = "cluster-node"
	// pauseImage is that of every pod but nodeprobe's, and of their sandboxes.
	pauseImage = "nodeprobe.dev/test/pause:1"
	imageTag   = "v0.0.0-e2e" // a version, as a kubelet has one
	// patience is for what takes the programs around nodeprobe their time: images,
	// sandboxes, a kubelet's rounds of ten seconds. Ours is for nodeprobe.
	patience, ours = 2 * time.Minute, 15 * time.Second
)

// scene is a cluster of one node.
type scene struct {
	t       *testing.T
	root    string // of the checkout
	dir     string
	cp      *controlplane.ControlPlane
	client  kubernetes.Interface
	kubectl string
	runtime *containerd.Containerd
	disk    *pressure.Filesystem // what nodefs is on
	loads   []*pressure.Load
	seen    *nodewatch.History
	ip      string // the node's
	port    int    // of nodeprobe's metrics
}

// newStage starts a cluster. All that it consists of is stopped in the end, and it
// is an error if any of it stays behind.
func newStage(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, root: build.RootForTest(t), dir: os.Getenv(confinedEnv), ip: need.Address(t)}
	// Built before there are limits: a compiler needs memory that will be back.
	kubelet.Build(t)
	s.kubectl = controlplane.Program(t, "kubectl")
	pause := filepath.Join(s.dir, "pause")
	s.run("env", "CGO_ENABLED=0", "go", "build", "-C", filepath.Join(s.root, "test", "suite", "cluster", "pause"), "-o", pause, ".")
	s.run("make", "--no-print-directory", "-C", s.root, "image", "PREFIX="+s.dir, "VERSION="+imageTag)
	s.port = must.Get(process.FreePorts(1))(t)[0]

	s.cp = controlplane.StartExclusive(t, controlplane.Options{Controllers: true, AuditLog: true})
	s.client = s.cp.Client()
	s.runtime = containerd.Start(t, containerd.Options{Dir: s.dir, SandboxImage: pauseImage})
	containerd.ImportProgram(t, s.runtime.Socket, pauseImage, pause)
	containerd.Import(t, s.runtime.Socket, filepath.Join(s.dir, "nodeprobe-image.tar"))
	s.disk = pressure.Disk(t, 1024)
	s.seen = nodewatch.FollowForTest(t, s.client, nodeName)
	s.startKubelet()
	s.wait(patience, time.Time{}, nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue))
	return s
}

func (s *scene) rootDir() string { return filepath.Join(s.disk.Dir, "kubelet") }

// startKubelet starts one that runs pods, each in cgroups below our own.
func (s *scene) startKubelet() {
	cgroup := cgroupName(s.dir)
	for _, dir := range cgroupDirs(s.t, cgroup) {
		must.OK(s.t, os.Mkdir(dir, 0o755))
	}
	s.loads = pressure.Loads(s.t, s.disk)
	kubelet.Start(s.t, s.cp, kubelet.Options{
		NodeName: nodeName, RuntimeEndpoint: s.runtime.Endpoint, Dir: s.t.TempDir(), RootDir: s.rootDir(),
		Thresholds: pressure.Thresholds(s.loads),
		Config: kubelet.Config{
			"cgroupsPerQOS": true, "cgroupRoot": cgroup,
			"evictionPressureTransitionPeriod": transition.String(),
			// Where every kubelet has them, and nodeprobe looks for names.
			"podLogsDir": podLogs,
			// What is imported cannot be pulled again.
			"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		},
		Args: []string{"--node-ip=" + s.ip},
	})
}

// wantNothingLeft waits until the kubelet and containerd have let go of all pods.
func (s *scene) wantNothingLeft() {
	stage.Eventually(s.t, "nothing is left of the pods", func() error {
		var err error
		for _, what := range leftovers(s.t, s.dir) {
			err = errors.Join(err, errors.New(what))
		}
		for line := range strings.Lines(string(must.Get(os.ReadFile("/proc/self/mountinfo"))(s.t))) {
			if strings.Contains(line, s.rootDir()+"/pods/") || strings.Contains(line, s.dir+"/state/io.containerd.runtime") {
				err = errors.Join(err, errors.New("mounted: "+line))
			}
		}
		return err
	})
}

// wait waits for a version of the Node since a time, and returns when it was seen.
func (s *scene) wait(limit time.Duration, since time.Time, match func(*corev1.Node) bool) time.Time {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	seen, err := s.seen.Wait(ctx, since, match)
	if err != nil {
		s.t.Fatalf("%v; it is %+v", err, s.node().Status.Conditions)
	}
	return seen.At
}

func (s *scene) run(name string, args ...string) {
	s.t.Helper()
	if out, err := exec.CommandContext(s.t.Context(), name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
}

func (s *scene) kubectlDo(args ...string) {
	s.t.Helper()
	s.run(s.kubectl, append([]string{"--kubeconfig=" + s.cp.AdminKubeconfig()}, args...)...)
}

// metricsAddress is where nodeprobe serves, in the host's network.
func (s *scene) metricsAddress() string { return net.JoinHostPort(s.ip, fmt.Sprint(s.port)) }

const namespace = "nodeprobe"

// ourPods are those of the DaemonSet.
const ourPods = "app.kubernetes.io/name=nodeprobe"

// overlay writes a kustomization over one of the repository's, with what only
// holds for this machine: where the API server is without a kube-proxy, a free
// port, the image that was built, and the limits and directories of this kubelet.
func (s *scene) overlay(of string) (dir string) {
	s.t.Helper()
	dir = s.t.TempDir()
	base := must.Get(filepath.Rel(dir, filepath.Join(s.root, of)))(s.t)
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s.cp.Config().Host, "https://"))
	must.OK(s.t, err)

	file := must.Get(os.ReadFile(filepath.Join(s.root, "deploy", "base", "config.yaml")))(s.t)
	var config map[string]any
	must.OK(s.t, yaml.Unmarshal(file, &config))
	config["webListenAddress"] = fmt.Sprintf(":%d", s.port)
	config["evictionHard"] = pressure.Thresholds(s.loads)
	config["evictionPressureTransitionPeriod"] = transition.String()
	config["rootDirectory"] = s.rootDir()
	config["imageDirectories"] = []string{filepath.Join(s.dir, "root")}

	for name, content := range map[string]any{
		"config.yaml": config,
		"kustomization.yaml": map[string]any{
			"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": namespace,
			"resources":          []string{base},
			"images":             []any{map[string]string{"name": "nodeprobe", "newTag": imageTag}},
			"configMapGenerator": []any{map[string]any{"name": "nodeprobe", "behavior": "merge", "files": []string{"config.yaml"}}},
			"patches":            []any{map[string]string{"path": "patch.yaml"}},
		},
		"patch.yaml": map[string]any{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]string{"name": "nodeprobe"},
			"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
				"hostNetwork": true,
				"containers": []any{map[string]any{
					"name": "nodeprobe",
					"env": []any{
						map[string]string{"name": "KUBERNETES_SERVICE_HOST", "value": host},
						map[string]string{"name": "KUBERNETES_SERVICE_PORT", "value": port},
					},
					"ports": []any{
						map[string]any{"containerPort": s.port, "name": "metrics"},
						map[string]any{"containerPort": 9732, "$patch": "delete"},
					},
				}},
			}}},
		},
	} {
		text := must.Get(yaml.Marshal(content))(s.t)
		must.OK(s.t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// install deploys nodeprobe, and returns its pod when that is ready.
func (s *scene) install(overlay string) *corev1.Pod {
	s.t.Helper()
	s.kubectlDo("apply", "-k", filepath.Join(s.root, "deploy", "identity"))
	s.kubectlDo("apply", "-k", overlay)
	var pod *corev1.Pod
	s.t.Cleanup(func() {
		if !s.t.Failed() || pod == nil {
			return
		}
		files, _ := filepath.Glob(filepath.Join(podLogs, "*_"+pod.Name+"_*", "*", "*.log"))
		for _, file := range files {
			s.t.Logf("%s:\n%s", file, process.LogTail(file, 20))
		}
	})
	stage.Eventually(s.t, "the pod is ready", func() error {
		list, err := s.client.CoreV1().Pods(namespace).List(s.t.Context(), metav1.ListOptions{LabelSelector: ourPods})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d pods", len(list.Items))
		}
		pod = &list.Items[0]
		if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			return nil
		}
		return fmt.Errorf("it is %+v", pod.Status)
	})
	return pod
}

// uninstall removes nodeprobe as deploy/identity says: first the pods, with the
// rights to remove their conditions, and then those rights.
func (s *scene) uninstall(overlay string) {
	s.t.Helper()
	s.kubectlDo("delete", "-k", overlay)
	s.kubectlDo("wait", "-n", namespace, "--for=delete", "pod", "-l", ourPods, "--timeout="+patience.String())
	node := s.node()
	for _, c := range node.Status.Conditions {
		if strings.Contains(string(c.Type), "/") {
			s.t.Errorf("left on the Node: %+v", c)
		}
	}
	for _, m := range node.ManagedFields {
		if strings.HasPrefix(m.Manager, "nodeprobe") {
			s.t.Errorf("%s still owns fields of the Node: %s", m.Manager, m.FieldsV1)
		}
	}
	s.kubectlDo("delete", "-k", filepath.Join(s.root, "deploy", "identity"))
}

func (s *scene) node() *corev1.Node {
	s.t.Helper()
	return must.Get(s.client.CoreV1().Nodes().Get(s.t.Context(), nodeName, metav1.GetOptions{}))(s.t)
}
