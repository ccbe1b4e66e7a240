package probe

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// machine is a made-up node: the text of its files by path, such as
// "proc/meminfo".
type machine map[string]string

// with returns the machine with some files changed or added.
func (m machine) with(files machine) machine {
	m = maps.Clone(m)
	maps.Copy(m, files)
	return m
}

// without returns the machine without the files that are, or are below, paths.
func (m machine) without(paths ...string) machine {
	m = maps.Clone(m)
	for _, p := range paths {
		maps.DeleteFunc(m, func(name, _ string) bool { return name == p || strings.HasPrefix(name, p+"/") })
	}
	return m
}

// boot writes the machine to a directory of the test.
func (m machine) boot(t testing.TB) node {
	t.Helper()
	n := node{t.TempDir()}
	for _, dir := range []string{"proc", "sys", "var/lib/kubelet"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range m {
		n.write(t, name, text)
	}
	return n
}

// node is a machine that has been written to disk.
type node struct{ root string }

func (n node) path(name string) string { return filepath.Join(n.root, name) }

// write changes a file in place, so that whoever has it open sees the change, as
// with a file of the kernel's.
func (n node) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (n node) remove(t testing.TB, name string) {
	t.Helper()
	if err := os.RemoveAll(n.path(name)); err != nil {
		t.Fatal(err)
	}
}

func (n node) config() Config {
	return Config{
		Procfs: n.path("proc"), Sysfs: n.path("sys"), Rootfs: n.root,
		RootDirectory: "/var/lib/kubelet", Interval: 10 * time.Second,
	}
}

// sampler samples the node. Its filesystems have the size of fakeStatfs.
func (n node) sampler(t testing.TB, change ...func(*Config)) *Sampler {
	t.Helper()
	cfg := n.config()
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.disks.nodefs.call, s.disks.imagefs.call = fakeStatfs, fakeStatfs
	return s
}

// fakeStatfs answers for a disk of 1000 blocks, 300 of them free and 50 of those
// reserved for root.
func fakeStatfs(_ []byte, st *unix.Statfs_t) error {
	*st = unix.Statfs_t{Bsize: 512, Frsize: 4096, Blocks: 1000, Bfree: 300, Bavail: 250, Files: 600, Ffree: 500}
	return nil
}

// resample takes a sample that reads what rarely changes, too.
func resample(s *Sampler) *Snapshot {
	s.machineRead = time.Time{}
	return s.Sample()
}

// diff compares snapshots, except for when they were taken and for what the
// kernel that the test runs on says. Errors are compared by their text.
func diff(want, got Snapshot) string {
	for _, s := range []*Snapshot{&want, &got} {
		s.Time, s.Took = time.Time{}, 0
		s.NodeFs, s.ImageFs = Filesystem{}, Filesystem{} // TestFilesystem looks at them
		s.Machine.KernelVersion, s.Machine.OperatingSystem, s.Machine.Architecture = "", "", ""
	}
	return cmp.Diff(want, got, cmp.Transformer("text", func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}))
}

// checkError fails unless err is nil and no error is wanted, or it wraps want.
func checkError(t testing.TB, err, want error) {
	t.Helper()
	if (err == nil) != (want == nil) || !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}
