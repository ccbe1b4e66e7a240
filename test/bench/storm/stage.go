package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/containerd"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/footprint"
	"github.com/nodeprobe/nodeprobe/test/harness/kubelet"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

const (
	oursName    = "nodeprobe"
	kubeletName = "kubelet"
	// transition is how long a condition outlasts its cause.
	transition = time.Second
	// rehearsed is when nodeprobe has surely locked what it needs, after its first sample.
	rehearsed = 12 * time.Second
	mi        = 1 << 20

	burstTasks = 600
	// taskMargin is how many tasks of the burst it takes to cross the limit.
	taskMargin = 300
	// diskSize in MiB, of which diskLimit is the limit and diskLeft what a crossing leaves.
	diskSize, diskLimit, diskLeft = 64, 24 * mi, 8 * mi
)

var exporterTarget = build.Target{
	Name:    "node_exporter",
	Dir:     "bench/peers/nodeexporter",
	Package: "github.com/prometheus/node_exporter",
	Module:  "github.com/prometheus/node_exporter",
}

// stage is a control plane in memory, and what runs beside it from a disk.
type stage struct {
	*program.P
	dir     string // on the disk
	binary  string
	cp      *controlplane.ControlPlane
	watcher kubernetes.Interface
	fs      *pressure.Filesystem // of both nodes
	runtime *containerd.Containerd
	weather *pressure.Storm
	// leases by name, events by message
	leases, events *sightings
	// tasks and memory are the limits of both.
	tasks, memory           int64
	ours, kubelet, exporter *subject
	agent                   *agent.Agent // ours
}

// subject is a process that is looked at.
type subject struct {
	name    string
	pid     int
	exited  <-chan struct{}
	history *nodewatch.History // of its Node
	metrics string             // a URL
}

func newStage(p *program.P, binary string) *stage {
	exporter, _ := build.Cached(p, exporterTarget), kubelet.Build(p) // before there is any hurry
	memory := pressure.Tmpfs(p, 1024)
	s := &stage{P: p, dir: pressure.TempDir(p), binary: binary, fs: pressure.DiskIn(p, memory, diskSize)}
	s.cp = p.ControlPlane(controlplane.Options{Dir: filepath.Join(memory, "cp"), CopyPrograms: true})
	config := s.cp.Config()
	config.ContentType = runtime.ContentTypeProtobuf // decoding JSON takes its time
	s.watcher = must.Get(kubernetes.NewForConfig(config))(p)
	leases, err := s.watcher.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(p.Context(), metav1.ListOptions{})
	s.leases = sight(s, leases, err, func(o runtime.Object) string {
		if l, ok := o.(*coordinationv1.Lease); ok {
			return l.Name
		}
		return ""
	})
	events, err := s.watcher.CoreV1().Events(metav1.NamespaceAll).Watch(p.Context(), metav1.ListOptions{})
	s.events = sight(s, events, err, func(o runtime.Object) string {
		if e, ok := o.(*corev1.Event); ok {
			return e.Message
		}
		return ""
	})
	s.runtime = containerd.Start(s, containerd.Options{Dir: s.dir})
	s.exporter = s.startExporter(exporter)
	s.tasks = must.Get(pressure.AvailableTasks())(p) - taskMargin
	return s
}

func (s *stage) limits() map[string]string {
	limits := map[string]string{"pid.available": fmt.Sprint(s.tasks), "nodefs.available": fmt.Sprintf("%dMi", diskLimit/mi)}
	if s.memory > 0 {
		limits["memory.available"] = fmt.Sprintf("%dMi", s.memory/mi)
	}
	return limits
}

// spec is nodeprobe's, with all on the disk that it reads.
func (s *stage) spec() agent.Spec {
	return agent.Spec{
		Binary: s.binary, Dir: s.dir, NodeName: oursName, Kubeconfig: s.onDisk(must.Get(s.cp.NodeKubeconfig(oursName))(s)),
		// But for the limits and the transition period, all of it is the default.
		Config: agent.Own().With(agent.Config{
			"bpf": "auto", "rootDirectory": s.fs.Dir,
			"sampleInterval": "10s", "nodeStatusUpdateFrequency": "10s", "nodeLeaseDurationSeconds": 40,
			"evictionHard":                     agent.Hard(s.limits()),
			"evictionPressureTransitionPeriod": transition.String(),
			"lockedMemoryLimit":                "48Mi", "oomScoreAdj": -999, "logLevel": "debug",
		}),
	}
}

// onDisk copies a file of the control plane, which is in memory.
func (s *stage) onDisk(name string) string {
	file := filepath.Join(s.dir, filepath.Base(name))
	must.OK(s, os.WriteFile(file, must.Get(os.ReadFile(name))(s), 0o600))
	return file
}

func (s *stage) startOurs(spec agent.Spec) {
	a := agent.StartForTest(s, spec)
	s.agent = a
	s.ours = &subject{name: oursName, pid: a.PID(), exited: a.Exited(), history: s.follow(oursName), metrics: a.URL("/metrics")}
}

func (s *stage) startKubelet() *kubelet.Kubelet {
	k := kubelet.Start(s, s.cp, kubelet.Options{
		NodeName: kubeletName, RuntimeEndpoint: s.runtime.Endpoint, Dir: must.Get(os.MkdirTemp(s.dir, kubeletName))(s),
		// The same filesystem, so that the limit means the same.
		RootDir:    filepath.Join(s.fs.Dir, kubeletName),
		Thresholds: agent.Hard(s.limits()),
		Config:     kubelet.Config{"evictionPressureTransitionPeriod": transition.String()},
	})
	s.kubelet = &subject{name: kubeletName, pid: k.PID(), exited: k.Exited(), history: s.follow(kubeletName)}
	return k
}

func (s *stage) follow(name string) *nodewatch.History {
	return nodewatch.FollowForTest(s, s.watcher, name)
}

func (s *stage) startExporter(file string) *subject {
	address := fmt.Sprintf("127.0.0.1:%d", must.Get(process.FreePorts(1))(s)[0])
	e := must.Get(process.Start(process.Spec{
		Path: file, Args: []string{"--web.listen-address=" + address}, LogFile: filepath.Join(s.dir, "node_exporter.log"),
	}))(s)
	s.Cleanup(func() { e.Stop(0) })
	x := &subject{name: exporterTarget.Name, pid: e.PID(), exited: e.Exited(), metrics: "http://" + address + "/metrics"}
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Minute)
	defer cancel()
	must.OK(s, e.WaitReady(ctx, func(ctx context.Context) error {
		_, err := footprint.Scrape(ctx, x.metrics)
		return err
	}))
	return x
}

// conditions are what is made to cross its limit in each storm.
var conditions = []corev1.NodeConditionType{corev1.NodePIDPressure, corev1.NodeDiskPressure, corev1.NodeMemoryPressure}

// calm waits until nothing is under pressure, by both Nodes.
func (s *stage) calm(subjects ...*subject) {
	for deadline := time.Now().Add(2 * time.Minute); ; s.Sleep(100 * time.Millisecond) {
		var pressed []string
		for _, x := range subjects {
			for _, c := range conditions {
				if node := x.history.Last(); node == nil || nodewatch.Condition(node, c).Status != corev1.ConditionFalse {
					pressed = append(pressed, fmt.Sprintf("%s of %s", c, x.name))
				}
			}
		}
		if len(pressed) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("not False between storms: %q", pressed)
		}
	}
}
