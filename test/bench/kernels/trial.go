package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// trialPath is this program once more, to put nodeprobe through what cannot be
// done to a machine that others use.
const trialPath = "/bin/trial"

const (
	trialAddress = "127.0.0.1:9732"
	// trialHold is for how long a condition outlasts its cause in the trial.
	trialHold   = 15 * time.Second
	trialFile   = "/trial.yaml" // in the guest
	trialConfig = `{"apiVersion": "nodeprobe.dev/v1alpha1", "kind": "NodeProbeConfiguration", "nodeName": "trial",
"webListenAddress": "` + trialAddress + `", "evictionPressureTransitionPeriod": "15s", "logFormat": "json"}`
	threadsMax = "/proc/sys/kernel/threads-max"
)

// trial runs nodeprobe while the limit on threads is lowered below what is in
// use, the clock is stepped, and the machine is suspended.
func trial() (err error) {
	if err := os.WriteFile(trialFile, []byte(trialConfig), 0o600); err != nil {
		return err
	}
	makeThreads(16)
	usual, err := os.ReadFile(threadsMax)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), "/bin/nodeprobe", "run", "--config", trialFile)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
	}()
	limit := func(n string) error { return os.WriteFile(threadsMax, []byte(n), 0) }
	defer func() { err = errors.Join(err, limit(strings.TrimSpace(string(usual)))) }()
	few, enough := func() error { return limit("20") }, func() error { return limit(strings.TrimSpace(string(usual))) }
	for _, step := range []struct {
		name string
		do   func() error
		// want is the status of the condition within the time, or, if it is to
		// stay that, after it.
		want   string
		within time.Duration
		stay   bool
	}{
		{"start", func() error { return nil }, "0", 30 * time.Second, false},
		{"fewer threads than there are", few, "1", 15 * time.Second, false},
		{"enough again", enough, "1", 3 * time.Second, true},
		{"an hour forwards", func() error { return stepClock(time.Hour) }, "1", 3 * time.Second, true},
		{"two hours back", func() error { return stepClock(-2 * time.Hour) }, "1", 3 * time.Second, true},
		// The hold goes by another clock.
		{"the hold ends", func() error { return nil }, "0", trialHold, false},
		{"fewer again", few, "1", 15 * time.Second, false},
		{"suspended", suspend, "1", 3 * time.Second, true},
		{"enough at last", enough, "0", trialHold + 15*time.Second, false},
		{"suspended when all is well", suspend, "0", 3 * time.Second, true},
	} {
		began := time.Now()
		switch err := step.do(); {
		case errors.Is(err, errors.ErrUnsupported):
			fmt.Printf("%s: %v\n", step.name, err)
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", step.name, err)
		}
		var got string
		for {
			var samples float64
			if got, samples, err = askTrial(); err == nil && got == step.want && !step.stay {
				fmt.Printf("%s: PIDPressure is %s after %s; %.0f samples\n", step.name, got, time.Since(began).Round(time.Millisecond), samples)
				break
			}
			if step.stay && err == nil && got != step.want {
				return fmt.Errorf("%s: PIDPressure is %s, want it to stay %s", step.name, got, step.want)
			}
			if time.Since(began) > step.within {
				if step.stay && err == nil {
					fmt.Printf("%s: PIDPressure stays %s; %.0f samples\n", step.name, got, samples)
					break
				}
				return fmt.Errorf("%s: PIDPressure is %s after %s, want %s: %w", step.name, got, step.within, step.want, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
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

// askTrial returns what nodeprobe says of PIDs, and how many samples it has
// taken. It must be alive.
func askTrial() (status string, samples float64, err error) {
	if _, err := httpGet("/livez"); err != nil {
		return "", 0, err
	}
	text, err := httpGet("/metrics")
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == `nodeprobe_condition_status{condition="PIDPressure"}`:
			status = value
		case strings.HasPrefix(name, "nodeprobe_sampler_wakeups_total{"):
			n, _ := strconv.ParseFloat(value, 64) // it is the agent's own
			samples += n
		}
	}
	return status, samples, nil
}

func httpGet(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+trialAddress+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return string(body), err
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
	var boot, monotonic unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - monotonic.Nano()).Round(time.Millisecond)
}
