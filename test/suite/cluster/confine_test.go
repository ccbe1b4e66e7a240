package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// confinedEnv names, within the confined process, the directory that everything of
// this run is in. keeperEnv names it within the process that tidies up, and
// keeperMadeEnv the directories outside of it that were made for this run.
const (
	confinedEnv   = "NODEPROBE_CLUSTER_DIR"
	keeperEnv     = "NODEPROBE_CLUSTER_KEEPER"
	keeperMadeEnv = "NODEPROBE_CLUSTER_MADE"
)

// private are directories whose places kubelets and containerds do not let one
// choose, or that nodeprobe looks into. Each run has its own in place of the machine's.
var private = []string{"/var/lib/kubelet", podLogs, "/var/log/containers", "/run/containerd"}

const podLogs = "/var/log/pods"

// confine runs the tests in a process with mounts of its own. They are shared, as
// systemd has them and as a container needs them to see later mounts, and they are
// gone with the last process. What the tests leave behind, because they were
// killed or because something is wrong, is an error, and is ended and removed.
func confine(tests func() int) (code int, err error) {
	if os.Getenv(confinedEnv) != "" {
		if err := hide(); err != nil {
			return 1, err
		}
		return tests(), nil
	}
	if dir := os.Getenv(keeperEnv); dir != "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the end of who started it
		time.Sleep(time.Second)              // for the kubelet to have ended, too
		err := tidy(dir)
		for _, place := range filepath.SplitList(os.Getenv(keeperMadeEnv)) {
			_ = os.Remove(place) // it stays if somebody else has come to use it
		}
		return 0, err
	}
	// Short, as the paths of sockets below it must be.
	dir, err := os.MkdirTemp("", "npcluster-")
	if err != nil {
		return 1, fmt.Errorf("make directory: %w", err)
	}
	release, err := keep(dir)
	if err != nil {
		return 1, err
	}
	code, err = runConfined(dir)
	err = errors.Join(err, tidy(dir), release())
	if code != 0 || err != nil {
		fmt.Fprintln(os.Stderr, "files kept in", dir)
		return code, err
	}
	return code, os.RemoveAll(dir)
}

// keep makes the private directories that the machine lacks, and starts a process
// that tidies up when this one has ended, be it killed.
func keep(dir string) (release func() error, err error) {
	var made []string
	for _, place := range private {
		if os.MkdirAll(filepath.Dir(place), 0o755) == nil && os.Mkdir(place, 0o755) == nil {
			made = append(made, place)
		}
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), keeperEnv+"="+dir, keeperMadeEnv+"="+strings.Join(made, string(filepath.ListSeparator)))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is not for it
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	return func() error {
		stdin.Close()
		return cmd.Wait()
	}, nil
}

func runConfined(dir string) (code int, err error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), confinedEnv+"="+dir, "TMPDIR="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig is sent when the parent thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start tests with mounts of their own: %w", err)
	}
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig) // it may have ended
		}
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

func hide() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	for _, place := range private {
		if err := unix.Mount("tmpfs", place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("hide %s: %w", place, err)
		}
	}
	return nil
}

// cgroupName is the cgroup, of every controller, that all pods of a run are in.
func cgroupName(dir string) string { return "/" + filepath.Base(dir) }

func cgroupDirs(name string) ([]string, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	var dirs []string
	for line := range strings.Lines(string(mountinfo)) {
		mount, fstype, _ := strings.Cut(line, " - ")
		// Also of v2 beside v1, where runc makes them too.
		if fields := strings.Fields(mount); len(fields) > 4 && strings.HasPrefix(fstype, "cgroup") {
			dirs = append(dirs, filepath.Join(fields[4], name))
		}
	}
	return dirs, nil
}

// tidy ends and removes what a run has left. Of its cgroups only the processes are
// worth a complaint: a kubelet never removes those that it makes for all pods.
func tidy(dir string) error {
	left, err := leftovers(dir)
	for pid, what := range left {
		err = errors.Join(err, fmt.Errorf("left running: %s", what), unix.Kill(pid, unix.SIGKILL))
	}
	dirs, dirsErr := cgroupDirs(cgroupName(dir))
	err = errors.Join(err, dirsErr)
	for _, d := range dirs {
		err = errors.Join(err, removeCgroups(d))
	}
	return err
}

// leftovers returns the processes that are in our cgroups, and the shims of our
// containerd, with their command lines.
func leftovers(dir string) (map[int]string, error) {
	found := map[int]string{}
	dirs, err := cgroupDirs(cgroupName(dir))
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		err := filepath.WalkDir(d, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return err
			}
			procs, err := os.ReadFile(path)
			for pid := range strings.FieldsSeq(string(procs)) {
				if n, err := strconv.Atoi(pid); err == nil {
					found[n] = "in " + path
				}
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for processes: %w", err)
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		cmdline, err := os.ReadFile(file)
		if err == nil && bytes.Contains(cmdline, []byte("containerd-shim")) && bytes.Contains(cmdline, []byte(dir+"/")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			found[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return found, nil
}

// removeCgroups removes a cgroup with those below it, which takes the kernel a
// moment after the last process has ended.
func removeCgroups(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(dirs) > 0 && err == nil {
		err = os.Remove(dirs[len(dirs)-1])
		switch {
		case err == nil:
			dirs = dirs[:len(dirs)-1]
		case errors.Is(err, unix.EBUSY) && time.Now().Before(deadline):
			time.Sleep(10 * time.Millisecond)
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}
