package probe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lacking skips the test for want of a right or a tool, which CI does not allow.
func lacking(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("NODEPROBE_REQUIRE") == "1" {
		t.Fatalf("NODEPROBE_REQUIRE=1, but "+format, args...)
	}
	t.Skipf(format, args...)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// inMountNamespace calls f on a thread that has a mount namespace of its own,
// where it may mount what it likes; procfs has this namespace's table as that of
// process 1. f must not start goroutines that look at mounts. The namespace, and
// what is mounted, end with the thread.
func inMountNamespace(t *testing.T, f func(procfs string) error) {
	t.Helper()
	procfs := t.TempDir()
	if err := os.Mkdir(filepath.Join(procfs, "1"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("make mount namespace")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: nobody else gets the thread
		var err error
		defer func() { done <- err }()
		if err = unix.Unshare(unix.CLONE_NEWNS); err != nil {
			err = fmt.Errorf("%w: %w", refused, err)
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return
		}
		table := fmt.Sprintf("/proc/%d/task/%d/mountinfo", os.Getpid(), unix.Gettid())
		if err = os.Symlink(table, filepath.Join(procfs, "1/mountinfo")); err != nil {
			return
		}
		err = f(procfs)
	}()
	if err := <-done; errors.Is(err, refused) {
		lacking(t, "%v", err)
	} else if err != nil {
		t.Error(err)
	}
}

// testCgroup is a cgroup of the memory controller that a test has made.
type testCgroup struct {
	dir     string
	version CgroupVersion
}

func newMemoryCgroup(t *testing.T, name string) *testCgroup {
	t.Helper()
	root, version := memoryHierarchy("/sys/fs/cgroup")
	if version == CgroupNone {
		lacking(t, "no memory controller")
	}
	g := &testCgroup{filepath.Join(root, name), version}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		lacking(t, "make memory cgroup: %v", err)
	}
	t.Cleanup(func() {
		for range 1000 { // it is busy until the kernel is done with the dead
			if err := os.Remove(g.dir); !errors.Is(err, unix.EBUSY) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("cannot remove %s", g.dir)
	})
	if version == CgroupV2 {
		if _, err := os.Stat(filepath.Join(g.dir, "memory.max")); err != nil {
			lacking(t, "the memory controller is not handed on: %v", err)
		}
	}
	return g
}

func (g *testCgroup) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// start starts TestHog in the cgroup; it ends by stop, or with the test.
func (g *testCgroup) start(t *testing.T, job string) (stop func()) {
	t.Helper()
	hog := exec.Command("/proc/self/exe", "-test.run=^TestHog$")
	hog.Env = append(os.Environ(), "NODEPROBE_HOG="+job, "NODEPROBE_HOG_CGROUP="+g.dir, "NODEPROBE_HOG_FILE="+filepath.Join(t.TempDir(), "hog"))
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		hog.Process.Kill()
		hog.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestHog is not a test but the process that other tests start. It gives up by
// itself, should the test that started it not end it.
func TestHog(t *testing.T) {
	job := os.Getenv("NODEPROBE_HOG")
	if job == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("NODEPROBE_HOG_CGROUP"), "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	_, version := memoryHierarchy("/sys/fs/cgroup")
	const size, page = 128 << 20, 4096
	buf := bytes.Repeat([]byte{1}, page)
	enough := time.Now().Add(30 * time.Second)
	if job == "fill" || version == CgroupV2 {
		for time.Now().Before(enough) {
			memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < size; i += page {
				memory[i] = 1
			}
			unix.Munmap(memory)
		}
		return
	}
	f, err := os.Create(os.Getenv("NODEPROBE_HOG_FILE"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range size / page {
		if _, err := f.Write(buf); err != nil {
			t.Fatal(err)
		}
	}
	// Without reading ahead, each page that was reclaimed is waited for.
	unix.Fadvise(int(f.Fd()), 0, size, unix.FADV_RANDOM)
	for i := int64(0); ; i += page {
		if _, err := f.ReadAt(buf, i%size); err != nil || i%size == 0 && time.Now().After(enough) {
			return
		}
	}
}
