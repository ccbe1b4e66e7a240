package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// trialPath is this program once more, to put nodeprobe through what cannot be
// done to a machine that others use.
const trialPath = "/bin/trial"

const (
	// trialHold is for how long a condition outlasts its cause in the trial.
	trialHold  = 15 * time.Second
	threadsMax = "/proc/sys/kernel/threads-max"
)

// trial runs nodeprobe while the limit on threads is lowered below what is in use, the clock
// is stepped, the machine is suspended, and a filesystem's module comes and goes.
func trial(p *program.P) {
	makeThreads(16)
	usual := must.Get(os.ReadFile(threadsMax))(p)
	a := agent.StartForTest(p, agent.Spec{Binary: "/bin/nodeprobe", Dir: "/run", NodeName: "trial", Config: agent.Config{
		"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration",
		"evictionPressureTransitionPeriod": trialHold.String(), "logFormat": "json",
	}})
	nothing := func() error { return nil }
	few := func() error { return os.WriteFile(threadsMax, []byte("20"), 0) }
	enough := func() error { return os.WriteFile(threadsMax, bytes.TrimSpace(usual), 0) }
	p.Cleanup(func() {
		_ = onNew(unmountXFS)() // a snapshot would tell
		must.Note(p, enough())
	})
	for _, step := range []struct {
		name      string
		do        func() error
		condition string
		// want is the status of the condition within the time or, if stay is set,
		// throughout it.
		want   float64
		within time.Duration
		stay   bool
	}{
		{"start", nothing, "PIDPressure", 0, 30 * time.Second, false},
		{"fewer threads than there are", few, "PIDPressure", 1, 15 * time.Second, false},
		{"enough again", enough, "PIDPressure", 1, 3 * time.Second, true},
		{"an hour forwards", func() error { return stepClock(time.Hour) }, "PIDPressure", 1, 3 * time.Second, true},
		{"two hours back", func() error { return stepClock(-2 * time.Hour) }, "PIDPressure", 1, 3 * time.Second, true},
		// The hold goes by another clock.
		{"the hold ends", nothing, "PIDPressure", 0, trialHold, false},
		{"fewer again", few, "PIDPressure", 1, 15 * time.Second, false},
		{"suspended", suspend, "PIDPressure", 1, 3 * time.Second, true},
		{"enough at last", enough, "PIDPressure", 0, trialHold + 15*time.Second, false},
		{"suspended when all is well", suspend, "PIDPressure", 0, 3 * time.Second, true},
		// Far from a limit that nothing in the kernel watches, the next sample is 10 s away.
		{"an xfs is mounted, and its module loaded", onNew(func() error { return mountXFS(a) }), "DiskPressure", 0, time.Second, true},
		{"its module is unloaded", onNew(unmountXFS), "DiskPressure", 0, 2 * time.Second, true},
		{"it is back", onNew(func() error { return mountXFS(a) }), "DiskPressure", 0, time.Second, true},
		{"it fills up", onNew(fillXFS), "DiskPressure", 1, time.Second, false},
	} {
		began := time.Now()
		if err := step.do(); errors.Is(err, errors.ErrUnsupported) {
			fmt.Fprintf(p.Out, "%s: %v\n", step.name, err)
			continue
		} else if err != nil {
			p.Fatalf("%s: %w", step.name, err)
		}
		for {
			got, samples, err := ask(p, a, step.condition)
			took := time.Since(began)
			if err == nil && got == step.want && (!step.stay || took > step.within) {
				fmt.Fprintf(p.Out, "%s: %s is %v after %s; %v samples\n", step.name, step.condition, got, took.Round(time.Millisecond), samples)
				break
			}
			if step.stay && err == nil && got != step.want || took > step.within {
				p.Fatalf("%s: %s is %v after %s, want %v: %v", step.name, step.condition, got, took, step.want, err)
			}
			p.Sleep(50 * time.Millisecond)
		}
	}
}

// onNew is do, but where nothing watches disks.
func onNew(do func() error) func() error {
	if release, _ := os.ReadFile(kernelRelease); strings.HasPrefix(string(release), "5.10.") {
		return func() error { return errors.ErrUnsupported }
	}
	return do
}

// kubeletDir is where nodeprobe looks for the disk.
const kubeletDir = "/var/lib/kubelet"

// mountXFS mounts a filesystem, and waits until nodeprobe says that its limit is watched in
// the kernel.
func mountXFS(a *agent.Agent) error {
	before, err := a.Log()
	if out, mkfsErr := exec.Command("/bin/mkfs.xfs", "-q", "-f", "-K", stormDisk).CombinedOutput(); mkfsErr != nil {
		err = errors.Join(err, fmt.Errorf("mkfs.xfs: %w: %s", mkfsErr, out))
	}
	if err = errors.Join(err, os.MkdirAll(kubeletDir, 0o755), unix.Mount(stormDisk, kubeletDir, "xfs", 0, "")); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		log, err := a.Log()
		if err != nil {
			return err
		}
		for _, record := range log[len(before):] {
			if watched, _, _ := strings.Cut(record.Line, `"polled"`); record.Msg == "limits in the kernel" && strings.Contains(watched, "nodefs.available") {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return errors.New("its limit is not watched")
		}
	}
}

func unmountXFS() error {
	return errors.Join(unix.Unmount(kubeletDir, 0), unix.DeleteModule("xfs", unix.O_NONBLOCK))
}

func fillXFS() error {
	var st unix.Statfs_t
	f, err := os.Create(kubeletDir + "/full")
	if err = errors.Join(err, unix.Statfs(kubeletDir, &st)); err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)/100*95*st.Bsize), f.Close())
}

// ask returns a condition and how many samples nodeprobe has taken. It must be alive.
func ask(p *program.P, a *agent.Agent, condition string) (status, samples float64, err error) {
	if code, body, err := a.Get(p.Context(), "/livez"); err != nil || code != http.StatusOK {
		return 0, 0, fmt.Errorf("/livez: %d: %s: %w", code, body, err)
	}
	metrics, err := a.Metrics(p.Context())
	for series, value := range metrics {
		if strings.HasPrefix(series, "nodeprobe_sampler_wakeups_total{") {
			samples += value
		}
	}
	return metrics[`nodeprobe_node_condition{condition="`+condition+`",status="true"}`], samples, err
}

// makeThreads has the runtime start threads now that it may want later, when it
// cannot have them.
func makeThreads(n int) {
	var held, ended sync.WaitGroup
	release := make(chan struct{})
	held.Add(n)
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			held.Done()
			<-release
		})
	}
	held.Wait()
	close(release)
	ended.Wait()
}

func stepClock(by time.Duration) error {
	ts := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return os.NewSyscallError("clock_settime", err)
	}
	return nil
}

// suspend stops the machine for some seconds, until its clock wakes it. Only from
// the deepest sleep: from another, qemu's machines do not wake.
func suspend() error {
	for _, write := range []struct{ file, text string }{
		{"/sys/power/mem_sleep", "deep"},
		{"/sys/class/rtc/rtc0/wakealarm", "0"}, // one that is set is in the way
		{"/sys/class/rtc/rtc0/wakealarm", "+5"},
	} {
		if err := os.WriteFile(write.file, []byte(write.text), 0); err != nil {
			return errors.Join(errors.ErrUnsupported, err)
		}
	}
	before := asleep()
	if err := os.WriteFile("/sys/power/state", []byte("mem"), 0); err != nil {
		return err
	}
	slept := asleep() - before
	if slept <= 0 {
		return errors.New("the machine did not sleep")
	}
	fmt.Printf("slept for %s\n", slept)
	return nil
}

// asleep returns for how long the machine has been suspended since it booted.
func asleep() time.Duration {
	return (clock(unix.CLOCK_BOOTTIME) - clock(unix.CLOCK_MONOTONIC)).Round(time.Millisecond)
}

// clock reads one of the kernel's clocks; all of them exist.
func clock(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}
