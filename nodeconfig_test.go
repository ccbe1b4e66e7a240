package nodeprobe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodeprobe/nodeprobe/internal/judge/judgetest"
	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// list is a list of resources.
func list(amounts map[string]string) v1.ResourceList {
	l := v1.ResourceList{}
	for name, amount := range amounts {
		l[v1.ResourceName(name)] = resource.MustParse(amount)
	}
	return l
}

// The CPUs that are kept from pods count in place of what else is reserved of cpu, and
// of nothing else; the Config is left as it is.
func TestReservedCPUs(t *testing.T) {
	cfg := Config{
		ReservedCPUs:   cpuset.New(0, 2, 3),
		SystemReserved: list(map[string]string{"cpu": "100m", "memory": "1Gi"}),
		KubeReserved:   list(map[string]string{"cpu": "200m", "memory": "2Gi"}),
	}
	before := []v1.ResourceList{cfg.SystemReserved.DeepCopy(), cfg.KubeReserved.DeepCopy()}
	r := resources(&cfg)
	want := [2]v1.ResourceList{list(map[string]string{"cpu": "3", "memory": "1Gi"}), list(map[string]string{"memory": "2Gi"})}
	if diff := cmp.Diff(want, [2]v1.ResourceList{r.SystemReserved, r.KubeReserved}); diff != "" {
		t.Errorf("reserved (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, []v1.ResourceList{cfg.SystemReserved, cfg.KubeReserved}); diff != "" {
		t.Errorf("the Config is changed:\n%s", diff)
	}
	if r := resources(&Config{ReservedCPUs: cpuset.New(1)}); r.SystemReserved.Cpu().Value() != 1 {
		t.Errorf("of a list that is nil: %v", r.SystemReserved)
	}
}

func TestCheckReserved(t *testing.T) {
	for _, test := range []struct{ online, reserved, memory, want string }{
		{"0-3\n", "", "0", ""},
		{"", "", "0", ""}, // nothing to look at, and nobody looks
		{"0-3\n", "0-2", "0", ""},
		{"0-1,3\n", "1,3", "0", ""},
		{"0-1,3\n", "1-3", "0", "reserved-cpus: 1-3 is not a subset of online-cpus: 0-1,3"},
		{"0\n", "5", "0", "reserved-cpus: 5 is not a subset of online-cpus: 0"},
		{"garbage\n", "0", "0", "devices/system/cpu/online"},
		{"", "0", "0", "check ReservedCPUs: open"},
		{"0-3\n", "", "9Gi", `Resource "memory" has a reservation of 9Gi but capacity of 8Gi`},
	} {
		tr := testtree.New(t, map[string]string{"sys/devices/system/cpu/online": test.online})
		cpus, err := cpuset.Parse(test.reserved)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Sysfs: tr.Sysfs(), ReservedCPUs: cpus, SystemReserved: list(map[string]string{"memory": test.memory})}
		s := &probe.Snapshot{Capacity: probe.Capacity{CPUs: 4, Memory: 8 << 30, MemoryOK: true}}
		err = checkReserved(&cfg, s)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q of %q: %v, want %q", test.reserved, test.online, err, test.want)
		}
	}
}

// The vectors of the kubelet's contract that begin with a configuration. What a file
// comes to is for the command's tests; where the others are held is in
// status/node/conformance_test.go.
func TestVectors(t *testing.T) {
	pages := probe.Capacity{CPUs: 4, Memory: 16384256 << 10, MemoryOK: true, NumHugePages: 1}
	pages.HugePages[0] = probe.HugePages{PageSize: 2 << 20, Total: 512}
	disk := probe.Capacity{CPUs: 4, Memory: 10 << 30, MemoryOK: true, EphemeralStorage: 100 << 30}
	odd := disk
	odd.EphemeralStorage = 129900528 << 10
	type eviction = map[string]string
	for _, test := range []struct {
		name         string
		kube, system map[string]string
		hard         eviction // nil are the defaults
		capacity     probe.Capacity
		want         map[v1.ResourceName]string // allocatable
	}{
		{
			"V1",
			map[string]string{"cpu": "100m", "memory": "200Mi"},
			map[string]string{"memory": "300Mi"},
			eviction{"memory.available": "100Mi"},
			pages,
			map[v1.ResourceName]string{"cpu": "3900m", "memory": "14721280Ki", "hugepages-2Mi": "1Gi", "pods": "110"},
		},
		{"V2", nil, nil, nil, odd, map[v1.ResourceName]string{"ephemeral-storage": "119716326407"}},
		{"V3", nil, nil, nil, disk, map[v1.ResourceName]string{"ephemeral-storage": "96636764000"}},
		{
			"V4",
			map[string]string{"memory": "50Mi"},
			map[string]string{"memory": "100Mi"},
			eviction{"memory.available": "5%"},
			disk,
			map[v1.ResourceName]string{"memory": fmt.Sprint(10<<30 - 694157320)},
		},
		{
			"V31", nil, nil,
			eviction{"memory.available": "200Mi", "nodefs.available": "10%"},
			disk,
			map[v1.ResourceName]string{"memory": "10040Mi", "ephemeral-storage": "96636764000"},
		},
		{
			"V31 with the others turned off", nil, nil,
			eviction{"memory.available": "200Mi"},
			disk,
			map[v1.ResourceName]string{"memory": "10040Mi", "ephemeral-storage": "100Gi"},
		},
		{"nothing is reserved", nil, nil, eviction{}, disk, map[v1.ResourceName]string{"memory": "10Gi"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.NodeName = "192.0.2.7" // its own address: nothing is looked up
			cfg.KubeReserved, cfg.SystemReserved = list(test.kube), list(test.system)
			if test.hard != nil {
				cfg.EvictionReserved = judgetest.Thresholds(t, test.hard)
			}
			content := node.New(nodeConfig(&cfg))
			content.Observe(node.Facts{Snapshot: probe.Snapshot{Time: judgetest.Begin, Capacity: test.capacity}})
			got, _, err := content.Initial(t.Context(), judgetest.Begin)
			if err != nil {
				t.Fatal(err)
			}
			for resource, want := range test.want {
				if q := got.Status.Allocatable[resource]; q.String() != want {
					t.Errorf("%s: %s, want %s", resource, &q, want)
				}
			}
		})
	}
}

// What a container runtime and a Node have for each other.
func TestRuntimeOfTheNode(t *testing.T) {
	for _, test := range []struct {
		spec v1.NodeSpec
		want string
	}{
		{v1.NodeSpec{}, ""},
		{v1.NodeSpec{PodCIDR: "10.0.0.0/24"}, "10.0.0.0/24"},
		{v1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24", "fd00::/64"}}, "10.0.0.0/24,fd00::/64"},
	} {
		if got := podCIDRs(&v1.Node{Spec: test.spec}); got != test.want {
			t.Errorf("%+v: %q, want %q", test.spec, got, test.want)
		}
	}
	for point, want := range map[string]string{"/var/lib/images": "/var/lib/images", "images": "", "": ""} {
		s := &cri.Snapshot{ImageFilesystems: []cri.Filesystem{{Mountpoint: point}, {Mountpoint: "/other"}}}
		if got := imageDirectory(s); got != want {
			t.Errorf("%q: %q, want %q", point, got, want)
		}
	}
	if got := imageDirectory(&cri.Snapshot{}); got != "" {
		t.Errorf("none reported: %q", got)
	}
}
