package node

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// What is reserved is systemReserved + kubeReserved + the hard thresholds on
// memory.available and nodefs.available, and nothing else. TestReservation has V4.
func TestReservationBySource(t *testing.T) {
	type m = map[string]string
	capacity := m{"cpu": "10", "memory": "10Gi", "ephemeral-storage": "100Gi", "hugepages-2Mi": "1Gi", "pods": "110", "example.com/x": "5"}
	for _, test := range []struct {
		name         string
		system, kube m
		evict        pressure.Config
		capacity     m // nil is the one above
		want         m
	}{
		{name: "nothing"},
		{name: "kube only", kube: m{"cpu": "100m", "memory": "100Mi"}, want: m{"cpu": "100m", "memory": "100Mi"}},
		{name: "system only", system: m{"cpu": "50m", "memory": "50Mi"}, want: m{"cpu": "50m", "memory": "50Mi"}},
		{
			name: "both", system: m{"cpu": "50m", "memory": "50Mi"}, kube: m{"cpu": "100m", "memory": "100Mi"},
			want: m{"cpu": "150m", "memory": "150Mi"},
		},
		{
			name: "different resources", system: m{"cpu": "50m"}, kube: m{"memory": "100Mi"},
			want: m{"cpu": "50m", "memory": "100Mi"},
		},
		{
			name: "eviction by quantity", system: m{"memory": "50Mi"}, kube: m{"memory": "100Mi"},
			evict: pressure.Config{Hard: m{"memory.available": "100Mi"}}, want: m{"memory": "250Mi"},
		},
		{
			name: "eviction by percentage", system: m{"memory": "50Mi"}, kube: m{"memory": "100Mi"},
			evict: pressure.Config{Hard: m{"memory.available": "5%"}}, want: m{"memory": "694157320"},
		},
		{
			name: "a hard and a soft threshold: the hard one",
			evict: pressure.Config{
				Hard: m{"memory.available": "100Mi"}, Soft: m{"memory.available": "2Gi"}, SoftGracePeriod: m{"memory.available": "1m"},
			},
			want: m{"memory": "100Mi"},
		},
		{
			name: "a soft threshold alone",
			evict: pressure.Config{
				Soft: m{"memory.available": "2Gi", "nodefs.available": "5%"}, SoftGracePeriod: m{"memory.available": "1m", "nodefs.available": "1m"},
			},
		},

		{
			name: "ephemeral storage", system: m{"ephemeral-storage": "1Gi"}, kube: m{"ephemeral-storage": "2Gi"},
			want: m{"ephemeral-storage": "3Gi"},
		},
		{
			name: "ephemeral storage, eviction by quantity", system: m{"ephemeral-storage": "1Gi"},
			evict: pressure.Config{Hard: m{"nodefs.available": "10Gi"}}, want: m{"ephemeral-storage": "11Gi"},
		},
		{
			name: "ephemeral storage, eviction by percentage", system: m{"ephemeral-storage": "1Gi"},
			evict: pressure.Config{Hard: m{"nodefs.available": "10%"}}, want: m{"ephemeral-storage": "11811160224"},
		},
		{
			name: "ephemeral storage that is not known", system: m{"ephemeral-storage": "1Gi", "cpu": "1"},
			evict:    pressure.Config{Hard: m{"nodefs.available": "10Gi"}},
			capacity: m{"cpu": "10"}, want: m{"cpu": "1"},
		},

		{
			name: "signals that reserve nothing",
			evict: pressure.Config{
				Hard: m{
					"nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%", "containerfs.available": "10%",
					"pid.available": "10%", "allocatableMemory.available": "1Gi",
				},
			},
		},
		{name: "minimum reclaim", evict: pressure.Config{Hard: m{"memory.available": "1Gi"}, MinimumReclaim: m{"memory.available": "2Gi"}}, want: m{"memory": "1Gi"}},
		{
			name:  "thresholds that are turned off",
			evict: pressure.Config{Hard: m{"memory.available": "0%", "nodefs.available": "100%"}},
		},
		{name: "PIDs are never shown", system: m{"pid": "1000"}, kube: m{"pid": "1000"}},
		{name: "nothing of nothing", system: m{"cpu": "0", "memory": "0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := Resources{
				MaxPods: 110, SystemReserved: apitest.Resources(test.system), KubeReserved: apitest.Resources(test.kube),
				Thresholds: thresholds(t, test.evict), LocalStorageCapacityIsolation: true,
			}
			has := capacity
			if test.capacity != nil {
				has = test.capacity
			}
			want := test.want
			if want == nil {
				want = m{}
			}
			apitest.Diff(t, "reservation", want, quantities(cfg.Reservation(apitest.Resources(has))))
		})
	}
}

// More reserved than there is of anything, by any of the sources, is an error at
// start. TestCheck has the words.
func TestCheckBySource(t *testing.T) {
	type m = map[string]string
	for _, test := range []struct {
		name         string
		system, kube m
		hard         m
		noIsolation  bool
		bad          bool
	}{
		{name: "nothing"},
		{name: "exactly all memory", system: m{"memory": "5Gi"}, kube: m{"memory": "4Gi"}, hard: m{"memory.available": "1Gi"}},
		{name: "a byte more", system: m{"memory": "5Gi"}, kube: m{"memory": "4Gi"}, hard: m{"memory.available": "1073741825"}, bad: true},
		{name: "too much for the system", system: m{"memory": "11Gi"}, bad: true},
		{name: "too much for kube", kube: m{"memory": "11Gi"}, bad: true},
		{name: "too much in sum", system: m{"memory": "6Gi"}, kube: m{"memory": "6Gi"}, bad: true},
		{name: "too much by a percentage", system: m{"memory": "9728Mi"}, hard: m{"memory.available": "10%"}, bad: true},
		{name: "too many CPUs", system: m{"cpu": "4"}, kube: m{"cpu": "1m"}, bad: true},
		{name: "too much ephemeral storage", kube: m{"ephemeral-storage": "90Gi"}, hard: m{"nodefs.available": "11%"}, bad: true},
		{name: "as much, where it is not shown", kube: m{"ephemeral-storage": "90Gi"}, hard: m{"nodefs.available": "11%"}, noIsolation: true},
		{name: "PIDs are not checked", system: m{"pid": "1G"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := Resources{
				MaxPods: 110, SystemReserved: apitest.Resources(test.system), KubeReserved: apitest.Resources(test.kube),
				Thresholds: thresholds(t, pressure.Config{Hard: test.hard}), LocalStorageCapacityIsolation: !test.noIsolation,
			}
			err := cfg.Check(&probe.Capacity{CPUs: 4, Memory: 10 * gib, MemoryOK: true, EphemeralStorage: 100 * gib})
			if (err != nil) != test.bad {
				t.Errorf("error %v, want one: %t", err, test.bad)
			}
		})
	}
}

func TestExtendedResource(t *testing.T) {
	for name, want := range map[v1.ResourceName]bool{
		"example.com/x": true, "x/y": true, "nvidia.com/gpu": true,
		"cpu": false, "hugepages-2Mi": false, "pods": false, "x": false,
		"kubernetes.io/x": false, "sub.kubernetes.io/x": false, "requests.example.com/x": false,
		"example.com/": false, "/x": false, "a/b/c": false, "example.com/a b": false,
	} {
		if got := isExtendedResource(name); got != want {
			t.Errorf("%q: %t, want %t", name, got, want)
		}
	}
}
