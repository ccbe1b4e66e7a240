package probe

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

const gi = 1 << 30

// fullMachine has everything: cgroup v2, pods kept by the systemd driver,
// pressure, firmware. The figures are vectors V5 and V8 of the compatibility
// contract.
var fullMachine = machine{
	"proc/meminfo":                   meminfoText,
	"proc/loadavg":                   loadavgText,
	"proc/vmstat":                    vmstatText,
	"proc/pressure/cpu":              stallText,
	"proc/pressure/memory":           stallText,
	"proc/pressure/io":               stallText,
	"proc/sys/kernel/pid_max":        "4194304\n",
	"proc/sys/kernel/threads-max":    "127000\n",
	"proc/sys/kernel/random/boot_id": "ed1304b0-28d0-44a5-98a2-98159614029c\n",
	"proc/1/mountinfo":               "1 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro\n",

	"sys/fs/cgroup/memory.stat":                   statV2Text,
	"sys/fs/cgroup/kubepods.slice/memory.stat":    "anon 1\nfile 2\ninactive_file 1073741824\n",
	"sys/fs/cgroup/kubepods.slice/memory.current": "4294967296\n",
	"sys/fs/cgroup/kubepods.slice/memory.max":     "7516192768\n",
	"sys/devices/system/cpu/online":               "0-3\n",
	hugepages + "hugepages-2048kB/nr_hugepages":   "512\n",
	"sys/class/dmi/id/product_uuid":               "4c4c4544-0042-3510-8053-b4c04f564d31\n",
	"etc/os-release":                              "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
	"etc/machine-id":                              "3d1219c7c4c5404aaa1f6d2a48adfda4\n",
	"var/lib/kubelet/kubelet.lock":                "",
}

// fullSnapshot is what fullMachine comes to.
func fullSnapshot() Snapshot {
	stall := Stall{
		Some: StallLine{Avg10: 0.015, Avg60: 0.0007, Avg300: 1, Total: 513682950e3},
		Full: StallLine{Avg60: 0.0001, Avg300: 0.0235, Total: 104735e3},
		OK:   true, FullOK: true,
	}
	disk, inodes := observe(250*4096, 1000*4096), observe(500, 600)
	return Snapshot{
		Signals: [NumSignals]Observation{
			MemoryAvailable:            observe(4*gi, 8*gi), // V5
			AllocatableMemoryAvailable: observe(4*gi, 7*gi),
			NodeFsAvailable:            disk,
			NodeFsInodesFree:           inodes,
			ImageFsAvailable:           disk,
			ImageFsInodesFree:          inodes,
			PIDAvailable:               observe(50, 127000), // V8
			MemAvailable:               observe(5*gi, 8*gi),
			SwapAvailable:              observe(gi+gi/2, 2*gi),
		},
		Memory: Memory{
			Total: 8 * gi, Free: gi, Available: 5 * gi,
			Usage: 5 * gi, InactiveFile: gi, WorkingSet: 4 * gi, OK: true, CgroupOK: true,
		},
		Swap:     Swap{Total: 2 * gi, Free: gi + gi/2, OK: true},
		Tasks:    Tasks{Running: 3, Total: 126950, Max: 127000, OK: true},
		Pressure: [NumResources]Stall{stall, stall, stall},
		OOMKills: Count{Value: 184, OK: true},
		Machine: Machine{
			MachineID:  "3d1219c7c4c5404aaa1f6d2a48adfda4",
			SystemUUID: "4c4c4544-0042-3510-8053-b4c04f564d31",
			BootID:     "ed1304b0-28d0-44a5-98a2-98159614029c",
			OSImage:    "Debian GNU/Linux 12 (bookworm)",
		},
		Capacity: Capacity{
			CPUs: 4, Memory: 8 * gi, Swap: 2 * gi, MemoryOK: true, EphemeralStorage: 1000 * 4096,
			HugePages: [MaxHugePageSizes]HugePages{{2 << 20, 512}}, NumHugePages: 1,
		},
	}
}

// v1 moves the machine's memory controller to cgroup v1, below sys/fs/cgroup.
func (m machine) v1() machine {
	const root = "sys/fs/cgroup/memory/"
	return m.without("sys/fs/cgroup").with(machine{
		root + "memory.stat":                    statV1Text,
		root + "memory.usage_in_bytes":          "5368709120\n",
		root + "memory.limit_in_bytes":          "9223372036854771712\n",
		root + "kubepods/memory.stat":           "inactive_file 5\ntotal_inactive_file 1000\n",
		root + "kubepods/memory.usage_in_bytes": "5000\n",
		root + "kubepods/memory.limit_in_bytes": "104857600\n",
	})
}

func TestSnapshotOfMachines(t *testing.T) {
	const pods = "sys/fs/cgroup/kubepods.slice"
	noPods := func(s *Snapshot) { s.Signals[AllocatableMemoryAvailable] = Observation{} }
	v1Memory := func(s *Snapshot) {
		s.Signals[AllocatableMemoryAvailable] = observe(104857600-4000, 104857600)
	}
	for _, test := range []struct {
		name string
		machine
		want func(*Snapshot) // what differs from fullSnapshot
	}{
		{"cgroup v2", fullMachine, func(*Snapshot) {}},
		{"cgroup v1", fullMachine.v1(), v1Memory},
		{
			"hybrid: v1 has the memory controller",
			fullMachine.v1().with(machine{"sys/fs/cgroup/unified/cgroup.controllers": ""}), v1Memory,
		},
		{
			"hybrid: v2 has the memory controller",
			fullMachine.without("sys/fs/cgroup").with(machine{
				"sys/fs/cgroup/cpu/tasks": "", "sys/fs/cgroup/unified/memory.stat": statV2Text,
			}), noPods,
		},
		{ // as in a container that is a node
			"the root of a cgroup namespace", fullMachine.with(machine{
				"sys/fs/cgroup/memory.stat": "anon 4096\nfile 0\ninactive_file 0\n", "sys/fs/cgroup/memory.current": "8192\n",
			}), func(*Snapshot) {},
		},
		{
			"pods kept by the cgroupfs driver",
			fullMachine.without(pods).with(machine{
				"sys/fs/cgroup/kubepods/memory.stat": "inactive_file 9\n", "sys/fs/cgroup/kubepods/memory.current": "5\n",
				"sys/fs/cgroup/kubepods/memory.max": "1000\n",
			}),
			func(s *Snapshot) { s.Signals[AllocatableMemoryAvailable] = observe(1000, 1000) },
		},
		{"no pods", fullMachine.without(pods), noPods},
		{"pods without a limit", fullMachine.with(machine{pods + "/memory.max": "max\n"}), noPods},
		{
			"pods at the highest limit", fullMachine.with(machine{pods + "/memory.max": "4611686018427387904\n"}),
			func(s *Snapshot) { s.Signals[AllocatableMemoryAvailable] = observe(1<<62-3*gi, 1<<62) },
		},
		{"pods above it", fullMachine.with(machine{pods + "/memory.max": "4611686018427387905\n"}), noPods},
		{
			"a limit of 0 is the machine, as in the kubelet", fullMachine.with(machine{pods + "/memory.max": "0\n"}),
			func(s *Snapshot) { s.Signals[AllocatableMemoryAvailable] = observe(5*gi, 8*gi) },
		},
		{
			"pods above their limit", fullMachine.with(machine{pods + "/memory.max": "1073741824\n"}),
			func(s *Snapshot) { s.Signals[AllocatableMemoryAvailable] = observe(-2*gi, gi) },
		},
		{ // V6
			"more inactive than used",
			fullMachine.with(machine{"proc/meminfo": replaceField(meminfoText, "Inactive(file)", "6291456")}),
			func(s *Snapshot) {
				s.Memory.InactiveFile, s.Memory.WorkingSet = 6*gi, 0
				s.Signals[MemoryAvailable] = observe(8*gi, 8*gi)
			},
		},
		{
			"more tasks than allowed", fullMachine.with(machine{"proc/sys/kernel/pid_max": "100000\n"}),
			func(s *Snapshot) {
				s.Tasks.Max = 100000
				s.Signals[PIDAvailable] = observe(-26950, 100000)
			},
		},
		{
			"pressure of cpu before Linux 5.13", fullMachine.with(machine{"proc/pressure/cpu": strings.SplitAfter(stallText, "\n")[0]}),
			func(s *Snapshot) { s.Pressure[CPU].Full, s.Pressure[CPU].FullOK = StallLine{}, false },
		},
		{
			"board without firmware", fullMachine.without("sys/class/dmi", hugepages[:len(hugepages)-1]),
			func(s *Snapshot) {
				s.Machine.SystemUUID = s.Machine.MachineID
				s.Capacity.HugePages, s.Capacity.NumHugePages = [MaxHugePageSizes]HugePages{}, 0
			},
		},
		{
			"no swap", fullMachine.with(machine{"proc/meminfo": replaceField(meminfoText, "SwapTotal", "0", "SwapFree", "0")}),
			func(s *Snapshot) {
				s.Swap, s.Capacity.Swap, s.Signals[SwapAvailable] = Swap{OK: true}, 0, Observation{}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := fullSnapshot()
			test.want(&want)
			s := test.machine.boot(t).sampler(t)
			for range 2 { // with files just opened, and kept open
				if d := diff(want, *s.Sample()); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			}
		})
	}
}

// A kernel without a memory controller (cgroup_disable=memory, the default of the
// Raspberry Pi), or before Linux 5.8 without its file in the root of cgroup v2, tells
// in meminfo what the node uses.
func TestSnapshotWithoutMemoryController(t *testing.T) {
	for _, file := range []string{"cgroup.controllers", "unified/cgroup.controllers"} {
		n := fullMachine.without("sys/fs/cgroup").with(machine{"sys/fs/cgroup/" + file: "cpuset cpu io pids\n"}).boot(t)
		want := fullSnapshot()
		want.Signals[AllocatableMemoryAvailable] = Observation{}
		if d := diff(want, *n.sampler(t).Sample()); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
	}
}

func TestPodsCgroup(t *testing.T) {
	for dir, m := range map[string]machine{
		"sys/fs/cgroup/kubepods.slice": fullMachine, "sys/fs/cgroup/memory/kubepods": fullMachine.v1(), "": fullMachine.without("sys/fs/cgroup"),
	} {
		n := m.boot(t)
		want := ""
		if dir != "" {
			want = n.Path(dir)
		}
		if got := n.sampler(t).Sample().PodsCgroup; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Where there are no cgroups at all, /sys may not be the node's.
func TestSnapshotWithoutCgroups(t *testing.T) {
	n := fullMachine.without("sys/fs/cgroup").boot(t)
	snap := *n.sampler(t).Sample()
	want := fullSnapshot()
	want.Signals[AllocatableMemoryAvailable] = Observation{}
	want.Memory.Usage, want.Memory.InactiveFile, want.Memory.WorkingSet, want.Memory.CgroupOK = 0, 0, 0, false
	probetest.CheckError(t, snap.Errors[SourceMemoryCgroup], fs.ErrNotExist)
	want.Errors[SourceMemoryCgroup] = snap.Errors[SourceMemoryCgroup]
	want.Signals[MemoryAvailable] = Observation{Err: snap.Signals[MemoryAvailable].Err}
	probetest.CheckError(t, snap.Signals[MemoryAvailable].Err, fs.ErrNotExist)
	if d := diff(want, snap); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestSnapshotOfNothing(t *testing.T) {
	snap := *machine{}.boot(t).sampler(t).Sample()
	for i, o := range snap.Signals {
		disk := Signal(i) >= NodeFsAvailable && Signal(i) <= ImageFsInodesFree
		if o.OK != disk {
			t.Errorf("%s is %+v", Signal(i), o)
		}
	}
	for i, err := range snap.Errors {
		switch src := Source(i); src {
		case SourcePodsCgroup, SourceNodeFs, SourceImageFs, SourceHugePages:
			if err != nil {
				t.Errorf("%s: %v", src, err)
			}
		default:
			if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", src, err)
			}
		}
	}
}
