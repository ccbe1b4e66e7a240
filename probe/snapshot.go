package probe

import (
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe/mount"
)

// Snapshot is the result of one sample of the node. It is a plain value: it holds no
// pointer into anything live, so it may be copied, kept and compared. A figure that
// could not be read is absent (OK is false); it is never zero instead.
type Snapshot struct {
	// Time is when the sample began. It carries a monotonic reading, so that
	// durations between two snapshots survive a step of the wall clock.
	Time time.Time
	// Took is how long the sample lasted.
	Took time.Duration

	// Signals holds the limited resources, indexed by Signal.
	Signals [NumSignals]Observation

	// NodeFs and ImageFs are where the two filesystems were found.
	NodeFs, ImageFs Filesystem

	// PodsCgroup is the directory of the cgroup that AllocatableMemoryAvailable is
	// about, as this process sees it; "" without one.
	PodsCgroup string

	Memory   Memory
	Swap     Swap
	Tasks    Tasks
	Pressure [NumResources]Stall
	// OOMKills is the kernel's count of processes killed for lack of memory
	// since boot (/proc/vmstat oom_kill, Linux 4.13).
	OOMKills Count
	// Kernel is what the BPF programs counted since they were attached.
	Kernel bpf.Counters

	// Machine and Capacity change rarely; they are re-read once a minute.
	Machine  Machine
	Capacity Capacity

	// Errors is why a source could not be read, by Source. A source that this
	// machine does not have, such as a cgroup for pods or PSI, has no error.
	Errors [NumSources]error
}

// Source is a file, or a group of files, that a sample reads.
type Source uint8

// The sources of a Snapshot.
const (
	SourceMeminfo Source = iota
	SourceMemoryCgroup
	SourcePodsCgroup
	SourceLoadavg
	SourceTaskLimit
	SourcePressureCPU // the three stand in the order of Resource
	SourcePressureMemory
	SourcePressureIO
	SourceVmstat
	SourceNodeFs
	SourceImageFs
	SourceMounts
	SourceMachine
	SourceCPUs
	SourceHugePages

	// NumSources is the length of an array indexed by Source.
	NumSources = int(iota)
)

// String returns the name used in logs and metrics.
func (s Source) String() string {
	return [NumSources]string{
		"meminfo", "memory_cgroup", "pods_cgroup", "loadavg", "task_limit",
		"pressure_cpu", "pressure_memory", "pressure_io", "vmstat",
		"nodefs", "imagefs", "mounts", "machine", "cpus", "hugepages",
	}[s]
}

// Observation is one reading of a Signal.
type Observation struct {
	// Available and Capacity are in the signal's unit. Available may be
	// negative where more is in use than the capacity.
	Available, Capacity int64
	// OK reports whether both could be read.
	OK bool
	// Err is why not. It is nil if there is nothing to read, such as the inodes of
	// a filesystem that does not count them.
	Err error
}

// Filesystem is where a filesystem was found.
type Filesystem struct {
	// Path is a directory on it, as this process sees it; "" if it could not be
	// read.
	Path string
	// Reserved is what only root may fill, in bytes: free and not available.
	Reserved int64
	// Mount is how it is mounted, by /proc/1/mountinfo; the zero Mount if that is
	// not known. It is re-read once a minute, and at each Wake(CauseMounts).
	Mount Mount
	// GaveUp is whether the kernel is known to refuse writes, whatever Mount says: an xfs
	// that was shut down, an ext4 whose journal is aborted. No file tells.
	GaveUp bool
}

// ReadOnly reports whether the filesystem takes no writes, and why: the option of its
// mount that says so, or that it gave up. It is not known if Mount is not, and it did not
// give up.
func (f *Filesystem) ReadOnly() (why string, readOnly, known bool) {
	if option, ro := f.Mount.ReadOnly(); ro {
		return option, true, true
	}
	if f.GaveUp {
		return "it gave up after an error", true, true
	}
	return "", false, f.Mount != (Mount{})
}

// Mount is a line of the node's mount table.
type Mount = mount.Info

// Memory is the node's memory by two accounts, in bytes.
type Memory struct {
	// Total, Free and Available are MemTotal, MemFree and MemAvailable of
	// /proc/meminfo.
	Total, Free, Available int64
	// Usage and InactiveFile are those of the root memory cgroup, and WorkingSet is
	// their difference, not below zero: what the kubelet calls used. They are taken
	// from /proc/meminfo, which costs less than memory.stat.
	Usage, InactiveFile, WorkingSet int64
	// OK reports whether the figures of /proc/meminfo are known, CgroupOK whether
	// those of the cgroup are.
	OK, CgroupOK bool
}

// Swap is SwapTotal and SwapFree of /proc/meminfo, in bytes.
type Swap struct {
	Total, Free int64
	OK          bool
}

// Tasks counts tasks, which are threads.
type Tasks struct {
	// Running and Total are the 4th field of /proc/loadavg.
	Running, Total int64
	// Max is min(kernel.pid_max, kernel.threads-max).
	Max int64
	OK  bool
}

// Resource is what tasks can stall on, as /proc/pressure names it.
type Resource uint8

// The resources that /proc/pressure has a file for.
const (
	CPU Resource = iota
	MemoryResource
	IO

	// NumResources is the length of an array indexed by Resource.
	NumResources = int(iota)
)

// String returns the file's name below /proc/pressure.
func (r Resource) String() string {
	return [NumResources]string{"cpu", "memory", "io"}[r]
}

// Stall is one file of /proc/pressure (Linux 4.20).
type Stall struct {
	// Some is the time in which at least one task stalled.
	Some StallLine
	// Full is the time in which all tasks stalled. FullOK is false if the kernel
	// does not count it (cpu, before Linux 5.13).
	Full   StallLine
	OK     bool
	FullOK bool
	// Err is why OK is false. If the kernel has no PSI, or has it turned off, it is
	// errors.ErrUnsupported, and not among Snapshot.Errors.
	Err error
}

// StallLine is one line of a file of /proc/pressure.
type StallLine struct {
	// Avg10, Avg60 and Avg300 are the share of the last 10, 60 and 300 seconds,
	// from 0 to 1.
	Avg10, Avg60, Avg300 float64
	// Total is the stall time since boot. The kernel counts microseconds.
	Total time.Duration
}

// Count is a counter that may be absent.
type Count struct {
	Value uint64
	OK    bool
}

// Machine identifies the node. A fact that the machine does not have is "".
type Machine struct {
	// MachineID is /etc/machine-id, else /var/lib/dbus/machine-id.
	MachineID string
	// SystemUUID is /sys/class/dmi/id/product_uuid (root only), else the device
	// tree's, else MachineID.
	SystemUUID string
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string
	// KernelVersion is the release of uname(2).
	KernelVersion string
	// OSImage is PRETTY_NAME of os-release.
	OSImage string
	// OperatingSystem and Architecture are Go's names for them.
	OperatingSystem, Architecture string
	// NoCPUQuota means that the kernel cannot limit the CPU time of a cgroup, so that
	// CPU limits of pods have no effect (cgroup v1 without CONFIG_CFS_BANDWIDTH).
	NoCPUQuota bool
}

// Capacity is what the node has.
type Capacity struct {
	// CPUs is the number of CPUs online; 0 if it could not be read.
	CPUs int64
	// Memory and Swap are MemTotal and SwapTotal in bytes; MemoryOK reports whether
	// they could be read.
	Memory, Swap int64
	MemoryOK     bool
	// EphemeralStorage is the size of the filesystem that holds the root
	// directory, in bytes; 0 if it could not be read.
	EphemeralStorage int64
	// HugePages has one entry per page size that the machine supports, in ascending
	// order; NumHugePages is the number of entries.
	HugePages    [MaxHugePageSizes]HugePages
	NumHugePages int
}

// MaxHugePageSizes bounds Capacity.HugePages. arm64 has the most page sizes, 4.
const MaxHugePageSizes = 8

// HugePages is the persistent pool of one page size.
type HugePages struct {
	// PageSize is in bytes.
	PageSize int64
	// Total is the number of pages in the pool, used or not.
	Total int64
}
