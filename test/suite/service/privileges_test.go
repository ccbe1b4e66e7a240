package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// mayKeep are the capabilities that are of use once everything is attached.
const mayKeep = 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_BPF

func statusFields(t *testing.T, pid int) map[string]map[string]string {
	t.Helper()
	threads := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)))(t)
	all := map[string]map[string]string{}
	for _, thread := range threads {
		text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, thread.Name())))(t)
		fields := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			fields[name] = strings.TrimSpace(value)
		}
		all[thread.Name()] = fields
	}
	return all
}

// What is given up once all is attached, in every thread; and that everything that
// comes later goes on without it: the kernel's word, other limits, filesystems that
// are mounted, stalls.
func TestPrivilegesAreDropped(t *testing.T) {
	t.Parallel()
	fs := pressure.DiskForTest(t, 64)
	must.OK(t, fs.Unmount(false))
	limit := func(available string) map[string]string {
		return agent.Hard(map[string]string{"nodefs.available": available})
	}
	config := observe().With(agent.Config{
		"bpf": "auto", "sampleInterval": "1h", "evictionPressureTransitionPeriod": "0s",
		"rootDirectory": fs.Dir, "evictionHard": limit("1Ki"),
	})
	a, manager := start(t, config)
	ctx := patient(t)
	if _, _, err := manager.Until(ctx, "READY"); err != nil {
		t.Fatal(err)
	}
	if len(programs(t, a.PID())) == 0 {
		need.Skip(t, "no BPF program could be attached")
	}
	metric := func(series string) float64 {
		t.Helper()
		return must.Get(a.Metric(ctx, series))(t)
	}
	wantDisk := func(want float64, why string) {
		t.Helper()
		eventually(t, why, func() error {
			if got := metric(`nodeprobe_condition_status{condition="DiskPressure"}`); got != want {
				return fmt.Errorf("DiskPressure is %v", got)
			}
			return nil
		})
	}

	threads := statusFields(t, a.PID())
	for thread, fields := range threads {
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
		if err != nil || strings.TrimSpace(string(slack)) != "4000000" {
			t.Errorf("thread %s: timer slack %s: %v", thread, slack, err)
		}
	}
	t.Logf("%d threads without privileges", len(threads))

	// A filesystem is mounted, and its limit put to the kernel.
	must.OK(t, fs.Mount())
	eventually(t, "the new filesystem is sampled", func() error {
		if got := metric(`nodeprobe_signal_capacity_bytes{signal="nodefs.available"}`); got > 64<<20 {
			return fmt.Errorf("nodefs has %v bytes", got)
		}
		return nil
	})
	wantDisk(0, "nothing is short")
	// Another limit.
	config["evictionHard"] = limit("20Mi")
	rewrite(t, manager, config)
	must.OK(t, syscall.Kill(a.PID(), syscall.SIGHUP))
	if _, _, err := manager.Until(ctx, "READY"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel watches it", func() error {
		records, err := a.Log()
		if err != nil {
			return err
		}
		last := ""
		for _, r := range records {
			if r.Msg == "limits in the kernel" {
				last = r.Line
			}
		}
		if !strings.Contains(last, `"watched":"nodefs.available<20Mi"`) {
			return fmt.Errorf("last told: %s", last)
		}
		return nil
	})

	// The next sample by itself is in an hour: only the kernel can tell.
	events := metric(`nodeprobe_sampler_wakeups_total{cause="event"}`)
	must.OK(t, fs.Fill(10<<20))
	wantDisk(1, "the crossing is noticed")
	if now := metric(`nodeprobe_sampler_wakeups_total{cause="event"}`); now <= events {
		t.Errorf("%v samples for the kernel's word, %v before", now, events)
	}
	must.OK(t, fs.Fill(40<<20))
	wantDisk(0, "the way back is noticed")

	// Triggers are set after the privileges are gone.
	files := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", a.PID())))(t)
	triggers := 0
	for _, file := range files {
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
