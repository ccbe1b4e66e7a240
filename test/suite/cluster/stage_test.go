package cluster

import (
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
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
	"github.com/nodeprobe/nodeprobe/test/harness/prometheus"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

const (
	nodeName = "cluster-node"
	// pauseImage is that of every pod but nodeprobe's, and of their sandboxes.
	pauseImage = "nodeprobe.dev/test/pause:1"
	imageTag   = "e2e"
	// patience is for what takes the programs around nodeprobe their time: images,
	// sandboxes, a kubelet's rounds of ten seconds. Ours is for nodeprobe.
	patience, ours = 2 * time.Minute, 15 * time.Second
)

// scene is a cluster of one node.
type scene struct {
	t          *testing.T
	root       string // of the checkout
	dir        string
	cp         *controlplane.ControlPlane
	client     kubernetes.Interface
	kubectl    string
	runtime    *containerd.Containerd
	disk       *pressure.Filesystem // what nodefs is on
	loads      []*pressure.Load
	seen       *nodewatch.History
	prometheus *prometheus.Server
	ip         string // the node's
	port       int    // of nodeprobe's metrics
}

// newStage starts a cluster. All that it consists of is stopped in the end, and it
// is an error if any of it stays behind.
func newStage(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, root: build.RootForTest(t), dir: os.Getenv(confinedEnv), ip: need.Address(t)}
	// Built before there are limits: a compiler needs memory that will be back.
	_, err := kubelet.Build(t.Context(), os.Stderr)
	s.must(err)
	s.kubectl = controlplane.KubectlForTest(t)
	pause := filepath.Join(s.dir, "pause")
	s.run(t, []string{"CGO_ENABLED=0"}, "go", "build", "-C", filepath.Join(s.root, "test", "suite", "cluster", "pause"), "-o", pause, ".")
	t.Log(s.run(t, nil, "make", "--no-print-directory", "-C", s.root, "image", "PREFIX="+s.dir, "VERSION="+imageTag))
	ports, err := process.FreePorts(1)
	s.must(err)
	s.port = ports[0]

	s.cp = controlplane.StartExclusive(t, controlplane.Options{Controllers: true, AuditLog: true})
	s.client = s.cp.Client()
	s.runtime = containerd.StartForTest(t, containerd.Options{Dir: s.dir, SandboxImage: pauseImage})
	s.must(containerd.ImportProgram(t.Context(), s.runtime.Socket, pauseImage, pause))
	s.must(containerd.Import(t.Context(), s.runtime.Socket, filepath.Join(s.dir, "nodeprobe-image.tar")))
	s.disk = pressure.DiskForTest(t, 1024)
	s.seen = nodewatch.FollowForTest(t, s.client, nodeName)
	s.startKubelet()
	s.wait(t, patience, time.Time{}, nodewatch.Has(corev1.NodeReady, corev1.ConditionTrue))
	return s
}

func (s *scene) rootDir() string { return filepath.Join(s.disk.Dir, "kubelet") }

// startKubelet starts one that runs pods, each in cgroups below our own.
func (s *scene) startKubelet() {
	cgroup := cgroupName(s.dir)
	dirs, err := cgroupDirs(cgroup)
	s.must(err)
	for _, dir := range dirs {
		s.must(os.Mkdir(dir, 0o755))
	}
	s.loads, err = pressure.Loads(s.disk)
	s.must(err)
	kubelet.StartForTest(s.t, s.cp, kubelet.Options{
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
	s.eventually(s.t, "nothing is left of the pods", func() error {
		left, err := leftovers(s.dir)
		for _, what := range left {
			err = errors.Join(err, errors.New(what))
		}
		mountinfo, readErr := os.ReadFile("/proc/self/mountinfo")
		for line := range strings.Lines(string(mountinfo)) {
			if strings.Contains(line, s.rootDir()+"/pods/") || strings.Contains(line, s.dir+"/state/io.containerd.runtime") {
				err = errors.Join(err, errors.New("mounted: "+line))
			}
		}
		return errors.Join(err, readErr)
	})
}

// wait waits for a version of the Node since a time, and returns when it was seen.
func (s *scene) wait(t *testing.T, limit time.Duration, since time.Time, match func(*corev1.Node) bool) time.Time {
	t.Helper()
	seen, err := s.seen.Wait(within(t, limit), since, match)
	if err != nil {
		node, _ := s.node(t)
		t.Fatalf("%v; it is %+v", err, node.Status.Conditions)
	}
	return seen.At
}

// run runs a command, and returns what it printed.
func (s *scene) run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = slices.Concat(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// kubectlDo runs kubectl as an administrator.
func (s *scene) kubectlDo(t *testing.T, args ...string) {
	t.Helper()
	t.Logf("kubectl %s\n%s", strings.Join(args, " "), s.run(t, nil, s.kubectl, append([]string{"--kubeconfig=" + s.cp.AdminKubeconfig()}, args...)...))
}

// eventually waits until check returns nil.
func (s *scene) eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	wait.Until(t, patience, what, check)
}

func (s *scene) must(err error) {
	s.t.Helper()
	must.OK(s.t, err)
}

// metricsAddress is where nodeprobe serves, in the host's network.
func (s *scene) metricsAddress() string { return net.JoinHostPort(s.ip, fmt.Sprint(s.port)) }
