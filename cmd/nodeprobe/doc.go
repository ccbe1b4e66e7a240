/*
Nodeprobe reports a Linux node's capacity and its memory, disk and PID pressure to
Kubernetes and Prometheus.

What it samples, decides and posts is package nodeprobe's doing (go doc
github.com/nodeprobe/nodeprobe); this command adds configuration files, a web server, a
live table and systemd. What it may write to the API server depends on the mode, which
is configured and never guessed:

	observe   nothing; no cluster is needed (the default)
	augment   conditions of its own beside a kubelet's, and Events
	own       everything that a kubelet writes: the Node, its status, its Lease

Own is for nodes on which no kubelet runs.

# Commands

	nodeprobe run              watch the node until stopped
	nodeprobe snapshot         sample; print it, and the Node that would be posted
	nodeprobe preflight        report what works on this machine, and how to fix what does not
	nodeprobe config check F   check a configuration file
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

	--for TIME          how long to watch, to estimate the time to each limit

run; these win over the field of the configuration in brackets:

	--mode MODE                     [mode]
	--hostname-override NAME        [nodeName]
	--kubeconfig FILE               [kubeconfig]
	--web.listen-address ADDR       [webListenAddress]; "" serves nothing
	--web.health-listen-address ADDR [webHealthListenAddress]; /livez and /readyz alone
	--web.config.file FILE          [webConfigFile]; TLS, users
	--log.level LEVEL               [logLevel]
	--log.format FORMAT             [logFormat]

run, besides:

	--web.enable-pprof           serve Go's profiles of this process
	--table WHEN                 a live table: auto (in a terminal), on or off

How a kubelet's files, nodeprobe's own and flags are merged is documented in package
cmd/nodeprobe/internal/config.

The Node's name is that of --hostname-override, else nodeName, else the environment
variable NODE_NAME, else the hostname. GOMEMLIMIT, the Go runtime's own variable, bounds
what garbage may add; the manifests set it to half of the memory limit. They set
GODEBUG=asyncpreemptoff=1, too: where a thread has to wait for the CPU, the runtime else
interrupts it by a signal, whose handler looks into tables of the program that are seldom
used, and in a shortage of memory waits for the disk.

# Serving

On webListenAddress, 127.0.0.1:9732 by default:

	/                  the status page: what the live table shows, and ten minutes of it
	/api/v1/status     the same as JSON; "snapshot" is that of nodeprobe snapshot -o json
	/api/v1/history    those ten minutes as JSON
	/metrics           Prometheus and OpenMetrics
	/livez, /healthz   200 unless a task is stuck, then 503
	/readyz            the same, once each condition could be judged, and its status
	                   is posted; in mode own, the Lease renewed
	/configz           the configuration in force, as JSON
	/debug/pprof/      with --web.enable-pprof, for "go tool pprof"

Add ?verbose to the health endpoints for each check by itself. Package
cmd/nodeprobe/internal/web documents TLS, users, and how many clients are served.

# Exit codes

	0   done; for run: stopped by a signal
	1   the work could not be done
	2   the command line or the configuration is wrong
	3   snapshot, preflight: something could not be read; the rest is printed
	4   run, mode own: a kubelet is alive. Starting again and again would take over
	    when that kubelet dies, and hide its death.

# Signals

SIGINT and SIGTERM stop run: listeners close, kernel programs are detached, and what was
last posted stays, apart from conditionsOnExit and exitMessage. A second one ends it at
once.

SIGHUP reloads the configuration, as does a change of its files within a minute:

	thresholds, conditions, reservations, intervals, logLevel   are in force at once
	other fields                                                need a restart; the log names them
	a mistake                                                   changes nothing; the log says where

The kernel programs stay attached, and a condition that is held stays held.

# As a service

Started with NOTIFY_SOCKET, as by systemd with Type=notify-reload, run notifies when it is
ready (the first sample is taken, and no kubelet is known to be alive), reloads and stops.
It sends the line that systemctl status shows and, with WatchdogSec, keep-alives as long as
no task is stuck. An API server that is away is no reason to be killed.

# Privileges

Once its programs are attached and its ports are bound, run drops, in all threads, every
capability that it will not need again (dropCapabilities). The log and preflight list
those that it keeps, if it has them:

	CAP_DAC_READ_SEARCH   to look into other users' directories
	CAP_SYS_RESOURCE      to be notified of stalls within half a second rather than 2 s
	CAP_IPC_LOCK          to keep its memory locked, unless RLIMIT_MEMLOCK is unlimited
	CAP_BPF               where the kernel (before 5.19) wants it for other limits

Before that, CAP_SYS_RESOURCE lowers its oom_score_adj (oomScoreAdj) and removes
RLIMIT_MEMLOCK.
*/
package main
