package bpf

import "time"

// Counters is what the programs counted since the Sensor was opened. A counter is valid
// only if Has has its signal: a program that is not attached leaves its counters at zero.
// Each is exact, but they are not of one moment: a fork may be in Forks and not yet in
// Tasks.
type Counters struct {
	// Tasks is the number of tasks (threads) that hold a PID in the initial
	// PID namespace, zombies included, as of the latest fork or release. The
	// total in /proc/loadavg is the same, give or take one.
	Tasks uint64
	// Forks counts tasks created. Exits counts tasks that were reaped and whose PID
	// was released, some milliseconds late (an RCU grace period).
	Forks, Exits uint64
	// OOMKills counts victims that the OOM killer marked. A process of several
	// threads can be marked more than once while it dies.
	OOMKills uint64
	// DirectReclaims counts the times that an allocating task had to free
	// memory of the whole node itself; DirectReclaimStall is the time it took.
	DirectReclaims     uint64
	DirectReclaimStall time.Duration
	// CgroupReclaims and CgroupReclaimStall are the same for tasks that hit the
	// limit of their own memory cgroup or of one above it.
	CgroupReclaims     uint64
	CgroupReclaimStall time.Duration
	// BlockErrors counts block I/O requests that ended in an error which the kernel
	// logs. Commands that user space passes through to a device do not count.
	BlockErrors uint64
	// Lost counts events dropped because the ring buffer was full.
	Lost uint64

	// Has is the set of signals whose programs are attached.
	Has SignalSet
}
