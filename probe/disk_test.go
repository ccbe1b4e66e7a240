package probe

import (
	"errors"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"
	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"golang.org/x/sys/unix"
)

func TestParseStatfs(t *testing.T) {
	disk := unix.Statfs_t{Bsize: 1024, Frsize: 4096, Blocks: 1000, Bfree: 300, Bavail: 250, Files: 600, Ffree: 500}
	for _, test := range []struct {
		name          string
		change        func(*unix.Statfs_t)
		space, inodes Observation
		err           error
	}{
		{name: "ext4: what is reserved for root is not available", change: func(*unix.Statfs_t) {}, space: observe(250*4096, 1000*4096), inodes: observe(500, 600)},
		{name: "f_frsize is 0: f_bsize counts", change: func(st *unix.Statfs_t) { st.Frsize = 0 }, space: observe(250*1024, 1000*1024), inodes: observe(500, 600)},
		{name: "btrfs, vfat: inodes are not counted", change: func(st *unix.Statfs_t) { st.Files, st.Ffree = 0, 0 }, space: observe(250*4096, 1000*4096)},
		{name: "inodes unlimited", change: func(st *unix.Statfs_t) { st.Files, st.Ffree = math.MaxUint64, math.MaxUint64 }, space: observe(250*4096, 1000*4096)},
		{name: "more inodes free than there are", change: func(st *unix.Statfs_t) { st.Ffree = 601 }, space: observe(250*4096, 1000*4096)},
		{name: "no inode left", change: func(st *unix.Statfs_t) { st.Ffree = 0 }, space: observe(250*4096, 1000*4096), inodes: observe(0, 600)},
		{name: "full", change: func(st *unix.Statfs_t) { st.Bavail = 0 }, space: observe(0, 1000*4096), inodes: observe(500, 600)},
		{name: "filled into the reserve", change: func(st *unix.Statfs_t) { st.Bavail = math.MaxUint64 - 49 }, space: observe(0, 1000*4096), inodes: observe(500, 600)},
		{name: "empty", change: func(st *unix.Statfs_t) { st.Bavail = 1000 }, space: observe(1000*4096, 1000*4096), inodes: observe(500, 600)},
		{
			name: "8 EiB less a block", change: func(st *unix.Statfs_t) { st.Blocks, st.Bavail = 1<<51-1, 1<<51-1 },
			space: observe(1<<63-4096, 1<<63-4096), inodes: observe(500, 600),
		},

		{name: "8 EiB", change: func(st *unix.Statfs_t) { st.Blocks = 1 << 51 }, err: errSize},
		{name: "no blocks, as proc", change: func(st *unix.Statfs_t) { st.Blocks, st.Bavail = 0, 0 }, err: errSize},
		{name: "no block size", change: func(st *unix.Statfs_t) { st.Frsize, st.Bsize = 0, 0 }, err: errSize},
		{name: "negative block size", change: func(st *unix.Statfs_t) { st.Frsize, st.Blocks = 0, 1<<40; st.Frsize-- }, err: errSize},
		{name: "all ones", change: func(st *unix.Statfs_t) {
			st.Frsize, st.Blocks, st.Bavail = 0, math.MaxUint64, math.MaxUint64
			st.Frsize--
		}, err: errSize},
		{name: "more available than there is", change: func(st *unix.Statfs_t) { st.Bavail = 1001 }, err: errSize},
		{name: "less than nothing by more than there is", change: func(st *unix.Statfs_t) { st.Bavail = math.MaxUint64 - 1000 }, err: errSize},
		{name: "the least int64 available", change: func(st *unix.Statfs_t) { st.Bavail = 1 << 63 }, err: errSize},
	} {
		t.Run(test.name, func(t *testing.T) {
			st := disk
			test.change(&st)
			space, inodes, err := parseStatfs(&st)
			probetest.CheckError(t, err, test.err)
			if space != test.space || inodes != test.inodes {
				t.Errorf("space %+v, inodes %+v; want %+v, %+v", space, inodes, test.space, test.inodes)
			}
		})
	}
}

// calls records the paths that statfs was asked about; those in absent do not
// exist.
type calls struct {
	mu     sync.Mutex
	absent map[string]bool
	paths  []string
}

func (c *calls) statfs(path []byte, st *unix.Statfs_t) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := strings.TrimSuffix(string(path), "\x00")
	c.paths = append(c.paths, name)
	if c.absent[name] || len(name) == len(path) {
		return unix.ENOENT
	}
	return fakeStatfs(path, st)
}

func (c *calls) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := strings.Join(c.paths, " ")
	c.paths = nil
	return taken
}

// A directory that is not there yet is on the filesystem that it will be made
// on, and is found as soon as it is there.
func TestFirstDirectoryThatExistsCounts(t *testing.T) {
	nodefs := &calls{absent: map[string]bool{"/var/lib/kubelet": true, "/var/lib": true}}
	imagefs := &calls{absent: map[string]bool{"/var/lib/containerd": true, "/var/lib/kubelet": true}}
	cfg := machine{}.boot(t).config()
	cfg.Rootfs, cfg.ImageDirectories = "/", []string{"/var/lib/containerd", "/var/lib/docker"}
	s, err := New(cfg)
	probetest.Must(t, err)
	defer s.Close()
	s.disks.nodefs.call, s.disks.imagefs.call = nodefs.statfs, imagefs.statfs
	s.Sample()
	if got, want := nodefs.take(), "/var/lib/kubelet /var/lib /var"; got != want {
		t.Errorf("nodefs: asked about %s, want %s", got, want)
	}
	if got, want := imagefs.take(), "/var/lib/containerd /var/lib/docker"; got != want {
		t.Errorf("imagefs: asked about %s, want %s", got, want)
	}
	nodefs.absent, imagefs.absent["/var/lib/docker"] = nil, true
	s.Sample()
	if got, want := nodefs.take(), "/var/lib/kubelet"; got != want {
		t.Errorf("nodefs, made: asked about %s, want %s", got, want)
	}
	if got, want := imagefs.take(), "/var/lib/containerd /var/lib/docker /var/lib/kubelet /var/lib"; got != want {
		t.Errorf("imagefs, no image directory: asked about %s, want %s", got, want)
	}
	imagefs.absent = map[string]bool{"/": true, "/var": true, "/var/lib": true, "/var/lib/kubelet": true, "/var/lib/docker": true, "/var/lib/containerd": true}
	probetest.CheckError(t, s.Sample().Errors[SourceImageFs], os.ErrNotExist)
}

// What a container runtime tells counts before what was configured, and does not
// wait for a filesystem that hangs.
func TestImagesAt(t *testing.T) {
	c := &calls{absent: map[string]bool{"/gone": true, "/var/lib/containerd": true}}
	cfg := machine{}.boot(t).config()
	cfg.Rootfs, cfg.ImageDirectories = "/", []string{"/var/lib/containerd"}
	synctest.Test(t, func(t *testing.T) {
		s, err := New(cfg)
		probetest.Must(t, err)
		defer s.Close()
		hang := make(chan struct{})
		defer close(hang)
		s.disks.nodefs.call, s.disks.imagefs.call = fakeStatfs, func(path []byte, st *unix.Statfs_t) error {
			if string(path) == "/hangs\x00" {
				<-hang
			}
			return c.statfs(path, st)
		}
		for _, step := range []struct{ dir, asked string }{
			{"", "/var/lib/containerd /var/lib/kubelet"},
			{"/run/images", "/run/images"},
			{"/run/images", "/run/images"},
			{"/gone", "/gone /var/lib/containerd /var/lib/kubelet"},
			{"/hangs", ""},
			{"/images", "/images"},
		} {
			if step.dir != "" {
				s.ImagesAt(step.dir)
			}
			got := s.Sample()
			if asked := c.take(); asked != step.asked {
				t.Errorf("%s: asked about %q, want %q", step.dir, asked, step.asked)
			}
			if ok := got.Signals[ImageFsAvailable].OK; ok != (step.asked != "") {
				t.Errorf("%s: %v, %v", step.dir, ok, got.Errors[SourceImageFs])
			}
		}
	})
}

func TestStatfsErrorTakesBothSignals(t *testing.T) {
	n := fullMachine.boot(t)
	s := n.sampler(t)
	broken := true
	s.disks.imagefs.call = func(path []byte, st *unix.Statfs_t) error {
		if broken {
			return unix.EIO
		}
		return fakeStatfs(path, st)
	}
	got := *s.Sample()
	err := got.Errors[SourceImageFs]
	probetest.CheckError(t, err, unix.EIO)
	if err == nil || !strings.Contains(err.Error(), n.Path("var/lib/kubelet")) {
		t.Errorf("%v does not name the directory", err)
	}
	want := fullSnapshot()
	want.Errors[SourceImageFs] = err
	want.Signals[ImageFsAvailable], want.Signals[ImageFsInodesFree] = Observation{Err: err}, Observation{Err: err}
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	broken = false
	if d := diff(fullSnapshot(), *s.Sample()); d != "" {
		t.Errorf("mended (-want +got):\n%s", d)
	}
}

// In a container, the node's root is mounted somewhere and a directory that is a
// link must not be looked up in the container.
func TestStatfsFollowsLinksOfTheNode(t *testing.T) {
	n := fullMachine.without("var/lib/kubelet").with(machine{"data/kubelet/x": ""}).boot(t)
	n.Remove(t, "var/lib/kubelet")
	probetest.Must(t, os.Symlink("/data/kubelet", n.Path("var/lib/kubelet")))
	s := n.sampler(t)
	var c calls
	s.disks.nodefs.call = c.statfs
	s.Sample()
	if got, want := c.take(), n.Path("data/kubelet"); got != want {
		t.Errorf("asked about %s, want %s", got, want)
	}
}

func TestRootThatIsNotThereRecovers(t *testing.T) {
	n := fullMachine.boot(t)
	s := n.sampler(t, func(c *Config) { c.Rootfs = n.Path("mnt") })
	for range 2 {
		err := s.Sample().Errors[SourceNodeFs]
		if probetest.CheckError(t, err, unix.ENOENT); err == nil || !strings.Contains(err.Error(), n.Path("mnt")) {
			t.Errorf("%v does not name the root", err)
		}
	}
	n.Write(t, "mnt/file", "")
	if err := s.Sample().Errors[SourceNodeFs]; err != nil {
		t.Errorf("mended: %v", err)
	}
}

// A directory in a container, where the node's root is to be mounted, is no node.
func TestEmptyRootRecovers(t *testing.T) {
	n := fullMachine.boot(t)
	probetest.Must(t, os.Mkdir(n.Path("mnt"), 0o755))
	s := n.sampler(t, func(c *Config) { c.Rootfs = n.Path("mnt") })
	for range 2 {
		snap := s.Sample()
		probetest.CheckError(t, snap.Errors[SourceNodeFs], errEmptyRoot)
		if snap.Signals[NodeFsAvailable].OK || snap.Signals[ImageFsAvailable].OK {
			t.Errorf("there are figures: %+v", snap.Signals)
		}
	}
	n.Write(t, "mnt/file", "")
	if err := s.Sample().Errors[SourceNodeFs]; err != nil {
		t.Errorf("mended: %v", err)
	}
}

func TestRealStatfs(t *testing.T) {
	var got, want unix.Statfs_t
	probetest.Must(t, hotfile.Statfs([]byte("/proc\x00"), &got))
	probetest.Must(t, unix.Statfs("/proc", &want))
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := hotfile.Statfs([]byte("/no/such\x00"), &got); !errors.Is(err, unix.ENOENT) {
		t.Errorf("error %v", err)
	}
}

// Where the filesystem is, and what of it root keeps for itself, go with every
// answer and with no other.
func TestFilesystem(t *testing.T) {
	f := newFilesystem("/", []string{"/a", "/"})
	f.got = statfsAnswer{path: "/host/a", st: unix.Statfs_t{Frsize: 4096, Blocks: 1000, Bfree: 300, Bavail: 250}}
	if got, want := f.found(nil), (Filesystem{Path: "/host/a", Reserved: 50 * 4096}); got != want {
		t.Errorf("found %+v, want %+v", got, want)
	}
	f.got.st.Bavail = 301 // nonsense
	if got, want := f.found(nil), (Filesystem{Path: "/host/a"}); got != want {
		t.Errorf("found %+v, want %+v", got, want)
	}
	f.got.err = unix.EIO
	if got := f.found(nil); got != (Filesystem{}) {
		t.Errorf("found %+v after an error", got)
	}
}

// The filesystem that counts is the one that symbolic links lead to, and a mount
// that changes is looked up when it is said to, not before.
func TestSnapshotMounts(t *testing.T) {
	for _, rootfs := range []string{"/", "elsewhere"} {
		t.Run(rootfs, func(t *testing.T) {
			n := fullMachine.boot(t)
			probetest.Must(t, errors.Join(os.MkdirAll(n.Path("data/kubelet"), 0o755), os.RemoveAll(n.Path("var/lib/kubelet"))))
			s := n.sampler(t)
			point := "/data"
			if rootfs == "/" {
				probetest.Must(t, os.Symlink(n.Path("data/kubelet"), n.Path("var/lib/kubelet")))
				s = n.sampler(t, func(c *Config) { c.Rootfs, c.RootDirectory = "/", n.Path("var/lib/kubelet") })
				point = n.Path("data")
			} else {
				probetest.Must(t, os.Symlink("/data/kubelet", n.Path("var/lib/kubelet")))
			}
			table := func(options string) string {
				return "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / " + point + " rw - ext4 /dev/sda2 " + options + "\n"
			}
			n.Write(t, "proc/1/mountinfo", table("rw"))
			mount := func() Mount { return s.Sample().NodeFs.Mount }
			if m := mount(); m.MountPoint != point || m.Source != "/dev/sda2" {
				t.Errorf("mount %+v, want that of %s", m, point)
			}
			n.Write(t, "proc/1/mountinfo", table("rw,emergency_ro"))
			if option, ro := new(mount()).ReadOnly(); ro {
				t.Errorf("looked up although nobody asked: %s", option)
			}
			s.Wake(CauseMounts)
			if option, ro := new(mount()).ReadOnly(); !ro || option != "emergency_ro" {
				t.Errorf("read-only %v by %q", ro, option)
			}
		})
	}
}

// What only the kernel knows of a filesystem is in the snapshot, and makes it read-only.
func TestSnapshotGaveUp(t *testing.T) {
	n := fullMachine.boot(t)
	gaveUp := ""
	s := n.sampler(t, func(c *Config) { c.GaveUp = func(path string) (bool, bool) { return path == gaveUp, true } })
	fs := s.Sample().NodeFs
	if _, readOnly, known := fs.ReadOnly(); readOnly || !known || fs.Path == "" {
		t.Fatalf("%+v", fs)
	}
	gaveUp = fs.Path
	fs = s.Sample().NodeFs
	if why, readOnly, known := fs.ReadOnly(); !fs.GaveUp || !readOnly || !known || why == "" {
		t.Errorf("gave up: read-only %t, known %t, %q", readOnly, known, why)
	}
	fs.Mount.Options = "ro"
	if why, _, _ := fs.ReadOnly(); why != "ro" {
		t.Errorf("mounted read-only: %q", why)
	}
	if _, readOnly, known := new(Filesystem).ReadOnly(); readOnly || known {
		t.Errorf("nothing known: read-only %t, known %t", readOnly, known)
	}
}

// A filesystem that gave up may not answer any more, and then the kernel's watch on it
// cannot be renewed: that it gave up is not forgotten over that, until it is known that
// there is another one.
func TestGaveUpIsRemembered(t *testing.T) {
	n := fullMachine.boot(t)
	var is, known bool
	s := n.sampler(t, func(c *Config) { c.GaveUp = func(string) (bool, bool) { return is, known } })
	works := s.disks.nodefs.call
	broken := func([]byte, *unix.Statfs_t) error { return unix.EIO }
	for _, step := range []struct {
		name      string
		is, known bool
		call      func([]byte, *unix.Statfs_t) error
		want      bool
	}{
		{"not watched yet", false, false, works, false},
		{"works", false, true, works, false},
		{"gave up", true, true, works, true},
		{"not watched for a moment", false, false, works, true},
		{"does not answer", true, true, broken, true},
		{"nor is it watched", false, false, broken, true},
		{"answers, not watched yet", false, false, works, true},
		{"watched again", true, true, works, true},
		{"another one", false, true, works, false},
		{"does not answer without having given up", false, false, broken, false},
	} {
		is, known, s.disks.nodefs.call = step.is, step.known, step.call
		fs := s.Sample().NodeFs
		if _, readOnly, _ := fs.ReadOnly(); readOnly != step.want {
			t.Errorf("%s: read-only %t", step.name, readOnly)
		}
	}
	is, known, s.disks.nodefs.call = true, true, works
	s.Sample()
	known, s.disks.nodefs.candidates[0].path = false, "/elsewhere"
	if fs := s.Sample().NodeFs; fs.GaveUp {
		t.Errorf("passed on to %s", fs.Path)
	}
}
