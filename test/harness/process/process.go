// Package process runs the programs that the tests are made of. Each writes to
// a log file, is known by its process ID, is killed by the kernel if the test
// dies, and is reported with the end of its log if it dies itself.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Spec is what to run.
type Spec struct {
	// Path is the program's file, Args its arguments without the program's name.
	Path string
	Args []string
	// Env is added to this process's environment.
	Env []string
	// LogFile receives stdout and stderr; it is appended to, so that the log of
	// a restarted program holds both lives. It must not be empty.
	LogFile string
	// Files are open in the program from file descriptor 3 on.
	Files []*os.File
	// Cgroup is the directory of a cgroup that the program starts in, so that all of
	// what it uses is charged there; "" leaves it in this process's.
	Cgroup string
	// Unread, once it is closed, has nobody read any more what the program writes: its
	// stdout and stderr are then a pipe that is full.
	Unread <-chan struct{}
}

// Process is a running or ended program.
type Process struct {
	name    string
	logFile string
	cmd     *exec.Cmd
	exited  chan struct{} // closed once err is set
	err     error
}

// Start runs the program. The caller owns the process and must Stop it.
func Start(spec Spec) (*Process, error) {
	name := filepath.Base(spec.Path)
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	cmd := exec.Command(spec.Path, spec.Args...)
	if spec.Cgroup != "" {
		// clone3 starts processes in cgroups of v2 only.
		join := []string{"-c", `echo 0 >"$0/cgroup.procs" && exec "$@"`, spec.Cgroup, spec.Path}
		cmd = exec.Command("/bin/sh", append(join, spec.Args...)...)
	}
	cmd.Env = append(os.Environ(), spec.Env...)
	out, done := log, func() {}
	if spec.Unread != nil {
		if out, done, err = unread(log, spec.Unread); err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
	}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, spec.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		// ^C at the terminal is for the test, which then ends its processes in order.
		Setpgid: true,
	}
	p := &Process{name: name, logFile: spec.LogFile, cmd: cmd, exited: make(chan struct{})}

	started := make(chan error)
	go func() {
		defer log.Close()
		defer done()
		// Pdeathsig is sent when the parent *thread* ends (golang/go#27505), so
		// the thread that forks has to live for as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if p.err = cmd.Wait(); p.err == nil {
			p.err = errors.New("exit status 0")
		}
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// unread returns a pipe of which all is copied to the log until stop is closed; then it
// is filled up. Call done when nobody writes to it any more.
func unread(log *os.File, stop <-chan struct{}) (w *os.File, done func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	// Another opening of the same pipe, in which a write may fail instead of wait.
	full, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	go func() {
		<-stop
		_ = r.SetReadDeadline(time.Now()) // a pipe can
	}()
	go func() {
		_, _ = io.Copy(log, r) // until stopped, or closed
		err := full.SetWriteDeadline(time.Now().Add(time.Second))
		for err == nil {
			_, err = full.Write([]byte{'\n'})
		}
	}()
	return w, func() { r.Close(); w.Close(); full.Close() }, nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended, for whatever reason.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Succeeded reports whether the process, which has exited, ended without an error.
func (p *Process) Succeeded() bool { return p.cmd.ProcessState.Success() }

// Signal sends a signal to the process. It is an error if it has ended.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// Stop asks the process to end, kills it after grace, and returns when it is
// gone. Without grace it is killed at once. Stopping twice is fine.
func (p *Process) Stop(grace time.Duration) {
	if grace > 0 && p.cmd.Process.Signal(syscall.SIGTERM) == nil {
		select {
		case <-p.exited:
			return
		case <-time.After(grace):
		}
	}
	// Fails only if the process has ended already.
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// WaitReady calls ready every 50 ms until it returns nil. It fails with the end
// of the process's log if the process ends first or ctx does.
func (p *Process) WaitReady(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.attempt(ctx, ready)
		// Before err: somebody else may answer where the process should have.
		select {
		case <-p.exited:
			return &ExitError{Name: p.name, Err: p.err, Log: LogTail(p.logFile, 20)}
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last attempt: %w\n%s", p.name, context.Cause(ctx), err, LogTail(p.logFile, 20))
		case <-tick.C:
		}
	}
}

// attempt calls ready once, for no longer than the process lives.
func (p *Process) attempt(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	go func() {
		select {
		case <-p.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ready(ctx)
}

// ExitError is a process that ended before it was ready.
type ExitError struct {
	Name string
	Err  error
	// Log is the end of what the process wrote.
	Log string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s ended early: %v; its last lines:\n%s", e.Name, e.Err, e.Log)
}

func (e *ExitError) Unwrap() error { return e.Err }

// LogTail returns the last lines of a log file, indented, or why they cannot be
// read.
func LogTail(file string, lines int) string {
	const window = 64 << 10
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	buf := make([]byte, min(info.Size(), window))
	n, _ := f.ReadAt(buf, info.Size()-int64(len(buf)))
	all := bytes.Split(bytes.TrimRight(buf[:n], "\n"), []byte("\n"))
	all = all[max(0, len(all)-lines):]
	return "\t" + string(bytes.Join(all, []byte("\n\t")))
}

// Retry calls start again if the process that it started could not bind its port: another
// may take a port between FreePorts and its use.
func Retry(start func() error) (err error) {
	for range 5 {
		err = start()
		exit, ok := errors.AsType[*ExitError](err)
		if !ok || !strings.Contains(exit.Log, "address already in use") {
			return err
		}
	}
	return err
}

// FreePorts returns n different TCP ports that were free on 127.0.0.1 a moment
// ago. Another process may take one before it is used: a program that cannot
// bind its port has to be started again with new ones.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		// Held until all are found, so that none is handed out twice.
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// GetOK asks for a URL, and fails unless the answer is 200: a condition for
// WaitReady.
func GetOK(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return nil
}
