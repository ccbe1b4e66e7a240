package main

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
)

// oomReporter says who was killed for lack of memory. The kernel's events tell
// who it was; /proc/vmstat tells how many there were, and so whether an event was
// lost, or cannot come because its hook is missing.
type oomReporter struct {
	cgroupfs string
	names    func(probe.Container) probe.PodName
	hooked   bool // events can be expected
	// record posts an Event about the node; it must not block.
	record func(kind, reason, message string)
	log    *slog.Logger

	mu      sync.Mutex // guards the rest
	known   bool       // told is valid
	told    uint64     // kills that were reported, by vmstat's count
	missing uint64     // kills that vmstat had counted, and no event told of,
	since   time.Time  // since then
}

// grace is how long an event may be under way that vmstat has counted already.
const grace = time.Second

// killed reports a victim that the kernel told of.
func (o *oomReporter) killed(e *bpf.Event) {
	o.mu.Lock()
	o.told++
	o.mu.Unlock()
	v := identify(o.cgroupfs, o.names, e)
	o.log.Info("process killed for lack of memory", v.attrs()...)
	reason, message := v.event()
	o.record(v1.EventTypeWarning, reason, message)
}

// counted reports the victims that only vmstat tells of.
func (o *oomReporter) counted(s *probe.Snapshot) {
	if !s.OOMKills.OK {
		return
	}
	n := o.untold(s.OOMKills.Value, s.Time)
	if n == 0 {
		return
	}
	o.log.Info("processes killed for lack of memory", "count", n, "by", "/proc/vmstat")
	who := "1 process was"
	if n > 1 {
		who = fmt.Sprint(n, " processes were")
	}
	o.record(v1.EventTypeWarning, "OOMKilling", who+" killed for lack of memory; the kernel did not tell which")
}

// untold returns how many kills are to be reported by their count alone. What
// was killed before the first count is nobody's news.
func (o *oomReporter) untold(count uint64, now time.Time) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	// The kernel tells of a victim that was about to exit anyway, and does not
	// count it.
	if !o.known || count <= o.told {
		o.known, o.told, o.missing = true, count, 0
		return 0
	}
	missing := count - o.told
	if o.hooked {
		if o.missing == 0 {
			o.missing, o.since = missing, now
		}
		if now.Sub(o.since) < grace {
			return 0
		}
		// Those that came since have their own time of grace.
		missing = min(missing, o.missing)
	}
	o.told += missing
	o.missing = 0
	return missing
}

// victim is the process that was killed, as far as it is known. All names are printable:
// a process chooses its own name, and often that of its cgroup.
type victim struct {
	*bpf.Event
	process   string
	cgroup    string // "" if it is gone
	container probe.Container
	name      probe.PodName // of both; "" where it is not known
}

// identify finds the victim's cgroup, and the pod and the container if it is
// one's.
func identify(cgroupfs string, names func(probe.Container) probe.PodName, e *bpf.Event) victim {
	v := victim{Event: e, process: printable(e.Name())}
	path, err := probe.CgroupPath(cgroupfs, e.CgroupID)
	if err != nil {
		return v
	}
	container, _ := probe.ParseContainer(path)
	name := names(container)
	v.cgroup = printable(path)
	v.container = probe.Container{PodUID: printable(container.PodUID), ID: printable(container.ID)}
	v.name = probe.PodName{Namespace: printable(name.Namespace), Pod: printable(name.Pod), Container: printable(name.Container)}
	return v
}

// nameTimeout is how long a name is waited for. The kernel's events wait meanwhile.
const nameTimeout = 100 * time.Millisecond

// boundedNames returns what finds names, and none where find hangs:
// then no more are looked for until it has ended.
func boundedNames(find func(probe.Container) probe.PodName) func(probe.Container) probe.PodName {
	var busy atomic.Bool
	return func(c probe.Container) probe.PodName {
		if !busy.CompareAndSwap(false, true) {
			return probe.PodName{}
		}
		answer := make(chan probe.PodName, 1)
		go func() {
			name := find(c)
			busy.Store(false)
			answer <- name
		}()
		select {
		case name := <-answer:
			return name
		case <-time.After(nameTimeout):
			return probe.PodName{}
		}
	}
}

// attrs is the victim in the log.
func (v victim) attrs() []any {
	attrs := []any{"pid", v.PID, "name", v.process, "scope", v.Scope.String()}
	if v.cgroup == "" {
		return append(attrs, "cgroup", v.CgroupID)
	}
	attrs = append(attrs, "cgroup", v.cgroup)
	if v.container != (probe.Container{}) {
		attrs = append(attrs, "pod", v.container.PodUID, "container", v.container.ID)
	}
	if v.name != (probe.PodName{}) {
		attrs = append(attrs, "podNamespace", v.name.Namespace, "podName", v.name.Pod, "containerName", v.name.Container)
	}
	return attrs
}

// event is the victim in an Event: the kubelet's words if the whole node ran out
// of memory, else those of the node problem detector, and after either whose the
// process was.
func (v victim) event() (reason, message string) {
	var b strings.Builder
	switch v.Scope {
	case bpf.ScopeNode:
		reason = "SystemOOM"
		fmt.Fprintf(&b, "System OOM encountered, victim process: %s, pid: %d", v.process, v.PID)
	case bpf.ScopeCgroup:
		reason = "OOMKilling"
		fmt.Fprintf(&b, "Memory cgroup out of memory: Killed process %d (%s)", v.PID, v.process)
	default:
		reason = "OOMKilling"
		fmt.Fprintf(&b, "Out of memory: Killed process %d (%s)", v.PID, v.process)
	}
	pod := ""
	if v.name.Pod != "" {
		pod = v.name.Namespace + "/" + v.name.Pod
	}
	switch {
	case v.container.PodUID != "" || pod != "":
		b.WriteString(", pod: " + nameAndID(pod, v.container.PodUID))
	case v.cgroup != "":
		fmt.Fprintf(&b, ", cgroup: %s", v.cgroup)
	}
	if v.container.ID != "" {
		b.WriteString(", container: " + nameAndID(v.name.Container, v.container.ID))
	}
	return reason, b.String()
}

// nameAndID is what people call something, and what programs do, as far as they are
// known.
func nameAndID(name, id string) string {
	switch {
	case name == "":
		return id
	case id == "":
		return name
	default:
		return name + " (" + id + ")"
	}
}
