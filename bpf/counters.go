package bpf

import "time"

// Counters is what the kernel-side programs counted since the Sensor was
// opened. A counter is meaningful only if Has says so: a program that could not
// be attached leaves its counters at zero.
type Counters struct {
	// Tasks is the number of tasks that hold a PID in the initial PID
	// namespace, as of the latest fork or release.
	Tasks uint64
	// Forks and Exits count tasks (threads) created, and tasks whose exit has
	// begun.
	Forks, Exits uint64
	// OOMKills counts victims that the OOM killer marked.
	OOMKills uint64
	// DirectReclaims counts the times that an allocating task had to free
	// memory of the whole node itself; DirectReclaimStall is the time it took.
	DirectReclaims     uint64
	DirectReclaimStall time.Duration
	// CgroupReclaims and CgroupReclaimStall are the same for tasks that hit the
	// limit of their own memory cgroup.
	CgroupReclaims     uint64
	CgroupReclaimStall time.Duration
	// BlockErrors counts block I/O requests that ended in an error.
	BlockErrors uint64
	// Lost counts events that found the ring buffer full.
	Lost uint64

	// Has is the set of signals whose programs are attached.
	Has SignalSet
}
