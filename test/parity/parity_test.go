// Package parity compares the Node that nodeprobe keeps with the one that a real
// kubelet keeps of the same machine, with the same configuration: field for field,
// and Lease and Events as well.
package parity

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/agent"
	"github.com/nodeprobe/nodeprobe/test/build"
	"github.com/nodeprobe/nodeprobe/test/containerd"
	"github.com/nodeprobe/nodeprobe/test/controlplane"
	"github.com/nodeprobe/nodeprobe/test/kubelet"
	"github.com/nodeprobe/nodeprobe/test/need"
	"github.com/nodeprobe/nodeprobe/test/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/pressure"
	"github.com/nodeprobe/nodeprobe/test/process"
)

func TestMain(m *testing.M) {
	pressure.Main()
	os.Exit(controlplane.Main(m))
}

const (
	kubeletNode, ourNode = "parity-kubelet", "parity-nodeprobe"
	patience             = 90 * time.Second
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
	"nodeStatusMaxImages":              3,
	"evictionPressureTransitionPeriod": "1s",
}

// thresholds that this machine, and a new filesystem, do not come near to.
var thresholds = map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "1%", "imagefs.available": "1%"}

// pair is the two of them at work.
type pair struct {
	t      *testing.T
	client kubernetes.Interface
	disk   *pressure.Filesystem // nodefs
}

// start starts a kubelet and a nodeprobe that takes its configuration from the
// kubelet's own file.
func start(t *testing.T) pair {
	t.Helper()
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	cp := controlplane.StartForTest(t)
	runtime, err := containerd.Start(t.Context(), containerd.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runtime.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := containerd.ImportImages(t.Context(), runtime.Socket, 5); err != nil {
		t.Fatal(err)
	}
	disk, err := pressure.Disk(2048)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	dir, rootDir := t.TempDir(), filepath.Join(disk.Dir, "kubelet")
	k, err := kubelet.Start(t.Context(), cp, kubelet.Options{
		NodeName: kubeletNode, RuntimeEndpoint: runtime.Endpoint, Dir: dir, RootDir: rootDir, Log: os.Stderr,
		Thresholds: thresholds, Config: configuration,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
	})
	binary, err := build.Product(t.Context(), t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := cp.NodeKubeconfig(ourNode)
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.Start(t.Context(), agent.Spec{
		Binary: binary, Dir: t.TempDir(), NodeName: ourNode, Kubeconfig: kubeconfig,
		Config: agent.Config{
			"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "mode": "own",
			"rootDirectory": rootDir, "kubeletVersion": "v1.36.3", "logFormat": "json",
			"evictionHard": map[string]string{"pid.available": "0%"}, // the kubelet has none
		},
		Args: []string{"--kubelet-config", filepath.Join(dir, "kubelet.yaml")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Stop()
		if t.Failed() {
			t.Logf("nodeprobe's last lines:\n%s", process.LogTail(a.LogFile, 40))
			t.Logf("the kubelet's last lines:\n%s", process.LogTail(k.LogFile, 20))
		}
	})
	return pair{t, cp.Client(), disk}
}

// node returns one of the two once it has a condition, and all of its images.
func (p pair) node(name string, condition corev1.NodeConditionType, status corev1.ConditionStatus) *corev1.Node {
	p.t.Helper()
	ctx, stop := context.WithTimeout(p.t.Context(), patience)
	defer stop()
	history, err := nodewatch.Follow(ctx, p.client, name)
	if err != nil {
		p.t.Fatal(err)
	}
	seen, err := history.Wait(ctx, time.Time{}, func(node *corev1.Node) bool {
		return nodewatch.Has(condition, status)(node) && len(node.Status.Images) == 3
	})
	if err != nil {
		p.t.Fatalf("wait for %s of %s to be %s: %v", condition, name, status, err)
	}
	return seen.Node
}

// What the two Nodes may differ in, and why. Anything else is an error.
var documented = map[string]string{
	"metadata.annotations[node.alpha.kubernetes.io/ttl]": "is the controller manager's",
	"status.declaredFeatures":                            "are features of a kubelet that nodeprobe does not have",
	"status.features.userNamespaces":                     "same",
	"status.volumesInUse":                                "not there yet",
}

func TestParity(t *testing.T) {
	p := start(t)
	p.compareNodes("at first", corev1.NodeReady, corev1.ConditionTrue)
	p.compareLeases()

	if err := p.disk.Fill(100 << 20); err != nil {
		t.Fatal(err)
	}
	p.compareNodes("with a full disk", corev1.NodeDiskPressure, corev1.ConditionTrue)
	if err := p.disk.Empty(); err != nil {
		t.Fatal(err)
	}
	p.compareNodes("when there is room again", corev1.NodeDiskPressure, corev1.ConditionFalse)
	p.compareEvents()
}

// compareNodes waits for both to have a condition, and compares the Nodes.
func (p pair) compareNodes(when string, condition corev1.NodeConditionType, status corev1.ConditionStatus) {
	p.t.Helper()
	theirs, ours := normal(p.node(kubeletNode, condition, status)), normal(p.node(ourNode, condition, status))
	var allowed []string
	reporter := &differences{}
	cmp.Equal(theirs, ours, cmp.Reporter(reporter))
	for _, d := range reporter.found {
		if why := reason(d.path); why != "" {
			allowed = append(allowed, fmt.Sprintf("%s: %s", d.path, why))
			continue
		}
		p.t.Errorf("%s: %s: the kubelet has %s, nodeprobe %s", when, d.path, d.theirs, d.ours)
	}
	for _, line := range slices.Compact(allowed) {
		p.t.Logf("%s, differs as it should: %s", when, line)
	}
}

// reason is why a difference is allowed; "" if it is not.
func reason(path string) string {
	for prefix, why := range documented {
		if path == prefix || strings.HasPrefix(path, prefix+".") || strings.HasPrefix(path, prefix+"[") {
			return why
		}
	}
	return ""
}

// normal is a Node without what differs for reasons of its own: its identity, and
// when something happened.
func normal(node *corev1.Node) map[string]any {
	node = node.DeepCopy()
	name := node.Name
	object := asMap(node)
	metadata := object["metadata"].(map[string]any)
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "name"} {
		delete(metadata, field)
	}
	status := object["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		condition := c.(map[string]any)
		delete(condition, "lastHeartbeatTime")
		delete(condition, "lastTransitionTime")
	}
	// Each listens, or would listen, on a port of its own.
	return rename(object, name).(map[string]any)
}

// rename replaces a node's name wherever it stands.
func rename(value any, name string) any {
	switch v := value.(type) {
	case string:
		return strings.ReplaceAll(v, name, "NODE")
	case []any:
		for i := range v {
			v[i] = rename(v[i], name)
		}
	case map[string]any:
		for key := range v {
			v[key] = rename(v[key], name)
		}
	}
	return value
}

func (p pair) compareLeases() {
	p.t.Helper()
	lease := func(name string) map[string]any {
		var l *coordinationv1.Lease
		var err error
		for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) { // a kubelet takes its time
			l, err = p.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(p.t.Context(), name, metav1.GetOptions{})
			if err == nil && len(l.OwnerReferences) > 0 {
				break
			}
			if time.Now().After(deadline) {
				p.t.Fatalf("lease of %s: %v, %v", name, l, err)
			}
		}
		if age := time.Since(l.Spec.RenewTime.Time); age > 20*time.Second {
			p.t.Errorf("lease of %s was renewed %s ago", name, age)
		}
		return normalLease(l)
	}
	if diff := cmp.Diff(lease(kubeletNode), lease(ourNode)); diff != "" {
		p.t.Errorf("leases (-kubelet +nodeprobe):\n%s", diff)
	}
}

func normalLease(l *coordinationv1.Lease) map[string]any {
	object := asMap(l)
	metadata := object["metadata"].(map[string]any)
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields"} {
		delete(metadata, field)
	}
	for _, owner := range metadata["ownerReferences"].([]any) {
		delete(owner.(map[string]any), "uid")
	}
	delete(object["spec"].(map[string]any), "renewTime")
	return rename(object, l.Name).(map[string]any)
}

// ownEvents are those of a kubelet that are not about the node's status: it also evicts
// and collects garbage.
var ownEvents = regexp.MustCompile(`^(Starting|EvictionThresholdMet|FreeDiskSpaceFailed|ImageGCFailed|NodeAllocatableEnforced|CgroupV1|InvalidDiskCapacity|PossibleMemoryBackedVolumesOnDisk)$`)

// compareEvents compares what was told of the node: each reason with its words,
// however often.
func (p pair) compareEvents() {
	p.t.Helper()
	events := func(name string) []string {
		list, err := p.client.CoreV1().Events("").List(p.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + name})
		if err != nil {
			p.t.Fatal(err)
		}
		var texts []string
		for _, e := range list.Items {
			if !ownEvents.MatchString(e.Reason) && !strings.HasPrefix(e.Reason, "OOMKill") { // other tests' victims
				texts = append(texts, strings.ReplaceAll(fmt.Sprint(e.Type, " ", e.Reason, " ", e.Source.Component, " ", e.Message), name, "NODE"))
			}
		}
		slices.Sort(texts)
		return slices.Compact(texts)
	}
	ours := events(ourNode)
	theirs := slices.DeleteFunc(events(kubeletNode), func(text string) bool {
		// It was not ready when it registered. We were: that is no transition.
		return strings.Contains(text, " NodeReady ") && !slices.Contains(ours, text)
	})
	if diff := cmp.Diff(theirs, ours); diff != "" {
		p.t.Errorf("events (-kubelet +nodeprobe):\n%s", diff)
	}
}
