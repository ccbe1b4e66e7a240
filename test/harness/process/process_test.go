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
	p := must.Get(Start(Spec{Path: "/bin/sh", Args: []string{"-c", script}, LogFile: filepath.Join(t.TempDir(), "log")}))(t)
	t.Cleanup(func() { p.Stop(0) })
	return p
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

// A killed test leaves nothing behind for the next one.
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

// What a program writes is in its log until nobody reads it any more; then it waits.
func TestUnread(t *testing.T) {
	unread, log := make(chan struct{}), filepath.Join(t.TempDir(), "log")
	p := must.Get(Start(Spec{Path: "/bin/sh", Args: []string{"-c", "while :; do echo more; done"}, LogFile: log, Unread: unread}))(t)
	t.Cleanup(func() { p.Stop(0) })
	size := func() int64 { return must.Get(os.Stat(log))(t).Size() }
	for size() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(unread)
	for deadline, last := time.Now().Add(time.Minute), int64(0); ; time.Sleep(100 * time.Millisecond) {
		where := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/wchan", p.PID())))(t)
		if now := size(); now == last && strings.Contains(string(where), "pipe_write") {
			return
		} else if last = now; time.Now().After(deadline) {
			t.Fatalf("it does not wait (%s); its log has %d bytes", where, now)
		}
	}
}
