package cluster

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/wait"
)

// confinedEnv names, within the confined process, the directory of this run.
const confinedEnv = "NODEPROBE_CLUSTER_DIR"

// private are directories that kubelets and containerds insist on, or that nodeprobe
// looks into. Each run has its own in place of the machine's.
var private = []string{"/var/lib/kubelet", podLogs, "/var/log/containers", "/run/containerd"}

const podLogs = "/var/log/pods"

// confine runs the test in a process with mounts of its own. They are shared, as
// systemd has them and as a container needs them to see later mounts, and they are
// gone with the last process. What the test leaves behind, because it was interrupted
// or because something is wrong, is an error, and is ended and removed.
func confine(t *testing.T) {
	t.Helper()
	// Short, as the paths of sockets below it must be.
	dir := must.Get(os.MkdirTemp("", "npcluster-"))(t) //nolint:usetesting // see above
	for _, place := range private {
		if os.MkdirAll(filepath.Dir(place), 0o755) == nil && os.Mkdir(place, 0o755) == nil {
			t.Cleanup(func() { _ = os.Remove(place) }) // fails if something else has come to use it
		}
	}
	t.Cleanup(func() {
		tidy(t, dir)
		if t.Failed() {
			t.Logf("files kept in %s", dir)
			return
		}
		must.Note(t, os.RemoveAll(dir))
	})
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	args := []string{"-test.run=^TestCluster$", "-test.v", "-pods"}
	if deadline, ok := t.Deadline(); ok { // before this process's, which has to tidy up
		args = append(args, "-test.timeout="+time.Until(deadline.Add(-time.Minute)).String())
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), confinedEnv+"="+dir, "TMPDIR="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig is sent when the parent thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must.Note(t, cmd.Run())
}

func hide(t *testing.T) {
	t.Helper()
	must.OK(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	for _, place := range private {
		must.OK(t, unix.Mount("tmpfs", place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"))
	}
}

// cgroupName is the cgroup, of every controller, that all pods of a run are in.
func cgroupName(dir string) string { return "/" + filepath.Base(dir) }

func cgroupDirs(t *testing.T, name string) (dirs []string) {
	t.Helper()
	for line := range strings.Lines(string(must.Get(os.ReadFile("/proc/self/mountinfo"))(t))) {
		mount, fstype, _ := strings.Cut(line, " - ")
		// Also of v2 beside v1, where runc makes them too.
		if fields := strings.Fields(mount); len(fields) > 4 && strings.HasPrefix(fstype, "cgroup") {
			dirs = append(dirs, filepath.Join(fields[4], name))
		}
	}
	return dirs
}

// tidy ends and removes what a run has left. Of its cgroups only the processes are
// an error: a kubelet never removes those that it makes for all pods.
func tidy(t *testing.T, dir string) {
	t.Helper()
	for pid, what := range leftovers(t, dir) {
		t.Errorf("left running: %s (%v)", what, unix.Kill(pid, unix.SIGKILL))
	}
	for _, d := range cgroupDirs(t, cgroupName(dir)) {
		// The kernel takes a moment after the last process has ended.
		wait.Until(t, 10*time.Second, d+" is removed", func() error { return removeCgroups(d) })
	}
}

// removeCgroups removes a cgroup and those below it.
func removeCgroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

// leftovers returns the processes that are in a run's cgroups, and the shims of its
// containerd, with their command lines.
func leftovers(t *testing.T, dir string) map[int]string {
	t.Helper()
	found := map[int]string{}
	for _, d := range cgroupDirs(t, cgroupName(dir)) {
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
			t.Errorf("look for processes: %v", err)
		}
	}
	for _, file := range must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t) {
		cmdline, err := os.ReadFile(file)
		if err == nil && bytes.Contains(cmdline, []byte("containerd-shim")) && bytes.Contains(cmdline, []byte(dir+"/")) {
			pid := must.Get(strconv.Atoi(filepath.Base(filepath.Dir(file))))(t)
			found[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return found
}
