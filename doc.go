/*
Package nodeprobe reports a Linux node's capacity and its memory, disk and PID pressure
to Kubernetes, within milliseconds and at almost no cost. It is the agent behind the
command of that name, and what to import for an agent of your own.

An [Agent] samples the node every 10 seconds, and at once when the kernel reports that a
limit is crossed, that tasks stall, that mounts changed, or that a process was killed
for lack of memory. It decides the conditions MemoryPressure, DiskPressure and
PIDPressure as a kubelet does, from thresholds written as a kubelet's, and conditions of
your own by rules. What it writes depends on the [Mode]:

	Observe   nothing; no cluster is needed
	Augment   conditions of its own beside a kubelet's, and Events
	Own       all that a kubelet's node status manager writes: the Node, its status
	          and its Lease, for nodes on which no kubelet runs

One sample goes one way:

	kernel: limits compared in BPF, OOM kills ────┐ a crossing, a victim
	PSI triggers, mount table, sysctls, cgroups ──┤ a hint
	tick: SampleInterval, or sooner near a limit ─┘
	               │ wake
	       probe.Sampler ── /proc, /sys, statfs, BPF counters ──> probe.Snapshot
	               │
	       pressure: verdicts, findings, estimates          pure: time comes with the snapshot
	               │
	       status.Updater: content on a copy of the last known Node
	               │ changed, or the report period is over
	       one PATCH of nodes/NAME/status; the answer is the next last known Node
	               │
	       heartbeat.Heartbeater: PUT of the Lease, only while samples keep coming

# An agent of your own

Embed an Agent, and give it a [Setter] for what it does not know: a label, a condition,
an extended resource. Call [Agent.Update] when the Setter's answer has changed.

	cfg := nodeprobe.DefaultConfig()
	cfg.Mode, cfg.NodeName, cfg.API = nodeprobe.Own, "edge-1", restConfig
	cfg.FieldManager = "edge-agent"
	cfg.Setters = []nodeprobe.Setter{setGPUs}
	agent, err := nodeprobe.New(cfg)
	if err != nil {
		return err
	}
	return agent.Run(ctx)

The Agent serves no HTTP, reads no configuration file and no flags, and keeps the
process's capabilities: that is up to your program. [Agent.State] is what health
endpoints and a status page are made from, and Config.Registerer gets the metrics.

In mode Own a guard keeps the Agent from writing beside a kubelet: Run refuses to start
beside one that is alive, with [ErrOccupied], and stands down if one appears.

# Errors

[New] names each field of a [Config] that is wrong, as a join of [*FieldError]. What a
kernel or a container withholds (BPF, PSI, a file) is no error: its figures are absent
from the Snapshot, counted, logged once, and in [State] with a remedy. Linux 4.20 or
later is needed for the wake-ups by stalls, 5.8 for BPF; see package bpf.
*/
package nodeprobe
