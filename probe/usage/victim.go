package usage

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/internal/printable"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

// victim is a process that was killed, as far as it is known. All names are printable:
// a process chooses its own name, and often that of its cgroup.
type victim struct {
	*bpf.Event
	process   string
	cgroup    string // "" if it is gone
	container cgroup.Container
	name      cgroup.PodName // of pod and container; "" where not known
}

// identify looks up the victim's cgroup, and its pod and container if it has any.
func identify(cgroups *cgroup.Finder, names func(cgroup.Container) cgroup.PodName, e *bpf.Event) victim {
	v := victim{Event: e, process: printable.Text(e.Name())}
	path, err := cgroups.Path(e.CgroupID, int(e.PID))
	if err != nil {
		return v
	}
	container, _ := cgroup.Parse(path)
	name := names(container)
	v.cgroup = printable.Text(path)
	v.container = cgroup.Container{PodUID: printable.Text(container.PodUID), ID: printable.Text(container.ID)}
	v.name = cgroup.PodName{
		Namespace: printable.Text(name.Namespace),
		Pod:       printable.Text(name.Pod),
		Container: printable.Text(name.Container),
	}
	return v
}

// nameTimeout bounds the lookup of a name. The kernel's events wait meanwhile.
const nameTimeout = 100 * time.Millisecond

// boundedNames returns a function that calls find, but waits no longer than nameTimeout.
// While a call hangs, it returns no names and makes no further calls.
func boundedNames(find func(cgroup.Container) cgroup.PodName) func(cgroup.Container) cgroup.PodName {
	var busy atomic.Bool
	return func(c cgroup.Container) cgroup.PodName {
		if !busy.CompareAndSwap(false, true) {
			return cgroup.PodName{}
		}
		answer := make(chan cgroup.PodName, 1)
		go func() {
			name := find(c)
			busy.Store(false)
			answer <- name
		}()
		select {
		case name := <-answer:
			return name
		case <-time.After(nameTimeout):
			return cgroup.PodName{}
		}
	}
}

// attrs returns the victim's attributes in the log.
func (v victim) attrs() []any {
	attrs := []any{"pid", v.PID, "name", v.process, "scope", v.Scope.String()}
	if v.cgroup == "" {
		return append(attrs, "cgroup", v.CgroupID)
	}
	attrs = append(attrs, "cgroup", v.cgroup)
	if v.container != (cgroup.Container{}) {
		attrs = append(attrs, "pod", v.container.PodUID, "container", v.container.ID)
	}
	if v.name != (cgroup.PodName{}) {
		attrs = append(attrs, "podNamespace", v.name.Namespace, "podName", v.name.Pod, "containerName", v.name.Container)
	}
	return attrs
}

// event returns the victim's Event: in the kubelet's words if the whole node ran out of
// memory, else in those of node-problem-detector, followed by the process's owner.
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

// nameAndID returns "name (id)", or the one of the two that is known.
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
