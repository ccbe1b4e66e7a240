package arm

import (
	"math/bits"
	"os"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

// heldBack returns by how much a figure of the kernel's may differ from what it counts: each
// CPU counts by itself, and adds that to the common counter when it is more than a batch.
// Those online count, as one that goes offline leaves nothing. If they could not be counted
// it is one, so that limits are sampled rather than relied on.
//
// Of a filesystem that lasts, while statfs(2) adds up all of it. Of memory /proc/meminfo
// lacks the same, so no sample tells; within some seconds the kernel adds it.
func heldBack(s *probe.Snapshot, f bpf.Figure, level *bpf.Level) int64 {
	cpus := max(1, s.Capacity.CPUs)
	if f.OfFilesystem() {
		return level.Lag(f, cpus)
	}
	return pagesHeldBack(f, cpus, s.Memory.Total) * int64(os.Getpagesize())
}

// pagesHeldBack is heldBack for a figure of memory.
func pagesHeldBack(f bpf.Figure, cpus, memory int64) int64 {
	switch f {
	case bpf.WorkingSet:
		return 3 * vmstatBatch(cpus, memory) * cpus
	case bpf.MemAvailable:
		return 5 * vmstatBatch(cpus, memory) * cpus
	case bpf.CgroupMemory: // charged ahead, 64 pages a CPU; and what it has of file cache
		return 2 * 64 * cpus
	}
	return 0
}

// vmstatBatch returns how many pages each CPU holds back of a counter of memory, of each
// NUMA node (calculate_normal_threshold in mm/vmstat.c).
func vmstatBatch(cpus, memory int64) int64 {
	units := bits.Len64(uint64(memory) >> 27) // of 128 MiB
	return int64(min(125, 2*bits.Len64(uint64(cpus))*(1+units)))
}
