package node

import (
	"errors"
	"maps"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// capacityOf makes facts of a capacity alone.
func capacityOf(change func(c *probe.Capacity)) *Facts {
	f := machineFacts(apitest.Epoch)
	f.Snapshot.Capacity.HugePages, f.Snapshot.Capacity.NumHugePages = [probe.MaxHugePageSizes]probe.HugePages{}, 0
	change(&f.Snapshot.Capacity)
	return &f
}

func hugePages(c *probe.Capacity, size, total int64) {
	c.HugePages[c.NumHugePages] = probe.HugePages{PageSize: size, Total: total}
	c.NumHugePages++
}

// The cases are the kubelet's TestMachineInfo, with V1 to V3.
func TestMachineInfo(t *testing.T) {
	small := func(c *probe.Capacity) { c.CPUs, c.Memory, c.EphemeralStorage = 2, 1024, 5000 }
	for _, test := range []struct {
		name               string
		facts              *Facts
		cfg                Resources
		hard               map[string]string
		noIsolation        bool
		had, hadToGive     map[string]string
		want, wantAllocate map[string]string // what is not the same as in want
	}{
		{
			name: "V1: reservations of all kinds, huge pages",
			facts: capacityOf(func(c *probe.Capacity) {
				c.EphemeralStorage = 0
				hugePages(c, 2*mib, 512)
			}),
			cfg: Resources{
				MaxPods:        110,
				KubeReserved:   apitest.Resources(map[string]string{"cpu": "100m", "memory": "200Mi"}),
				SystemReserved: apitest.Resources(map[string]string{"memory": "300Mi", "pid": "1000"}),
			},
			hard:         map[string]string{"memory.available": "100Mi"},
			want:         map[string]string{"cpu": "4", "memory": "16384256Ki", "pods": "110", "hugepages-2Mi": "1Gi"},
			wantAllocate: map[string]string{"cpu": "3900m", "memory": "14721280Ki"},
		},
		{
			name:         "V2: a percentage is a float32",
			facts:        capacityOf(func(*probe.Capacity) {}),
			hard:         map[string]string{"nodefs.available": "10%"},
			want:         map[string]string{"cpu": "4", "memory": "16384256Ki", "pods": "110", "ephemeral-storage": "129900528Ki"},
			wantAllocate: map[string]string{"ephemeral-storage": "119716326407"},
		},
		{
			name:         "V3",
			facts:        capacityOf(func(c *probe.Capacity) { c.EphemeralStorage = 100 * gib }),
			hard:         map[string]string{"nodefs.available": "10%"},
			want:         map[string]string{"cpu": "4", "memory": "16384256Ki", "pods": "110", "ephemeral-storage": "100Gi"},
			wantAllocate: map[string]string{"ephemeral-storage": "96636764000"},
		},
		{
			name:  "pods per core below the maximum",
			facts: capacityOf(small), cfg: Resources{MaxPods: 110, PodsPerCore: 10},
			want: map[string]string{"cpu": "2", "memory": "1Ki", "pods": "20", "ephemeral-storage": "5000"},
		},
		{
			name:  "pods per core above the maximum",
			facts: capacityOf(small), cfg: Resources{MaxPods: 110, PodsPerCore: 100},
			want: map[string]string{"cpu": "2", "memory": "1Ki", "pods": "110", "ephemeral-storage": "5000"},
		},
		{
			name:  "more is reserved than there is",
			facts: capacityOf(small), cfg: Resources{MaxPods: 110, SystemReserved: apitest.Resources(map[string]string{"cpu": "40", "memory": "1Gi", "ephemeral-storage": "5k"})},
			want:         map[string]string{"cpu": "2", "memory": "1Ki", "pods": "110", "ephemeral-storage": "5000"},
			wantAllocate: map[string]string{"cpu": "0", "memory": "0", "ephemeral-storage": "0"},
		},
		{
			name: "huge pages of two sizes, one without pages",
			facts: capacityOf(func(c *probe.Capacity) {
				c.Memory = 8 * gib
				hugePages(c, 64*kib, 16)
				hugePages(c, gib, 0)
			}),
			cfg:          Resources{MaxPods: 110, KubeReserved: apitest.Resources(map[string]string{"memory": "1Gi"})},
			want:         map[string]string{"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "129900528Ki", "hugepages-64Ki": "1Mi", "hugepages-1Gi": "0"},
			wantAllocate: map[string]string{"memory": "7167Mi"},
		},
		{
			name: "more huge pages than memory",
			facts: capacityOf(func(c *probe.Capacity) {
				c.Memory = 1024
				hugePages(c, 2*mib, 1)
				hugePages(c, gib, 1)
			}),
			want:         map[string]string{"cpu": "4", "memory": "1Ki", "pods": "110", "ephemeral-storage": "129900528Ki", "hugepages-2Mi": "2Mi", "hugepages-1Gi": "1Gi"},
			wantAllocate: map[string]string{"memory": "0"},
		},
		{
			name: "without isolation there is no ephemeral storage", noIsolation: true,
			facts: capacityOf(func(*probe.Capacity) {}), hard: map[string]string{"nodefs.available": "10%"},
			want: map[string]string{"cpu": "4", "memory": "16384256Ki", "pods": "110"},
		},
		{
			name: "without isolation nothing is taken from what an older status says", noIsolation: true,
			facts: capacityOf(func(*probe.Capacity) {}), hard: map[string]string{"nodefs.available": "10%"},
			had:  map[string]string{"ephemeral-storage": "10Gi"},
			want: map[string]string{"cpu": "4", "memory": "16384256Ki", "pods": "110", "ephemeral-storage": "10Gi"},
		},
		{
			name:         "resources of others are left alone, those too of which not all can be given",
			facts:        capacityOf(small),
			had:          map[string]string{"example.com/dongle": "4", "vendor.kubernetes.io/gpu": "2", "cpu": "64", "hugepages-2Mi": "0"},
			hadToGive:    map[string]string{"example.com/dongle": "3", "vendor.kubernetes.io/gpu": "0", "cpu": "64"},
			want:         map[string]string{"cpu": "2", "memory": "1Ki", "pods": "110", "ephemeral-storage": "5000", "example.com/dongle": "4", "vendor.kubernetes.io/gpu": "2", "hugepages-2Mi": "0"},
			wantAllocate: map[string]string{"example.com/dongle": "3", "vendor.kubernetes.io/gpu": "0"},
		},
		{
			name:  "a resource that is advertised by its capacity alone is given",
			facts: capacityOf(small),
			had:   map[string]string{"example.com/dongle": "4"},
			want:  map[string]string{"cpu": "2", "memory": "1Ki", "pods": "110", "ephemeral-storage": "5000", "example.com/dongle": "4"},
		},
		{
			name:      "of a resource no more is given than there is",
			facts:     capacityOf(small),
			had:       map[string]string{"example.com/dongle": "2"},
			hadToGive: map[string]string{"example.com/dongle": "4"},
			want:      map[string]string{"cpu": "2", "memory": "1Ki", "pods": "110", "ephemeral-storage": "5000", "example.com/dongle": "2"},
		},
		{
			name:      "what Kubernetes itself names is computed, whatever it says",
			facts:     capacityOf(small),
			had:       map[string]string{"hugepages-1Gi": "0", "attachable-volumes-csi-d": "8"},
			hadToGive: map[string]string{"hugepages-1Gi": "1Gi", "attachable-volumes-csi-d": "3"},
			want:      map[string]string{"cpu": "2", "memory": "1Ki", "pods": "110", "ephemeral-storage": "5000", "hugepages-1Gi": "0", "attachable-volumes-csi-d": "8"},
		},
		{
			name:         "an extended resource that is gone cannot be given, a native leftover stays",
			facts:        capacityOf(small),
			hadToGive:    map[string]string{"example.com/gone": "1", "hugepages-1Gi": "1Gi", "kubernetes.io/native": "1", "requests.example.com/x": "1"},
			want:         map[string]string{"cpu": "2", "memory": "1Ki", "pods": "110", "ephemeral-storage": "5000"},
			wantAllocate: map[string]string{"hugepages-1Gi": "1Gi", "kubernetes.io/native": "1", "requests.example.com/x": "1"},
		},
		{
			name:  "what cannot be read keeps its value and its reservation",
			facts: capacityOf(func(c *probe.Capacity) { *c = probe.Capacity{} }),
			cfg: Resources{
				MaxPods: 110, PodsPerCore: 10,
				SystemReserved: apitest.Resources(map[string]string{"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}),
			},
			hard:         map[string]string{"memory.available": "1Gi"},
			had:          map[string]string{"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "40", "hugepages-1Gi": "1Gi"},
			want:         map[string]string{"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "40", "hugepages-1Gi": "1Gi"},
			wantAllocate: map[string]string{"cpu": "3", "memory": "5Gi", "ephemeral-storage": "9Gi"},
		},
		{
			name:  "what cannot be read on a new node is absent, not zero",
			facts: capacityOf(func(c *probe.Capacity) { *c = probe.Capacity{} }),
			cfg:   Resources{MaxPods: 110, PodsPerCore: 10},
			want:  map[string]string{},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := test.cfg
			if cfg.MaxPods == 0 {
				cfg = testResources()
			}
			cfg.LocalStorageCapacityIsolation = !test.noIsolation
			cfg.Thresholds = thresholds(t, pressure.Config{Hard: test.hard})
			node := &v1.Node{}
			node.Status.Capacity, node.Status.Allocatable = apitest.Resources(test.had), apitest.Resources(test.hadToGive)
			set(t, node, machineInfo(&cfg, status.DefaultFieldManager, test.facts))
			apitest.Diff(t, "capacity", test.want, quantities(node.Status.Capacity))
			allocatable := maps.Clone(test.want)
			maps.Copy(allocatable, test.wantAllocate)
			apitest.Diff(t, "allocatable", allocatable, quantities(node.Status.Allocatable))
			// Running it again changes nothing.
			again := node.DeepCopy()
			set(t, again, machineInfo(&cfg, status.DefaultFieldManager, test.facts))
			if statusChanged(&node.Status, &again.Status) {
				t.Error("the second time is different")
			}
		})
	}
}

// Who advertises a resource by a patch of its capacity alone has allocatable follow;
// who writes allocatable, too, is not corrected, and a user's setter writes both.
func TestAllocatableFollowsCapacity(t *testing.T) {
	const name = "example.com/dongle"
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: "status", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const (
		capacity    = `{"f:status":{"f:capacity":{"f:example.com/dongle":{}}}}`
		allocatable = `{"f:status":{"f:allocatable":{"f:example.com/dongle":{}}}}`
		both        = `{"f:status":{"f:allocatable":{"f:example.com/dongle":{}},"f:capacity":{".":{},"f:example.com/dongle":{}}}}`
		other       = `{"f:status":{"f:allocatable":{"f:example.com/other":{}},"f:capacity":{"f:cpu":{}}}}`
	)
	for test, c := range map[string]struct {
		managers []metav1.ManagedFieldsEntry
		want     string
	}{
		"by capacity alone":       {[]metav1.ManagedFieldsEntry{entry("kubectl", capacity), entry(status.DefaultFieldManager, allocatable)}, "8"},
		"by both":                 {[]metav1.ManagedFieldsEntry{entry("plugin", both), entry(status.DefaultFieldManager, other)}, "3"},
		"allocatable by a third":  {[]metav1.ManagedFieldsEntry{entry("kubectl", capacity), entry("plugin", allocatable), entry(status.DefaultFieldManager, other)}, "3"},
		"by two of the same mind": {[]metav1.ManagedFieldsEntry{entry("kubectl", capacity), entry("plugin", allocatable), entry(status.DefaultFieldManager, allocatable)}, "3"},
		"by a user's setter":      {[]metav1.ManagedFieldsEntry{entry(status.DefaultFieldManager, both)}, "3"},
		"by nobody who is known":  {nil, "3"},
		"by garbage":              {[]metav1.ManagedFieldsEntry{entry(status.DefaultFieldManager, `[`), {Manager: status.DefaultFieldManager}}, "3"},
	} {
		t.Run(test, func(t *testing.T) {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: c.managers}}
			node.Status.Capacity, node.Status.Allocatable = apitest.Resources(map[string]string{name: "8"}), apitest.Resources(map[string]string{name: "3"})
			cfg := testResources()
			set(t, node, machineInfo(&cfg, status.DefaultFieldManager, capacityOf(func(*probe.Capacity) {})))
			if got := node.Status.Allocatable[name]; got.String() != c.want {
				t.Errorf("allocatable %s of 8, want %s", got.String(), c.want)
			}
		})
	}
}

// V4 is about a threshold that a percentage makes no whole number of.
func TestReservation(t *testing.T) {
	cfg := Resources{
		SystemReserved: apitest.Resources(map[string]string{"memory": "100Mi", "pid": "1k"}),
		KubeReserved:   apitest.Resources(map[string]string{"memory": "50Mi"}),
		Thresholds: thresholds(t, pressure.Config{
			Hard:                   map[string]string{"memory.available": "5%", "imagefs.available": "15%", "nodefs.inodesFree": "5%", "pid.available": "5%"},
			Soft:                   map[string]string{"memory.available": "50%", "nodefs.available": "50%"},
			SoftGracePeriod:        map[string]string{"memory.available": "1m", "nodefs.available": "1m"},
			MinimumReclaim:         map[string]string{"memory.available": "1Gi"},
			EnforceNodeAllocatable: []string{"pods"},
		}),
		LocalStorageCapacityIsolation: true,
	}
	got := cfg.Reservation(apitest.Resources(map[string]string{"cpu": "4", "memory": "10Gi", "ephemeral-storage": "10Gi", "pods": "110"}))
	apitest.Diff(t, "reservation", map[string]string{"memory": "694157320"}, quantities(got))
}

func TestMachineIdentity(t *testing.T) {
	facts := machineFacts(apitest.Epoch)
	facts.Snapshot.Capacity.Swap = 2 * gib
	node := &v1.Node{}
	cfg := testResources()
	setter := machineInfo(&cfg, status.DefaultFieldManager, &facts)
	set(t, node, setter)
	swap := 2 * gib
	want := v1.NodeSystemInfo{MachineID: "machine", SystemUUID: "uuid", BootID: "boot", Swap: &v1.NodeSwapStatus{Capacity: &swap}}
	apitest.Diff(t, "first", want, node.Status.NodeInfo)

	facts.Snapshot.Capacity.Swap, facts.Snapshot.Capacity.MemoryOK = 0, false
	facts.Snapshot.Machine = probe.Machine{}
	set(t, node, setter)
	apitest.Diff(t, "what cannot be read is kept", want, node.Status.NodeInfo)

	facts.Snapshot.Capacity.MemoryOK = true
	facts.Snapshot.Machine = probe.Machine{MachineID: "m2", SystemUUID: "u2", BootID: "b2"}
	set(t, node, setter)
	want = v1.NodeSystemInfo{MachineID: "m2", SystemUUID: "u2", BootID: "b2"}
	apitest.Diff(t, "rebooted without swap", want, node.Status.NodeInfo)
}

func TestVersionInfo(t *testing.T) {
	facts := machineFacts(apitest.Epoch)
	node := &v1.Node{}
	node.Status.NodeInfo = v1.NodeSystemInfo{
		KubeletVersion: "v1.32.0", KubeProxyVersion: "v1.32.0", //nolint:staticcheck // the deprecated field is to be cleared
		ContainerRuntimeVersion: "containerd://2.0.0", MachineID: "m",
	}
	set(t, node, versionInfo("v1.36.3", &facts))
	want := v1.NodeSystemInfo{
		KernelVersion: "6.12.0", OSImage: "Debian GNU/Linux 13 (trixie)", KubeletVersion: "v1.36.3",
		ContainerRuntimeVersion: "containerd://2.0.0", MachineID: "m",
	}
	apitest.Diff(t, "first", want, node.Status.NodeInfo)

	facts.Snapshot.Machine = probe.Machine{KernelVersion: "6.13.0"}
	set(t, node, versionInfo("v1.36.3", &facts))
	want.KernelVersion = "6.13.0"
	apitest.Diff(t, "OS image cannot be read", want, node.Status.NodeInfo)
}

func TestDaemonEndpointsAndGoRuntime(t *testing.T) {
	node := &v1.Node{}
	node.Status.NodeInfo.OperatingSystem = "plan9"
	for _, port := range []int32{0, 10250} {
		set(t, node, daemonEndpoints(port))
		apitest.Diff(t, "port", port, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	}
	set(t, node, goRuntime())
	apitest.Diff(t, "runtime", v1.NodeSystemInfo{OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH}, node.Status.NodeInfo)
}

// Before the first sample there is nothing to say, which is not that the machine
// has nothing.
func TestNoSampleYet(t *testing.T) {
	cfg := testResources()
	for name, setter := range map[string]Setter{
		"machine": machineInfo(&cfg, status.DefaultFieldManager, &Facts{}),
		"version": versionInfo("v1", &Facts{}),
	} {
		node := &v1.Node{}
		if err := setter(t.Context(), node); !errors.Is(err, errNoFacts) {
			t.Errorf("%s: %v, want %v", name, err, errNoFacts)
		}
		apitest.Diff(t, name, &v1.Node{}, node)
	}
}

func TestCheck(t *testing.T) {
	facts := machineFacts(apitest.Epoch)
	for _, test := range []struct {
		name, want string
		cfg        Resources
	}{
		{"nothing reserved", "", testResources()},
		{"all of it", "", Resources{SystemReserved: apitest.Resources(map[string]string{"cpu": "4", "memory": "16384256Ki", "pid": "1M"})}},
		{
			"too much of two", `invalid Node Allocatable configuration. Resource "cpu" has a reservation of 4001m but capacity of 4. Expected capacity >= reservation.` +
				` Resource "memory" has a reservation of 32Gi but capacity of 16384256Ki. Expected capacity >= reservation.`,
			Resources{
				SystemReserved: apitest.Resources(map[string]string{"cpu": "4", "memory": "30Gi"}),
				KubeReserved:   apitest.Resources(map[string]string{"cpu": "1m", "memory": "1Gi", "ephemeral-storage": "1Ti"}),
				Thresholds:     thresholds(t, pressure.Config{Hard: map[string]string{"memory.available": "1Gi"}}),
			},
		},
		{
			"too much ephemeral storage", `invalid Node Allocatable configuration. Resource "ephemeral-storage" has a reservation of 1Ti but capacity of 129900528Ki. Expected capacity >= reservation.`,
			Resources{KubeReserved: apitest.Resources(map[string]string{"ephemeral-storage": "1Ti"}), LocalStorageCapacityIsolation: true},
		},
	} {
		apitest.Diff(t, test.name, test.want, apitest.ErrorText(test.cfg.Check(&facts.Snapshot.Capacity)))
	}
	unread := Resources{SystemReserved: apitest.Resources(map[string]string{"cpu": "1", "memory": "1Gi"})}
	if err := unread.Check(&probe.Capacity{}); err != nil {
		t.Errorf("capacity that could not be read is no reason not to start: %v", err)
	}
}
