/*
Nodeprobe tells Kubernetes and Prometheus what a Linux node has and what it is
short of: its capacity, and whether memory, disk or PIDs are running out.

It samples the node every 10 seconds, and at once when the kernel reports that a
limit is crossed, that tasks stall, that mounts changed, or that it killed a process
for lack of memory. It decides the conditions MemoryPressure, DiskPressure and
PIDPressure as a kubelet would, from thresholds that are written as a kubelet's.
What it may write to the API server depends on the mode, which is configured and
never guessed:

	observe   nothing; no cluster is needed (the default)
	augment   conditions of its own beside a kubelet's, and Events
	own       everything that a kubelet writes: the Node, its status, its Lease

Own is for nodes on which no kubelet runs.

# How it works

One sample goes one way:

	BPF: limits compared at forks and in a timer ── a crossing ──┐
	BPF: OOM kills ──────────────────────────────── a victim ────┤
	PSI triggers, mount table, pid_max, memory.events ── a hint ─┤ wake
	tick: sampleInterval, or sooner if a limit is near ──────────┤
	                                                             v
	      /proc, /sys, statfs, BPF counters ───────────> probe.Sampler
	                                    │ Snapshot: values, and what could not be read
	                                    v
	                           pressure.Evaluator        pure: time comes with the snapshot
	                                    │ Verdicts
	                                    v
	             monitor: the latest of both ──> /metrics, the status page, snapshot, the live table
	                                    │
	   mode own:                        v
	       status.Updater: setters on a copy of the last known Node
	               │ changed, or nodeStatusReportFrequency is over
	               v
	       one PATCH of nodes/NAME/status; then status.Recorder: Events
	       heartbeat.Heartbeater: PUT of the Lease, only while samples keep coming

	   mode augment: pressure.Judge applies the rules of our own conditions;
	       one PATCH holds those entries and nothing else; status.Shadow compares
	       what the kubelet says of pressure with our Verdicts, in metrics

The kernel's word is a hint, the sample is the evidence. BPF is a bonus: where the
kernel or a container withholds it, its counters are missing, limits are noticed by
samples that come the faster the nearer they are, and nothing else changes.

# Commands

	nodeprobe run              watch the node until told to stop
	nodeprobe snapshot         sample; print it, and the Node that would be posted
	nodeprobe preflight        say what works on this machine, and how to mend what does not
	nodeprobe config check F   say what is wrong with a configuration file
	nodeprobe config default   print the default configuration, every field explained
	nodeprobe cleanup          remove the conditions that mode augment has posted
	nodeprobe version          print the version
	nodeprobe completion S     print a completion script for the shell S

# Flags

All commands:

	--path.procfs DIR   where the node's /proc is mounted; likewise
	--path.sysfs DIR    /sys and
	--path.rootfs DIR   /. In a container, these are mounts of the host's.

run, snapshot and preflight:

	--config FILE       the configuration; without it, that of "config default"

run, snapshot, preflight and config check:

	--kubelet-config FILE      a KubeletConfiguration to take defaults from
	--kubelet-config-dir DIR   drop-ins of it, *.conf

snapshot and preflight:

	-o, --output KIND   table or json, for snapshot also yaml

snapshot:

	--for TIME          how long to watch, to tell the time to each limit

run; these win over the field of the configuration in brackets:

	--mode MODE                  [mode]
	--hostname-override NAME     [nodeName]
	--kubeconfig FILE            [kubeconfig]
	--web.listen-address ADDR    [webListenAddress]; "" serves nothing
	--web.config.file FILE       [webConfigFile]; TLS, users
	--web.health-listen-address ADDR [webHealthListenAddress]; /livez and /readyz alone
	--log.level LEVEL            [logLevel]
	--log.format FORMAT          [logFormat]

run, besides:

	--web.enable-pprof           serve Go's profiles of this process
	--table WHEN                 a live table: auto (in a terminal), on or off

The Node's name is that of --hostname-override, else nodeName, else the
environment variable NODE_NAME, else the hostname.

# A kubelet's configuration

With --kubelet-config and --kubelet-config-dir, the fields that a
KubeletConfiguration (kubelet.config.k8s.io/v1beta1, YAML or JSON) and our own
have in common are taken as defaults. What decides, from the weakest:

	our defaults, FILE, DIR's files, our own --config, the other flags

DIR is read as by a kubelet: *.conf, in the order of their names, folders too,
each a JSON merge patch that has apiVersion and kind; null takes away. Zero means
unset where it does to a kubelet, so that evictionPressureTransitionPeriod: 0s
is 5m there, though not in our own file. Without a containerRuntimeEndpoint it is
containerd's, as for a kubelet. Other fields of the kubelet's are ignored
and listed; what is no field of it is a warning; what cannot be parsed is an
error. Each difference to what a kubelet would do is logged:

	nodeStatusReportFrequency     does not follow nodeStatusUpdateFrequency
	evictionHard                  is merged with the defaults, unless
	                              mergeDefaultEvictionSettings is false
	evictionHard: {}              in FILE: no thresholds, as for a kubelet
	evictionHard[pid.available]   keeps our default; a kubelet has none

# Serving

On webListenAddress, 127.0.0.1:9732 by default:

	/                  the status page: what the live table shows, and ten minutes of it
	/api/v1/status     the same as JSON; "snapshot" is as nodeprobe snapshot -o json has it
	/api/v1/history    those ten minutes as JSON
	/metrics           Prometheus and OpenMetrics
	/livez, /healthz   200 while samples keep coming, else 503
	/readyz            the same, once each condition could be judged, and its status
	                   is posted; in mode own, the Lease renewed

	/configz           the configuration in force, as JSON
	/debug/pprof/      with --web.enable-pprof, for "go tool pprof"

Add ?verbose to the health endpoints for each check by itself.

At most 128 clients are connected at a time. One more replaces the one that was idle,
silent or slow for the longest time, among those of the address that has the most
connections: a kubelet's probes and a Prometheus are served however many connections
others hold open. nodeprobe_web_connections and
nodeprobe_web_connections_evicted_total count them. GOMEMLIMIT, the Go runtime's own
variable, bounds what garbage may add; deploy sets it to three quarters of the memory
limit.

# TLS and users

The file of --web.config.file has the format that Prometheus' exporters share
(https://prometheus.io/docs/prometheus/latest/configuration/https/), and
"promtool check web-config" takes it:

	tls_server_config:
	  cert_file: tls.crt            # relative to this file
	  key_file: tls.key
	  client_auth_type: RequireAndVerifyClientCert
	  client_ca_file: ca.crt
	basic_auth_users:
	  prometheus: $2y$10$...        # htpasswd -nBC 10 prometheus

config check looks at it, too. It, and the files that it names, are read again when
they change, without a restart. If they are wrong at the start, run ends with exit code
2; later, the last good ones stay in force,
nodeprobe_web_config_last_reload_successful is 0, and the log says why. To turn TLS on
or off, or to change http2 or rate_limit, takes a restart.

What the file asks of clients it asks for every path. A kubelet's probes have neither a
certificate nor a password: for them, webHealthListenAddress serves /livez and /readyz and
nothing else, over plain HTTP. While users or client certificates are asked for, it
withholds the reasons. With TLS alone, probes can as well take "scheme: HTTPS".

A password that was right before is not hashed again. Others are hashed one at a time;
a client that sent a wrong one waits a second, and gets a 429 meanwhile.

The status page needs nothing from elsewhere, and works without JavaScript. Who looks
at it or at /api/v1/status has a sample taken, of which the next look tells. In
/api/v1/history each column has one entry per time, some five seconds apart: the
least that was available, and the greatest share of ten seconds in which tasks
stalled, from that time on to the next; null where it could not be read. Behind a
proxy that adds a prefix to the path, all of this works as well.

# Exit codes

	0   done; for run: stopped by a signal
	1   the work could not be done
	2   the command line or the configuration is wrong
	3   snapshot, preflight: something could not be read; the rest is printed
	4   run, mode own: a kubelet is alive. Who starts nodeprobe again and again
	    would have it take over when that kubelet dies, and hide it.

# Signals

SIGINT and SIGTERM stop run: what it serves ends, its programs are detached, and
what it last posted stays. A second one ends it at once.

SIGHUP reloads the configuration, as does a change of its files within a minute:

	thresholds, reservations, intervals, logLevel   are in force at once
	other fields                                    need a restart; the log names them
	a mistake                                       changes nothing; the log says where

The BPF programs stay attached, and a condition that is held stays held.

# As a service

Started with NOTIFY_SOCKET, as by systemd with Type=notify-reload, run tells when
it is ready (the first sample is taken, and no kubelet is known to be alive), reloads and
stops; what systemctl status shows; and with WatchdogSec, that it is alive. It is
while samples come and its writers go on trying: an API server that is away is no
reason to be killed.

# Privileges

Once its programs are attached and its port is bound, run gives up in all threads
every capability that it will not need again (dropCapabilities). The log and
preflight tell what is kept, if there:

	CAP_DAC_READ_SEARCH   to look into what belongs to others
	CAP_SYS_RESOURCE      to hear of stalls within half a second rather than 2 s
	CAP_BPF               where the kernel (before 5.19) wants it for other limits

# Files

	/etc/nodeprobe/config.yaml          by convention; see --config
	/proc/meminfo, loadavg, vmstat      memory and the node's working set, tasks, OOM kills
	/proc/pressure/*                    stalls (Linux 4.20)
	/proc/sys/kernel/pid_max, threads-max, random/boot_id
	/sys/fs/cgroup                      the pods' working set
	/sys/devices/system/cpu/online      CPUs
	/sys/kernel/mm/hugepages            huge pages
	/sys/kernel/btf/vmlinux             the kernel's types, for BPF
	/etc/machine-id, /etc/os-release    what the machine is

For those who want to read the program: main.go has the commands, config.go the
configuration, daemon.go builds everything that run runs, own.go what writes.
*/
package main
