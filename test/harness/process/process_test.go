package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// waitGone waits for a process that this one is not the parent of.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); alive(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

func start(t *testing.T, script string) *Process {
	t.Helper()
	p := must.Get(Start(Spec{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, LogFile: filepath.Join(t.TempDir(), "log")}))(t)
	t.Cleanup(func() { p.Stop(0) })
	return p
}

func TestStop(t *testing.T) {
	for _, test := range []struct {
		name, script string
		grace        time.Duration
	}{
		{"kill", "exec sleep 60", 0},
		{"terminate", "exec sleep 60", 30 * time.Second},
		{"stubborn", "trap '' TERM; echo deaf; while :; do sleep 0.1; done", 200 * time.Millisecond},
		{"ended", "exit 0", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := start(t, test.script)
			if test.name == "stubborn" {
				waitForLog(t, p, "deaf")
			}
			begin := time.Now()
			p.Stop(test.grace)
			p.Stop(test.grace)
			if alive(p.PID()) {
				t.Error("process is still there")
			}
			if took := time.Since(begin); took > 25*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

func waitForLog(t *testing.T, p *Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.WaitReady(ctx, func(context.Context) error {
		if !strings.Contains(LogTail(p.logFile, 5), text) {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestWaitReadyOfEndedProcess(t *testing.T) {
	p := start(t, "echo one; echo two >&2; exit 3")
	err := p.WaitReady(t.Context(), func(context.Context) error { return errors.New("not yet") })
	exit, ok := errors.AsType[*ExitError](err)
	if !ok || exit.Log != "\tone\n\ttwo" || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
}

// Whatever answers on the port of an ended process, it is not that process.
func TestWaitReadyAfterExit(t *testing.T) {
	p := start(t, "exit 0")
	<-p.Exited()
	if err := p.WaitReady(t.Context(), func(context.Context) error { return nil }); err == nil {
		t.Error("an ended process is ready")
	}
}

func TestWaitReadyTimeout(t *testing.T) {
	p := start(t, "exec sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	notYet := errors.New("not yet")
	err := p.WaitReady(ctx, func(context.Context) error { return notYet })
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, notYet) {
		t.Errorf("got %v", err)
	}
}

// What a killed test leaves behind would be there for the next: nothing is.
func TestDiesWithParent(t *testing.T) {
	if os.Getenv("NODEPROBE_PROCESS_VICTIM") == "1" {
		fmt.Printf("child %d\n", start(t, "exec sleep 60").PID())
		select {}
	}
	victim := exec.Command("/proc/self/exe", "-test.run=^TestDiesWithParent$")
	victim.Env = append(os.Environ(), "NODEPROBE_PROCESS_VICTIM=1")
	stdout := must.Get(victim.StdoutPipe())(t)
	must.OK(t, victim.Start())
	var pid int
	_, scanErr := fmt.Fscanf(stdout, "child %d\n", &pid)
	must.Note(t, victim.Process.Kill())
	_ = victim.Wait() // It was killed.
	if scanErr != nil {
		t.Fatal(scanErr)
	}
	waitGone(t, pid)
}
