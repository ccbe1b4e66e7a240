package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
	"golang.org/x/sys/unix"
)

func TestPath(t *testing.T) {
	group := probetest.NewCgroup(t, "nodeprobe-test-path")
	root := filepath.Dir(group.Dir)
	inner := filepath.Join(group.Dir, "a b")
	probetest.Must(t, os.Mkdir(inner, 0o755))
	t.Cleanup(func() { os.Remove(inner) })
	var st unix.Stat_t
	id := func(dir string) uint64 {
		t.Helper()
		probetest.Must(t, unix.Stat(dir, &st))
		return st.Ino
	}
	ids := map[string]uint64{"/": id(root), "/nodeprobe-test-path": id(group.Dir), "/nodeprobe-test-path/a b": id(inner)}

	ways := map[string]func(uint64) (string, error){
		"either": func(id uint64) (string, error) { return finder().Path(id, 0) },
		"walk":   func(id uint64) (string, error) { return byWalk(root, id) },
		"handle": func(id uint64) (string, error) { return byHandle(root, id) },
	}
	check := func(t *testing.T, way func(uint64) (string, error), id uint64, want string, wantErr error) {
		t.Helper()
		got, err := way(id)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			probetest.Lacking(t, "CAP_DAC_READ_SEARCH: %v", err)
		}
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("%d: got %q, %v; want %q, %v", id, got, err, want, wantErr)
		}
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			for want, id := range ids {
				check(t, way, id, want, nil)
			}
		})
	}
	probetest.Must(t, os.Remove(inner))
	for name, way := range ways {
		t.Run(name+" when gone", func(t *testing.T) {
			for _, id := range []uint64{ids["/nodeprobe-test-path/a b"], 0, 1 << 40, 1<<64 - 1} {
				check(t, way, id, "", fs.ErrNotExist)
			}
		})
	}
	// Only part of the hierarchy is there to see.
	if got, err := byHandle(group.Dir, ids["/"]); err == nil {
		t.Logf("the root of the hierarchy seen from below is %q", got)
	}
	if _, err := (&Finder{Procfs: "/proc", Cgroupfs: t.TempDir()}).Path(1, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no hierarchy: got %v, want fs.ErrNotExist", err)
	}
}

func finder() *Finder { return &Finder{Procfs: "/proc", Cgroupfs: "/sys/fs/cgroup"} }

// Without CAP_DAC_READ_SEARCH the process tells where it is. From within a cgroup
// namespace that takes one look at every cgroup, and none for other victims.
func TestPathOfTask(t *testing.T) {
	const inside = "NODEPROBE_GROUP"
	name := os.Getenv(inside)
	if name == "" {
		name = fmt.Sprintf("nodeprobe-test-task-%d", os.Getpid())
		group := probetest.NewCgroup(t, name)
		for _, dir := range []string{"own", "own/deeper", "a", "a/first", "a/second"} {
			dir := filepath.Join(group.Dir, dir)
			probetest.Must(t, os.Mkdir(dir, 0o755))
			t.Cleanup(func() { removeCgroup(t, dir) })
		}
		exe, err := os.Executable()
		probetest.Must(t, err)
		const script = `echo 0 >"$0/own/deeper/cgroup.procs" && exec "$@"`
		const without = "-dac_read_search"
		for flags, says := range map[string]string{"": "found without a walk: 3", "--cgroup": "found without a walk: 2"} {
			args := []string{"-c", script, group.Dir, "unshare"}
			if flags != "" {
				args = append(args, flags)
			}
			args = append(args, "setpriv", "--bounding-set", without, "--inh-caps", without, exe, "-test.v", "-test.run=^TestPathOfTask$")
			cmd := exec.CommandContext(t.Context(), "sh", args...)
			cmd.Env = append(os.Environ(), inside+"="+name)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), says) {
				t.Errorf("%q: %v, want %q: %s", flags, err, says, out)
			}
		}
		return
	}
	root, _ := Memory("/sys/fs/cgroup")
	f, without := finder(), 0
	for _, path := range []string{"/a/first", "/a/second", "/a"} {
		path = "/" + name + path
		sleep := exec.CommandContext(t.Context(), "sleep", "60")
		probetest.Must(t, sleep.Start())
		probetest.Must(t, os.WriteFile(filepath.Join(root, path, "cgroup.procs"), []byte(strconv.Itoa(sleep.Process.Pid)), 0))
		var st unix.Stat_t
		probetest.Must(t, unix.Stat(filepath.Join(root, path), &st))
		if _, err := byHandle(root, st.Ino); !errors.Is(err, unix.EPERM) {
			t.Fatalf("by handle: %v, want EPERM", err)
		}
		before := f.walked
		got, err := f.Path(st.Ino, sleep.Process.Pid)
		if got != path || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, path)
		}
		if f.walked.Equal(before) {
			without++
		}
		// One that is elsewhere, or gone, tells nothing, and one walk a minute is all.
		for range 3 {
			before := f.walked
			f.walked = time.Now()
			if got, err := f.Path(st.Ino, 1); err == nil {
				t.Errorf("by a process elsewhere: %q", got)
			}
			f.walked = before
		}
		probetest.Must(t, sleep.Process.Kill())
		sleep.Wait()
		f.walked = time.Now()
		if got, err := f.Path(st.Ino, sleep.Process.Pid); err == nil {
			t.Errorf("by a process that is gone: %q", got)
		}
		f.walked = f.walked.Add(-walkInterval)
		if got, err := f.Path(st.Ino, sleep.Process.Pid); got != path || err != nil {
			t.Errorf("by a walk: %q, %v; want %q", got, err, path)
		}
	}
	t.Logf("found without a walk: %d", without)
}

// removeCgroup removes one as soon as the kernel is done with the dead in it.
func removeCgroup(t *testing.T, dir string) {
	t.Helper()
	for range 1000 {
		if err := os.Remove(dir); !errors.Is(err, unix.EBUSY) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("cannot remove %s", dir)
}

func BenchmarkPath(b *testing.B) {
	dir, _ := Memory("/sys/fs/cgroup")
	for name, way := range map[string]func(string, uint64) (string, error){"handle": byHandle, "walk": byWalk} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				way(dir, 1<<40) // none: the dearest
			}
		})
	}
}
