// Package parity compares what nodeprobe writes with what a real kubelet writes on
// the same machine with the same configuration, under a real control plane: the
// Nodes field for field, Leases, Events, and what both send to the API server at
// the same transitions.
package parity

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

// One test, for one kubelet: two on a machine would fight over its sysctls and
// sockets, and to start one for each pressure would take minutes.
func TestParity(t *testing.T) {
	s := start(t)
	s.await("at first", time.Time{}, calm)
	s.compareNodes("at first", both, calm)
	s.compareOwn()
	s.compareFirst()
	s.since = time.Now()

	for _, load := range s.loads {
		s.transition(load.Condition, corev1.ConditionTrue, both, load.Press)
		s.transition(load.Condition, corev1.ConditionFalse, both, load.Release)
	}
	s.cordon(true)
	s.cordon(false)
	s.compareHeartbeats()

	s.transition(corev1.NodeReady, corev1.ConditionFalse, without, s.runtime.Stop)
	s.transition(corev1.NodeReady, corev1.ConditionTrue, without, s.startRuntime)

	s.compareWrites()
	s.compareLeases()
	s.compareEvents()
	s.compareBare()
	s.allSeen()
}

const (
	kubeletNode, ourNode = "parity-kubelet", "parity-nodeprobe"
	bareNode             = "parity-bare" // a nodeprobe's that knows of no container runtime
	patience             = 3 * time.Minute
	nodeLabel            = "example.com/parity"
	ownConditions        = "nodeprobe.dev/" // the prefix of those that no kubelet posts
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
	must.OK(s.t, s.startRuntime())
	containerd.ImportImages(t, s.runtime.Socket, shownImages+2)
	disk := pressure.Disk(t, 2048)
	for _, name := range []string{kubeletNode, ourNode, bareNode} {
		s.seen[name] = nodewatch.FollowForTest(t, s.client, name)
	}
	// Built before the limits are set: a compiler needs memory that will be back.
	kubelet.Build(t)
	build.ProductForTest(t)
	s.loads = pressure.Loads(s.t, disk)

	dir, rootDir := t.TempDir(), filepath.Join(disk.Dir, "kubelet")
	kubelet.Start(t, cp, kubelet.Options{
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
	kubeconfig := must.Get(s.cp.NodeKubeconfig(name))(s.t)
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
func (s *stage) startRuntime() error {
	s.runtime = containerd.Start(s.t, containerd.Options{Dir: s.dir})
	return nil
}

// allowance is what may differ, by its path, and why. Whatever else differs is an
// error, and so is a line that has nothing to allow any more.
type allowance map[string]string

const promises = "are promises about running pods"

// What a kubelet and a nodeprobe may differ in.
var (
	both = &allowance{
		"status.declaredFeatures": promises,
	}
	// The Node is created.
	atFirst = &allowance{
		"status.declaredFeatures": promises,
		"status.conditions[3]":    "is Ready, which a kubelet is not before it has made its CSINode",
	}
	// Both have lost their container runtime.
	without = &allowance{
		"status.declaredFeatures":                 promises,
		"status.nodeInfo.containerRuntimeVersion": "is Unknown to a kubelet meanwhile; nodeprobe keeps what it knew",
	}
	// Only the kubelet has a container runtime.
	bare = &allowance{
		"status.declaredFeatures":                 promises,
		"status.nodeInfo.containerRuntimeVersion": "nobody tells",
		"status.images":                           "nobody tells",
		"status.runtimeHandlers":                  "nobody tells",
		"status.features":                         "nobody tells",
	}
)

// line returns which line of the list allows a difference, "" if none does.
func (a allowance) line(path string) string {
	for prefix := range a {
		if path == prefix || strings.HasPrefix(path, prefix+".") || strings.HasPrefix(path, prefix+"[") {
			return prefix
		}
	}
	return ""
}

func compare(theirs, ours any, allowed *allowance) (bad []string, seen map[string]bool) {
	reporter := &differences{}
	cmp.Equal(theirs, ours, cmp.Reporter(reporter))
	seen = map[string]bool{}
	for _, d := range reporter.found {
		if line := allowed.line(d.path); line != "" {
			seen[line] = true
			continue
		}
		bad = append(bad, fmt.Sprintf("%s: the kubelet has %s, nodeprobe %s", d.path, d.theirs, d.ours))
	}
	return bad, seen
}

// note keeps which lines of an allowance were of use.
func (s *stage) note(allowed *allowance, seen map[string]bool) {
	if s.differs[allowed] == nil {
		s.differs[allowed] = map[string]bool{}
	}
	for line := range seen {
		s.differs[allowed][line] = true
	}
}

// allSeen complains of lines that stand for nothing, and shows the others.
func (s *stage) allSeen() {
	s.t.Helper()
	shown := map[string]bool{}
	for allowed, seen := range s.differs {
		for line, why := range *allowed {
			if !seen[line] {
				s.t.Errorf("%s (%s) may differ, but never did", line, why)
			}
			shown["differs as documented: "+line+": "+why] = true
		}
	}
	for _, text := range slices.Sorted(maps.Keys(shown)) {
		s.t.Log(text)
	}
}
