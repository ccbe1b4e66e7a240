// Package pressure makes real problems on this machine, bounded ones: memory in
// use, a filesystem that runs full, tasks that use up process IDs.
//
// Whatever it makes is undone by a separate process, the keeper, as soon as the
// pressure is released or the process that asked for it ends, however it ends:
// a test that runs into its timeout or is killed runs no clean-up of its own.
//
// The children are this program, started again. It must therefore call Main
// before it does anything else.
package pressure

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// childEnv tells a child what it is there for.
const childEnv = "NODEPROBE_PRESSURE_CHILD"

// mainCalled guards against a program that does not call Main: its child would
// run the program again, tests and all, and that one too.
var mainCalled atomic.Bool

// role is what a child does, as JSON in its environment. Exactly one of
// Memory, Tasks, Sleep and Keep is set.
type role struct {
	// Cgroup is a directory to move into first.
	Cgroup string `json:",omitempty"`
	// Name is what to call the process from then on; "" leaves it as it is.
	Name string `json:",omitempty"`
	// Memory is how many bytes to hold.
	Memory int64 `json:",omitempty"`
	// Tasks is how many threads to have in all.
	Tasks int `json:",omitempty"`
	// Sleep is to be as small as a process can be.
	Sleep bool `json:",omitempty"`
	// Keep is what to undo in the end.
	Keep []undo `json:",omitempty"`
}

// Main plays the child's part, and then ends the process, if this process is a
// child of the package. Otherwise it returns. Call it first in TestMain and in
// any main function of a program that uses the package.
func Main() {
	mainCalled.Store(true)
	job := os.Getenv(childEnv)
	if job == "" {
		return
	}
	var r role
	err := json.Unmarshal([]byte(job), &r)
	if err == nil {
		err = r.play()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

const readyLine = "ready"

// play does what the role says, until stdin ends: when the parent closes it, or
// when the parent is no more.
func (r role) play() error {
	if r.Cgroup != "" {
		if err := joinCgroup(r.Cgroup); err != nil {
			return err
		}
	}
	if r.Name != "" {
		if err := os.WriteFile("/proc/self/comm", []byte(r.Name), 0); err != nil {
			return fmt.Errorf("take a name: %w", err)
		}
	}
	if r.Memory > 0 {
		if err := holdMemory(r.Memory); err != nil {
			return err
		}
	}
	if r.Tasks > 0 {
		holdTasks(r.Tasks)
	}
	fmt.Println(readyLine)
	if r.Sleep {
		// It waits for the end of its stdin, too, without a runtime of its own.
		cat, err := exec.LookPath("cat")
		if err != nil {
			return err
		}
		return syscall.Exec(cat, []string{"cat"}, nil)
	}
	// An error ends the wait just as well.
	_, _ = io.Copy(io.Discard, os.Stdin)
	return undoAll(r.Keep)
}

// child is a process that plays a role.
type child struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	once   sync.Once
	err    error
}

// startChild returns when the child is ready.
func startChild(r role) (*child, error) {
	if !mainCalled.Load() {
		return nil, errors.New("start pressure: the program does not call pressure.Main")
	}
	job, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(job))
	// A process group of its own: ^C is for the parent. The child learns of it
	// by the end of its stdin, and the keeper has to live until it has undone all.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start pressure: %w", err)
	}
	c := &child{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout)}
	line, err := c.stdout.ReadString('\n')
	if line = strings.TrimSpace(line); line != readyLine {
		// The line is the child's error; without one, it was killed.
		err = errors.Join(err, c.release())
		if line != "" {
			err = errors.New(line)
		}
		return nil, fmt.Errorf("start pressure: %w", err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// release ends the child and returns when it is gone, and with it what it held.
func (c *child) release() error {
	c.once.Do(func() {
		c.stdin.Close()
		output, _ := io.ReadAll(c.stdout)
		if err := c.cmd.Wait(); err != nil {
			c.err = fmt.Errorf("release pressure: %w: %s", err, strings.TrimSpace(string(output)))
		}
	})
	return c.err
}

// Pressure is something to be released.
type Pressure struct {
	// Cgroup is the directory of the cgroup that holds it.
	Cgroup  string
	holders []*child
	keeper  *child
}

// PIDs returns the processes that make the pressure.
func (p *Pressure) PIDs() []int {
	var pids []int
	for _, c := range p.holders {
		pids = append(pids, c.pid())
	}
	return pids
}

// Release ends the pressure and removes all that it was made of. Releasing
// twice is fine.
func (p *Pressure) Release() error {
	var errs []error
	for _, c := range p.holders {
		errs = append(errs, c.release())
	}
	if p.keeper != nil {
		errs = append(errs, p.keeper.release())
	}
	return errors.Join(errs...)
}
