package parity

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const (
	kubeletNode, ourNode = "parity-kubelet", "parity-nodeprobe"
	bareNode             = "parity-bare" // a nodeprobe's that knows of no container runtime
	patience             = 3 * time.Minute
	nodeLabel            = "example.com/parity"
	shownImages          = 3
)

// configuration is what both are given, in the kubelet's words. Nothing of it is
// left at its default that need not be.
var configuration = kubelet.Config{
	"maxPods": 77, "podsPerCore": 20,
	"systemReserved":                   map[string]string{"cpu": "150m", "memory": "300Mi", "ephemeral-storage": "256Mi"},
	"kubeReserved":                     map[string]string{"cpu": "50m", "memory": "200Mi"},
	"registerWithTaints":               []corev1.Taint{{Key: "example.com/parity", Value: "v", Effect: corev1.TaintEffectNoSchedule}},
	"providerID":                       "parity:///machine",
	"nodeStatusUpdateFrequency":        "2s",
	"nodeStatusReportFrequency":        "10s",
	"nodeLeaseDurationSeconds":         20,
	"nodeStatusMaxImages":              shownImages,
	"evictionPressureTransitionPeriod": "1s",
}

// stage is all of them at work.
type stage struct {
	t       *testing.T
	cp      *controlplane.ControlPlane
	client  kubernetes.Interface
	dir     string // the container runtime's
	runtime *containerd.Containerd
	loads   []*pressure.Load
	seen    map[string]*nodewatch.History // by node
	since   time.Time                     // what both did until then was to start
	differs map[*allowance]map[string]bool
}

// start starts a kubelet, and nodeprobes that take their configuration from the
// kubelet's own file.
func start(t *testing.T) *stage {
	t.Helper()
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	ip := need.Address(t)
	cp := controlplane.StartExclusive(t, controlplane.Options{Controllers: true, AuditLog: true})
	s := &stage{
		t: t, cp: cp, client: cp.Client(), dir: t.TempDir(),
		seen: map[string]*nodewatch.History{}, differs: map[*allowance]map[string]bool{},
	}
	s.must(s.startRuntime())
	t.Cleanup(func() { s.check(s.runtime.Stop()) })
	s.must(containerd.ImportImages(t.Context(), s.runtime.Socket, shownImages+2))
	disk := pressure.DiskForTest(t, 2048)
	for _, name := range []string{kubeletNode, ourNode, bareNode} {
		s.seen[name] = nodewatch.FollowForTest(t, s.client, name)
	}
	// Built before the limits are set: a compiler needs memory that will be back.
	_, err := kubelet.Build(t.Context(), os.Stderr)
	s.must(err)
	build.ProductForTest(t)
	s.loads, err = pressure.Loads(disk)
	s.must(err)

	dir, rootDir := t.TempDir(), filepath.Join(disk.Dir, "kubelet")
	kubelet.StartForTest(t, cp, kubelet.Options{
		NodeName: kubeletNode, RuntimeEndpoint: s.runtime.Endpoint, Dir: dir, RootDir: rootDir,
		Thresholds: pressure.Thresholds(s.loads), Config: configuration,
		Args: []string{"--node-labels=" + nodeLabel + "=labelled", "--node-ip=" + ip},
	})
	s.nodeprobe(ourNode, filepath.Join(dir, "kubelet.yaml"), agent.Config{
		"rootDirectory": rootDir, "nodeLabels": map[string]string{nodeLabel: "labelled"}, "nodeIP": ip,
	})
	s.nodeprobe(bareNode, filepath.Join(dir, "kubelet.yaml"), agent.Config{
		"rootDirectory": rootDir, "nodeLabels": map[string]string{nodeLabel: "labelled"}, "nodeIP": ip,
		"containerRuntimeEndpoint": "",
	})
	return s
}

// nodeprobe starts one beside the kubelet, with its configuration and what only
// flags tell a kubelet.
func (s *stage) nodeprobe(name, kubeletConfig string, config agent.Config) {
	s.t.Helper()
	kubeconfig, err := s.cp.NodeKubeconfig(name)
	s.must(err)
	agent.StartForTest(s.t, agent.Spec{
		Binary: build.ProductForTest(s.t), Dir: s.t.TempDir(), NodeName: name, Kubeconfig: kubeconfig,
		Config: config.With(agent.Config{
			"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "own",
			"kubeletVersion": "v1.36.3", "logFormat": "json",
		}),
		Args: []string{"--kubelet-config", kubeletConfig},
	})
}

// startRuntime starts containerd, for the first time or with what it had before.
func (s *stage) startRuntime() (err error) {
	s.runtime, err = containerd.Start(s.t.Context(), containerd.Options{Dir: s.dir})
	return err
}

func (s *stage) must(err error) {
	s.t.Helper()
	must.OK(s.t, err)
}

func (s *stage) check(err error) {
	s.t.Helper()
	must.Note(s.t, err)
}

// begin says that what comes now is not part of the start any more.
func (s *stage) begin() { s.since = time.Now() }
