package probe

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

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
	n := node{probetest.NewRoot(t)}
	for _, dir := range []string{"proc", "sys", "var/lib/kubelet"} {
		probetest.Must(t, os.MkdirAll(n.Path(dir), 0o755))
	}
	for name, text := range m {
		n.Write(t, name, text)
	}
	return n
}

// node is a machine that has been written to disk.
type node struct{ probetest.Root }

func (n node) config() Config {
	return Config{
		Procfs: n.Path("proc"), Sysfs: n.Path("sys"), Rootfs: n.Dir,
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
	probetest.Must(t, err)
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
		s.PodsCgroup = ""                                // TestPodsCgroup looks at it
		s.Machine.KernelVersion, s.Machine.OperatingSystem, s.Machine.Architecture = "", "", ""
	}
	return cmp.Diff(want, got, cmp.Transformer("text", func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}))
}
