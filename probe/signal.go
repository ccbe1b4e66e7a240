package probe

import "fmt"

// Signal names one limited resource of the node. The values are indexes into
// Snapshot.Signals; the names that users write are those of the kubelet's
// eviction signals, and two of our own.
type Signal uint8

const (
	// MemoryAvailable is MemTotal minus the working set of the root memory
	// cgroup, in bytes: the kubelet's figure, not the kernel's MemAvailable.
	MemoryAvailable Signal = iota
	// AllocatableMemoryAvailable is the same for the cgroup that holds all
	// pods, in bytes. It is absent where there is no such cgroup, or where it
	// has no limit. It may be a second old where the kernel takes long to add it up.
	AllocatableMemoryAvailable
	// NodeFsAvailable is the space that unprivileged users may still fill on
	// the filesystem that holds the root directory, in bytes.
	NodeFsAvailable
	// NodeFsInodesFree is the number of free inodes there. Filesystems that do
	// not count inodes (btrfs, vfat) have no such signal.
	NodeFsInodesFree
	// ImageFsAvailable is NodeFsAvailable for the filesystem that holds the
	// container images, in bytes.
	ImageFsAvailable
	// ImageFsInodesFree is NodeFsInodesFree for that filesystem.
	ImageFsInodesFree
	// ContainerFsAvailable exists for configurations written for the kubelet.
	// The kubelet itself replaces its thresholds by those of nodefs or imagefs,
	// so it is never observed here.
	ContainerFsAvailable
	// ContainerFsInodesFree is the same for inodes.
	ContainerFsInodesFree
	// PIDAvailable is min(pid_max, threads-max) minus the tasks (threads, not
	// processes) that exist, in tasks.
	PIDAvailable
	// MemAvailable is MemAvailable of /proc/meminfo, in bytes: what the kernel
	// estimates can be had without swapping. No signal of the kubelet's.
	MemAvailable
	// SwapAvailable is SwapFree, in bytes; absent without swap. No signal of the
	// kubelet's.
	SwapAvailable

	// NumSignals is the length of an array indexed by Signal.
	NumSignals = int(iota)
)

var signalNames = [NumSignals]string{
	MemoryAvailable:            "memory.available",
	AllocatableMemoryAvailable: "allocatableMemory.available",
	NodeFsAvailable:            "nodefs.available",
	NodeFsInodesFree:           "nodefs.inodesFree",
	ImageFsAvailable:           "imagefs.available",
	ImageFsInodesFree:          "imagefs.inodesFree",
	ContainerFsAvailable:       "containerfs.available",
	ContainerFsInodesFree:      "containerfs.inodesFree",
	PIDAvailable:               "pid.available",
	MemAvailable:               "memAvailable",
	SwapAvailable:              "swap.available",
}

// String returns the name that users write, such as "memory.available".
func (s Signal) String() string {
	if int(s) >= NumSignals {
		return fmt.Sprintf("Signal(%d)", uint8(s))
	}
	return signalNames[s]
}

// Evicts reports whether the signal is one of the kubelet's eviction signals, about
// which there are thresholds. The others are for rules.
func (s Signal) Evicts() bool { return s <= PIDAvailable }

// Unit returns what the signal counts: "bytes", "inodes" or "tasks".
func (s Signal) Unit() string {
	switch s {
	case NodeFsInodesFree, ImageFsInodesFree, ContainerFsInodesFree:
		return "inodes"
	case PIDAvailable:
		return "tasks"
	default:
		return "bytes"
	}
}

// ParseSignal is the inverse of Signal.String.
func ParseSignal(name string) (Signal, bool) {
	for i, n := range signalNames {
		if n == name {
			return Signal(i), true
		}
	}
	return 0, false
}
