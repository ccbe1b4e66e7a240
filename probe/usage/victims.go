// Package usage reports what pods and containers do with the node: which of their
// processes are killed for lack of memory, and for how long all of them stall.
package usage

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

// warning is the type of the Events; the kubelet's OOM watcher uses the same.
const warning = "Warning"

// grace is how long an event may still be under way after vmstat has counted the kill.
const grace = time.Second

// VictimsConfig is the configuration of Victims. All fields but Hooked are required.
type VictimsConfig struct {
	// Procfs and Sysfs are where the node's /proc and /sys are mounted, Rootfs is where
	// its / is.
	Procfs, Sysfs, Rootfs string
	// Hooked reports whether the kernel sends events of OOM kills (bpf.OOM is attached).
	// Without them, kills are reported by their number alone, and at once.
	Hooked bool
	// Record posts an Event about the node; kind is its type, "Warning". It must not block.
	Record func(kind, reason, message string)
	Logger *slog.Logger
}

// Victims reports each process that is killed for lack of memory, in the log and as an
// Event. The kernel's events name the victims. The oom_kill count of /proc/vmstat
// (Linux 4.13) shows how many there were, and so whether events were lost, or cannot
// come because a hook is missing.
//
// Killed and Counted may be called by different goroutines, one each. Collect exports
// whose the victims were.
type Victims struct {
	cfg     VictimsConfig
	cgroups cgroup.Finder // owned by Killed
	names   func(cgroup.Container) cgroup.PodName
	tally   tally

	mu       sync.Mutex // guards the rest
	counted  bool       // whether there was a count yet
	reported uint64     // kills reported so far, by vmstat's count
	missing  uint64     // kills that vmstat counted without an event
	since    time.Time  // when missing was noticed
}

// NewVictims returns Victims that have seen no kill yet. It reads nothing.
func NewVictims(cfg VictimsConfig) *Victims {
	return &Victims{
		cfg:     cfg,
		cgroups: cgroup.Finder{Procfs: cfg.Procfs, Cgroupfs: filepath.Join(cfg.Sysfs, "fs", "cgroup")},
		tally:   newTally(time.Now()),
		names:   boundedNames(func(c cgroup.Container) cgroup.PodName { return c.Name(cfg.Rootfs) }),
	}
}

// Killed reports the victim of an event of kind [bpf.OOMKill]. It reads the victim's
// cgroup and looks up the names of its pod, which may take up to 100 ms if the disk hangs.
func (v *Victims) Killed(e *bpf.Event) {
	v.mu.Lock()
	v.reported++
	v.mu.Unlock()
	who := identify(&v.cgroups, v.names, e)
	v.cfg.Logger.Info("process killed for lack of memory", who.attrs()...)
	v.tally.add(owner{who.name.Namespace, who.name.Pod, who.container.PodUID, who.name.Container}, time.Now())
	reason, message := who.event()
	v.cfg.Record(warning, reason, message)
}

// Counted compares a snapshot's count with the kills reported so far, and reports by
// their number those that no event came for within a second. Kills before the first
// count are not reported.
func (v *Victims) Counted(s *probe.Snapshot) {
	if !s.OOMKills.OK {
		return
	}
	n := v.unreported(s.OOMKills.Value, s.Time)
	if n == 0 {
		return
	}
	v.cfg.Logger.Info("processes killed for lack of memory", "count", n, "by", "/proc/vmstat")
	who := "1 process was"
	if n > 1 {
		who = fmt.Sprint(n, " processes were")
	}
	v.cfg.Record(warning, "OOMKilling", who+" killed for lack of memory; the kernel did not report which")
}

// unreported returns how many kills are to be reported now, and counts them as reported.
func (v *Victims) unreported(count uint64, now time.Time) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	// The kernel sends an event for a victim that was about to exit anyway, but does
	// not count it.
	if !v.counted || count <= v.reported {
		v.counted, v.reported, v.missing = true, count, 0
		return 0
	}
	missing := count - v.reported
	if v.cfg.Hooked {
		if v.missing == 0 {
			v.missing, v.since = missing, now
		}
		if now.Sub(v.since) < grace {
			return 0
		}
		// Later kills have a grace period of their own.
		missing = min(missing, v.missing)
	}
	v.reported += missing
	v.missing = 0
	return missing
}
