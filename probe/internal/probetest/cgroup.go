package probetest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is a cgroup of the memory controller, made by NewCgroup.
type Cgroup struct {
	Dir string
	V2  bool
}

// NewCgroup makes a memory cgroup of that name, and removes it when the test ends.
func NewCgroup(t *testing.T, name string) *Cgroup {
	t.Helper()
	root, v2 := memoryController()
	if root == "" {
		Lacking(t, "no memory controller")
	}
	g := &Cgroup{filepath.Join(root, name), v2}
	if err := os.Mkdir(g.Dir, 0o755); err != nil {
		Lacking(t, "make memory cgroup: %v", err)
	}
	t.Cleanup(func() {
		for range 1000 { // it is busy until the kernel is done with the dead
			if err := os.Remove(g.Dir); !errors.Is(err, unix.EBUSY) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("cannot remove %s", g.Dir)
	})
	if v2 {
		if _, err := os.Stat(filepath.Join(g.Dir, "memory.max")); err != nil {
			Lacking(t, "the memory controller is not handed on: %v", err)
		}
	}
	return g
}

// Write writes text to a file of the cgroup.
func (g *Cgroup) Write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.Dir, file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// Start starts TestHog, which calls Hog, in the cgroup; it ends by stop, or with the
// test. The job is "fill" or "stall".
func (g *Cgroup) Start(t *testing.T, job string) (stop func()) {
	t.Helper()
	hog := exec.Command("/proc/self/exe", "-test.run=^TestHog$")
	hog.Env = append(os.Environ(), "NODEPROBE_HOG="+job, "NODEPROBE_HOG_CGROUP="+g.Dir, "NODEPROBE_HOG_FILE="+filepath.Join(t.TempDir(), "hog"))
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

// Hog is what TestHog of a package that starts one must call: not a test, but the
// process that other tests start. It gives up by itself, should the test that started
// it not end it.
func Hog(t *testing.T) {
	job := os.Getenv("NODEPROBE_HOG")
	if job == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("NODEPROBE_HOG_CGROUP"), "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	_, v2 := memoryController()
	const size, page = 128 << 20, 4096
	buf := bytes.Repeat([]byte{1}, page)
	enough := time.Now().Add(30 * time.Second)
	if job == "fill" || v2 {
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

// memoryController returns the root of the memory controller, "" if there is none. It
// does not ask package cgroup, whose tests use this package.
func memoryController() (dir string, v2 bool) {
	const v1 = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(v1 + "/memory.usage_in_bytes"); err == nil {
		return v1, false
	}
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(dir + "/memory.stat"); err == nil {
			return dir, true
		}
	}
	return "", false
}
