package arm

import (
	"math/bits"
	"os"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

// machine is what the kernel's batches depend on: each CPU counts by itself, and adds that
// to the common counter when it is more than a batch.
type machine struct {
	cpus   int64 // online, as those of a CPU that goes offline are added
	memory int64
	page   int64
	xfs    bool // the filesystem is one
}

// machineOf returns the machine of a snapshot, with the filesystem of a signal. One whose
// CPUs could not be counted has one, so that its limits are sampled rather than relied on.
func machineOf(s *probe.Snapshot, signal probe.Signal) machine {
	m := machine{cpus: max(1, s.Capacity.CPUs), memory: s.Memory.Total, page: int64(os.Getpagesize())}
	if fs, ok := filesystemOf(signal); ok {
		m.xfs = fs.in(s).Mount.FSType == "xfs"
	}
	return m
}

const (
	// block is the size of a filesystem's blocks, as mkfs makes them. Where they are larger,
	// or ext4 counts in clusters of them, more is held back: the comparison with the samples
	// finds that.
	block = 4096
	// xfsBatch is XFS_FDBLOCKS_BATCH.
	xfsBatch = 1024
)

// heldBack returns by how much a figure of the kernel's may differ from what it counts, for
// want of what the CPUs hold back.
//
// Memory (calculate_normal_threshold in mm/vmstat.c): by up to 125 pages a CPU and NUMA
// node, of each of the figure's counters. /proc/meminfo lacks the same, so no sample tells;
// within some seconds the kernel adds it all.
//
// Filesystems (lib/percpu_counter.c): by up to 32 blocks a CPU, or twice as many as there
// are CPUs; ext4 has two such counters. That lasts, while statfs(2) adds up all of it.
func (m machine) heldBack(f bpf.Figure) int64 {
	batch := max(32, 2*m.cpus)
	switch f {
	case bpf.WorkingSet, bpf.MemAvailable:
		counters := int64(3)
		if f == bpf.MemAvailable {
			counters = 5
		}
		units := bits.Len64(uint64(m.memory) >> 27) // of 128 MiB
		threshold := min(125, 2*bits.Len64(uint64(m.cpus))*(1+units))
		return counters * int64(threshold) * m.cpus * m.page
	case bpf.FreeBytes:
		if m.xfs {
			return xfsBatch * m.cpus * block
		}
		return 2 * batch * m.cpus * block
	case bpf.FreeInodes:
		return batch * m.cpus
	}
	return 0
}
