package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// mayKeep are the capabilities that are of use once everything is attached.
const mayKeep = 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_IPC_LOCK | 1<<unix.CAP_BPF

// Once everything is attached, every thread gives up its privileges. What comes later
// works without them: the kernel's notifications, other limits, filesystems that are
// mounted, triggers on stalls, locked memory.
func TestPrivilegesAreDropped(t *testing.T) {
	t.Parallel()
	fs := pressure.Disk(t, 64)
	must.OK(t, fs.Unmount(false))
	config := agent.Config{
		"bpf": "auto", "sampleInterval": "1h", "evictionPressureTransitionPeriod": "0s", "lockedMemoryLimit": "48Mi",
		"rootDirectory": fs.Dir, "evictionHard": agent.Hard(map[string]string{"nodefs.available": "1Ki"}),
	}
	s := start(t, config)
	s.until("READY")
	s.programs()
	for _, thread := range must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/task", s.PID())))(t) {
		checkThread(t, s.PID(), thread.Name())
	}

	const disk, events = `nodeprobe_node_condition{condition="DiskPressure",status="true"}`, `nodeprobe_sampler_wakeups_total{cause="event"}`
	must.OK(t, fs.Mount())
	stage.Until(t, "the new filesystem is sampled", func() bool {
		return s.metric(`nodeprobe_signal_capacity_bytes{signal="nodefs.available"}`) <= 64<<20
	})
	s.wait("nothing is short", disk, 0)
	config["evictionHard"] = agent.Hard(map[string]string{"nodefs.available": "20Mi"})
	s.reload(encode(t, config))
	stage.Until(t, "the kernel watches the new limit", func() bool {
		all := stage.Logged(t, s.Agent, "limits in the kernel")
		return len(all) > 0 && strings.Contains(all[len(all)-1].Line, `"watched":"nodefs.available<20Mi"`)
	})

	// The next sample by itself is in an hour: only the kernel can cause one.
	before := s.metric(events)
	must.OK(t, fs.Fill(10<<20))
	s.wait("the crossing is noticed", disk, 1)
	if now := s.metric(events); now <= before {
		t.Errorf("%v samples caused by the kernel, %v before", now, before)
	}
	must.OK(t, fs.Fill(40<<20))
	s.wait("the way back is noticed", disk, 0)

	stage.Until(t, "its memory is locked", func() bool { return s.metric("nodeprobe_locked_bytes") > 0 })

	// Triggers are set after the privileges are gone.
	triggers := 0
	for _, file := range must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.PID())))(t) {
		if target, err := os.Readlink(file); err != nil || target != "/proc/pressure/memory" {
			continue
		}
		info := must.Get(os.ReadFile(strings.Replace(file, "/fd/", "/fdinfo/", 1)))(t)
		var position, flags int
		if _, err := fmt.Sscanf(string(info), "pos: %d\nflags: %o", &position, &flags); err != nil {
			t.Fatalf("%q: %v", info, err)
		}
		if flags&unix.O_ACCMODE == unix.O_RDWR { // the sampler only reads
			triggers++
		}
	}
	if _, err := os.Stat("/proc/pressure/memory"); err == nil && triggers == 0 {
		t.Error("no trigger is set on stalls")
	}
}

func checkThread(t *testing.T, pid int, thread string) {
	t.Helper()
	fields := map[string]string{}
	for line := range strings.Lines(string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, thread)))(t))) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		set, err := strconv.ParseUint(fields[name], 16, 64)
		if err != nil || set&^uint64(mayKeep) != 0 {
			t.Errorf("thread %s (%s): %s is %s: %v", thread, fields["Name"], name, fields[name], err)
		}
	}
	if fields["NoNewPrivs"] != "1" {
		t.Errorf("thread %s: NoNewPrivs is %s", thread, fields["NoNewPrivs"])
	}
	// One thread cannot read another's in /proc/PID/task.
	slack, err := os.ReadFile("/proc/" + thread + "/timerslack_ns")
	if err != nil || strings.TrimSpace(string(slack)) != "1000000" {
		t.Errorf("thread %s: timer slack %s: %v", thread, slack, err)
	}
}
