// Package probe samples a Linux node: what it has, and how much of that is left.
//
// One sample, from the kernel to a [Snapshot]:
//
//	what                              how it is read                        by
//	meminfo, loadavg, vmstat,         kept open, pread(2) at each sample    memory.go, pid.go, psi.go,
//	pid_max, threads-max, pressure/*                                        package hotfile
//	memory of the pods' cgroup        the same; at most 1 % of the time     memory.go, package cgroup
//	nodefs, imagefs                   statfs(2), with a deadline of 2 s     disk.go, package deadline
//	how these are mounted             once a minute and on request,         disk.go, package mount
//	                                  with a deadline
//	machine and capacity              once a minute, with a deadline        facts.go, machine.go, capacity.go
//	what BPF programs count           shared memory                         package bpf
//
// [Sampler.Run] takes a sample at each interval, and at each [Sampler.Wake]: package
// notify calls it on PSI stalls and changed mounts, a reader of bpf's events on
// crossings. It gives each Snapshot to one function, which decides what that means
// (package pressure) and may ask for the next sample sooner.
//
// Three rules hold everywhere. A figure that could not be read is absent from the
// Snapshot, with its error, and never zero instead. In steady state a sample allocates
// nothing, opens nothing, and makes the kernel do no work in proportion to the number of
// cgroups, mounts or disks (the pods' memory.stat does, and is read less often the longer
// it takes). A call that may wait for a disk has a deadline: if it hangs, it costs a
// goroutine until the kernel returns, and one figure of the sample.
//
// In a container, the node's /proc, /sys and / are mounted somewhere else; [Config] has
// these places, and package rootfs follows symbolic links as the node would.
package probe
