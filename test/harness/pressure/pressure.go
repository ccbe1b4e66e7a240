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
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
// Memory, Sleep, Keep, Hog, Read and Burst is set.
type role struct {
	// Cgroup is a directory to move into first.
	Cgroup string `json:",omitempty"`
	// Name is what to call the process from then on; "" leaves it as it is.
	Name string `json:",omitempty"`
	// Memory is how many bytes to hold.
	Memory int64 `json:",omitempty"`
	// Sleep is to be as small as a process can be.
	Sleep bool `json:",omitempty"`
	// Keep is what to undo in the end.
	Keep []undo `json:",omitempty"`
	// Hog, Read and Burst are a storm's: see storm.go. Runs is how much of the file that
	// is read is rather run.
	Hog   bool   `json:",omitempty"`
	Read  string `json:",omitempty"`
	Runs  int64  `json:",omitempty"`
	Burst int64  `json:",omitempty"`
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
	servant, err := r.servant()
	if err != nil {
		return err
	}
	fmt.Println(readyLine)
	if servant != nil {
		return serve(servant)
	}
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
	stdin  io.WriteCloser
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

// cgroup is one that does not exist yet.
type cgroup struct {
	dir string
	// limitFile is the name of the file that takes the limit.
	limitFile string
	// enableFile is the parent's file that has to name the controller before its
	// children have it (v2 only). Empty if it does already.
	enableFile string
	controller string
}

// cgroups numbers the cgroups of this process.
var cgroups atomic.Int64

// planCgroup decides where a cgroup of the controller ("memory", "pids") will
// be: below the root of the v1 hierarchy that has it, or else of cgroup v2.
func planCgroup(controller string) (*cgroup, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	root, v2, err := cgroupRoot(mountinfo, controller, func(root string) bool { return hasWord(root+"/cgroup.controllers", controller) })
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("nodeprobe-test-%d-%d", os.Getpid(), cgroups.Add(1))
	g := &cgroup{dir: filepath.Join(root, name), limitFile: limitFile(controller, v2), controller: controller}
	if file := filepath.Join(root, "cgroup.subtree_control"); v2 && !hasWord(file, controller) {
		g.enableFile = file
	}
	return g, nil
}

// cgroupRoot returns the mount point of the hierarchy that has the controller.
func cgroupRoot(mountinfo []byte, controller string, inV2 func(root string) bool) (root string, v2 bool, err error) {
	var unified string
	for line := range bytes.Lines(mountinfo) {
		// 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
		mount, fstype, found := strings.Cut(string(line), " - ")
		fields, tail := strings.Fields(mount), strings.Fields(fstype)
		if !found || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		switch tail[0] {
		case "cgroup":
			if slices.Contains(strings.Split(tail[2], ","), controller) {
				return fields[4], false, nil
			}
		case "cgroup2":
			unified = fields[4]
		}
	}
	if unified != "" && inV2(unified) {
		return unified, true, nil
	}
	return "", false, fmt.Errorf("find cgroups: no hierarchy has the %s controller", controller)
}

func limitFile(controller string, v2 bool) string {
	if controller == "memory" && !v2 {
		return "memory.limit_in_bytes"
	}
	return controller + ".max" // memory.max; pids.max in both versions.
}

// create makes the cgroup and limits it. A controller that it had to enable
// stays enabled: by the time of the release somebody else may rely on it.
func (g *cgroup) create(limit int64) error {
	if g.enableFile != "" {
		if err := os.WriteFile(g.enableFile, []byte("+"+g.controller), 0); err != nil {
			return fmt.Errorf("enable cgroup controller: %w", err)
		}
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if limit == unlimited {
		return nil
	}
	if err := os.WriteFile(filepath.Join(g.dir, g.limitFile), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		return fmt.Errorf("limit cgroup: %w", err)
	}
	return nil
}

// joinCgroup moves this process there.
func joinCgroup(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// unlimited leaves a cgroup without a limit.
const unlimited = -1

// inCgroup starts the holders in a new cgroup, or each in the one below it that its
// role names, with a keeper over it all.
func inCgroup(controller string, limit int64, roles []role) (*Pressure, error) {
	g, err := planCgroup(controller)
	if err != nil {
		return nil, err
	}
	return g.start(limit, roles)
}

func (g *cgroup) start(limit int64, roles []role) (_ *Pressure, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("make pressure: needs root")
	}
	p := &Pressure{Cgroup: g.dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Release())
		}
	}()
	var keep []undo
	for i := range roles {
		below := roles[i].Cgroup != ""
		roles[i].Cgroup = filepath.Join(g.dir, roles[i].Cgroup)
		if below {
			keep = append(keep, undo{RemoveCgroup: roles[i].Cgroup})
		}
	}
	// Before there is anything to undo, so that there is no gap.
	if p.keeper, err = startChild(role{Keep: append(keep, undo{RemoveCgroup: g.dir})}); err != nil {
		return nil, err
	}
	if err := g.create(limit); err != nil {
		return nil, err
	}
	for _, r := range roles {
		if err := os.MkdirAll(r.Cgroup, 0o755); err != nil {
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		c, err := startChild(r)
		if err != nil {
			return nil, err
		}
		p.holders = append(p.holders, c)
	}
	return p, nil
}

func hasWord(file, word string) bool {
	data, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(data)), word)
}
