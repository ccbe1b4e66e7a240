package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// shown is what a configuration makes of a machine's capacity.
func shown(t *testing.T, file string, capacity probe.Capacity) v1.NodeStatus {
	t.Helper()
	c, p, err := parseConfig("f", []byte(header+file))
	if err != nil {
		t.Fatal(err)
	}
	cfg := nodeConfig(&c, p)
	facts := node.Facts{Snapshot: probe.Snapshot{Time: begin, Capacity: capacity}}
	content := node.New(cfg)
	content.Observe(facts)
	initial, _, err := content.Initial(t.Context(), begin)
	if err != nil {
		t.Fatal(err)
	}
	return initial.Status
}

// The vectors of the kubelet's contract that begin with a configuration. Where
// the others are held is said in status/conformance_test.go.
func TestVectors(t *testing.T) {
	const name = "nodeName: 192.0.2.7\n" // its own address: nothing is looked up
	pages := probe.Capacity{CPUs: 4, Memory: 16384256 << 10, MemoryOK: true, NumHugePages: 1}
	pages.HugePages[0] = probe.HugePages{PageSize: 2 << 20, Total: 512}
	disk := probe.Capacity{CPUs: 4, Memory: 10 << 30, MemoryOK: true, EphemeralStorage: 100 << 30}
	odd := disk
	odd.EphemeralStorage = 129900528 << 10
	for _, test := range []struct {
		name, file string
		capacity   probe.Capacity
		want       map[v1.ResourceName]string // allocatable
	}{
		{
			"V1", "kubeReserved: {cpu: 100m, memory: 200Mi}\nsystemReserved: {memory: 300Mi}\nevictionHard: {memory.available: 100Mi}\n", pages,
			map[v1.ResourceName]string{"cpu": "3900m", "memory": "14721280Ki", "hugepages-2Mi": "1Gi", "pods": "110"},
		},
		{"V2", "", odd, map[v1.ResourceName]string{"ephemeral-storage": "119716326407"}},
		{"V3", "", disk, map[v1.ResourceName]string{"ephemeral-storage": "96636764000"}},
		{
			"V4", "systemReserved: {memory: 100Mi}\nkubeReserved: {memory: 50Mi}\nevictionHard: {memory.available: 5%}\n", disk,
			map[v1.ResourceName]string{"memory": fmt.Sprint(10<<30 - 694157320)},
		},
		{
			// On purpose: one threshold does not take the others away, so that the
			// disk's is reserved as well. A kubelet would reserve nothing of it.
			"V31", "evictionHard: {memory.available: 200Mi}\n", disk,
			map[v1.ResourceName]string{"memory": "10040Mi", "ephemeral-storage": "96636764000"},
		},
		{
			"V31 with the others turned off", "evictionHard: {memory.available: 200Mi, nodefs.available: 0%}\n", disk,
			map[v1.ResourceName]string{"memory": "10040Mi", "ephemeral-storage": "100Gi"},
		},
		{
			"a soft threshold without grace reserves nothing", "evictionHard: {memory.available: 0%}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 0s}\n", disk,
			map[v1.ResourceName]string{"memory": "10Gi"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := shown(t, name+test.file, test.capacity)
			for resource, want := range test.want {
				if q := got.Allocatable[resource]; q.String() != want {
					t.Errorf("%s: %s, want %s", resource, &q, want)
				}
			}
		})
	}
	t.Run("V22: 4 digests and 3 tags", func(t *testing.T) {
		got := nodeImages([]cri.Image{{Digests: []string{"a", "b", "c", "d"}, Tags: []string{"x", "y", "z"}}}, -1)
		if diff := cmp.Diff([]string{"a", "b", "c", "d", "x"}, got[0].Names); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	})
	// On purpose: the report frequency does not follow, be it in our own file or in
	// a kubelet's.
	t.Run("V30", func(t *testing.T) {
		own, _, err := parseConfig("f", []byte(header+"nodeStatusUpdateFrequency: 20s\n"))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, kubeletHeader+"nodeStatusUpdateFrequency: 20s\n")
		k, err := kubeletFiles{file: path}.load()
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			config
			want time.Duration
		}{"ours": {own, 5 * time.Minute}, "from a kubelet's": {k.config, 5 * time.Minute}, "a kubelet's": {k.theirs, 20 * time.Second}} {
			if c.NodeStatusUpdateFrequency != 20*time.Second || c.NodeStatusReportFrequency != c.want {
				t.Errorf("%s: report every %v, want %v", name, c.NodeStatusReportFrequency, c.want)
			}
		}
	})
}

// The kubelet's defaults, as its documentation has them, for the fields that we
// share; and ours where they differ on purpose.
func TestDefaultsAreTheKubelets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, kubeletHeader)
	k, err := kubeletFiles{file: path}.load()
	if err != nil {
		t.Fatal(err)
	}
	hard := map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
	withPID := map[string]string{"pid.available": "5%"}
	maps.Copy(withPID, hard)
	for field, want := range map[string]struct{ theirs, ours any }{
		"nodeStatusUpdateFrequency":        {10 * time.Second, nil},
		"nodeStatusReportFrequency":        {5 * time.Minute, nil},
		"nodeLeaseDurationSeconds":         {int32(40), nil},
		"nodeStatusMaxImages":              {int32(50), nil},
		"maxPods":                          {int64(110), nil},
		"podsPerCore":                      {int64(0), nil},
		"evictionHard":                     {hard, withPID},
		"evictionSoft":                     {map[string]string{}, nil},
		"evictionSoftGracePeriod":          {map[string]string{}, nil},
		"evictionMinimumReclaim":           {map[string]string{}, nil},
		"evictionPressureTransitionPeriod": {5 * time.Minute, nil},
		"enforceNodeAllocatable":           {[]string{"pods"}, nil},
		"systemReserved":                   {map[string]string{}, nil},
		"kubeReserved":                     {map[string]string{}, nil},
		"localStorageCapacityIsolation":    {true, nil},
		"registerNode":                     {true, nil},
		"registerWithTaints":               {[]taint{}, nil},
		"providerID":                       {"", nil},
		"enableControllerAttachDetach":     {true, nil},
		"port":                             {int32(10250), nil},
		"containerRuntimeEndpoint":         {"unix:///run/containerd/containerd.sock", ""},
		"shutdownGracePeriod":              {time.Duration(0), nil},
	} {
		if want.ours == nil {
			want.ours = want.theirs
		}
		for name, c := range map[string]struct {
			config
			want any
		}{"a kubelet's": {k.theirs, want.theirs}, "ours": {defaults(), want.ours}} {
			if diff := cmp.Diff(plain(c.want), plain(fieldNamed(reflect.ValueOf(c.config), field).Interface())); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", field, name, diff)
			}
		}
	}
}

// Where node allocatable is enforced for pods, their memory is watched as the
// node's is; a kubelet's files may say otherwise.
func TestEnforceNodeAllocatable(t *testing.T) {
	for list, want := range map[string]bool{
		"": true, "enforceNodeAllocatable:": true, "enforceNodeAllocatable: [pods]": true,
		"enforceNodeAllocatable: [system-reserved, pods]": true, "enforceNodeAllocatable: []": false,
		"enforceNodeAllocatable: [none]": false, "enforceNodeAllocatable: [kube-reserved]": false,
	} {
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, kubeletHeader+list+"\n")
		_, ours, err := parseConfig("f", []byte(header+list+"\n"))
		_, theirs, errTheirs := loadConfig("", kubeletFiles{file: path})
		if err != nil || errTheirs != nil {
			t.Fatalf("%s: %v, %v", list, err, errTheirs)
		}
		for name, p := range map[string]*policy{"ours": ours, "a kubelet's": theirs} {
			watched := slices.ContainsFunc(p.thresholds, func(threshold pressure.Threshold) bool {
				return threshold.Signal == probe.AllocatableMemoryAvailable && threshold.Value.Quantity == 100<<20
			})
			if watched != want {
				t.Errorf("%s, %s: watched %t, want %t", list, name, watched, want)
			}
		}
	}
	_, _, err := parseConfig("f", []byte(header+"enforceNodeAllocatable: [pods, pod]\n"))
	if err == nil || !strings.HasPrefix(err.Error(), `f:3: enforceNodeAllocatable[1]: "pod" is not "pods" or `) {
		t.Errorf("error %v", err)
	}
}

// Zero is what a kubelet takes for unset, and our own file for zero; where that
// makes no sense, it is an error. From a kubelet's file it is unset here too.
func TestZeroInAFile(t *testing.T) {
	const zeros = "maxPods: 0\nevictionPressureTransitionPeriod: 0s\nnodeStatusMaxImages: 0\n"
	own, _, err := parseConfig("f", []byte(header+zeros))
	if err != nil || own.MaxPods != 0 || own.EvictionPressureTransitionPeriod != 0 || own.NodeStatusMaxImages != 0 {
		t.Errorf("ours: %+v, error %v", own, err)
	}
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, kubeletHeader+zeros+"nodeStatusUpdateFrequency: 0s\nnodeStatusReportFrequency: 0s\nnodeLeaseDurationSeconds: 0\nport: 0\n")
	got, _, err := loadConfig("", kubeletFiles{file: path})
	want := defaults()
	want.ContainerRuntimeEndpoint, want.NodeStatusMaxImages = kubeletRuntime, 0
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("a kubelet's: error %v (-want +got):\n%s", err, diff)
	}
	for _, field := range []string{"nodeStatusUpdateFrequency: 0s", "nodeStatusReportFrequency: 0s", "nodeLeaseDurationSeconds: 0", "port: 0"} {
		name, _, _ := strings.Cut(field, ":")
		if _, _, err := parseConfig("f", []byte(header+field+"\n")); err == nil || !strings.HasPrefix(err.Error(), "f:3: "+name+": ") {
			t.Errorf("%s: error %v", field, err)
		}
	}
}

// On purpose: a kubelet refuses labels of Kubernetes' own domains that it may not
// set by itself. Whether this program may is up to the API server: its identity
// need not be a node's.
func TestLabelsOfKubernetes(t *testing.T) {
	c, _, err := parseConfig("f", []byte(header+"nodeLabels: {node-role.kubernetes.io/edge: x, example.k8s.io/y: z, node-restriction.kubernetes.io/a: b}\n"))
	if err != nil || len(c.NodeLabels) != 3 {
		t.Errorf("labels %v, error %v", c.NodeLabels, err)
	}
}

// plain shows a value so that a list or a map that is empty and one that is nil
// are the same, as they are in a file.
func plain(v any) string { return strings.NewReplacer("<nil>", "[]").Replace(fmt.Sprint(v)) }
