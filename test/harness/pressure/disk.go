package pressure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// Filesystem is a filesystem of its own, in a file, to be filled and emptied. Its
// methods are not safe for concurrent use.
type Filesystem struct {
	// Dir is where it is mounted.
	Dir string
	// Type is that of mount(8).
	Type   string
	mkfs   []string
	size   string // of the file at first
	inodes int    // how many files TakeInodes has made
}

const (
	ballast   = "ballast" // holds the space
	inodesDir = "inodes"  // holds the empty files
)

// Disk makes and mounts an ext4 filesystem of the given number of MiB, until the test ends:
// call it before what uses the filesystem is started. The kernel keeps a few of them for
// itself; little of it exists on the disk below. The test is skipped where none can be
// made.
func Disk(t testing.TB, mebibytes int) *Filesystem {
	t.Helper()
	return DiskIn(t, "", mebibytes)
}

// DiskIn is Disk, whose file is in a directory.
func DiskIn(t testing.TB, dir string, mebibytes int) *Filesystem {
	t.Helper()
	return newDisk(t, dir, "ext4", mebibytes)
}

// DiskOf is Disk for another type of filesystem: xfs, of 300 MiB at least, or btrfs, of 128.
func DiskOf(t testing.TB, fstype string, mebibytes int) *Filesystem {
	t.Helper()
	return newDisk(t, "", fstype, mebibytes)
}

func newDisk(t testing.TB, dir, fstype string, mebibytes int) *Filesystem {
	t.Helper()
	need.Root(t)
	f := &Filesystem{Type: fstype, size: strconv.Itoa(mebibytes) + "M"}
	packages := ""
	switch fstype {
	case "ext4":
		// Without blocks reserved for root, what is free is available to all; without lazy
		// initialization no kernel thread writes to it later on.
		f.mkfs, packages = []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"}, "e2fsprogs"
	case "xfs":
		f.mkfs, packages = []string{"mkfs.xfs", "-q", "-f"}, "xfsprogs"
	case "btrfs":
		f.mkfs, packages = []string{"mkfs.btrfs", "-q", "-f"}, "btrfs-progs"
	}
	need.Command(t, f.mkfs[0], packages)
	need.Command(t, "mount", "mount")
	top := must.Get(os.MkdirTemp(dir, "nodeprobe-pressure-"))(t) //nolint:usetesting // the keeper removes it, even if the test is killed
	f.Dir = filepath.Join(top, "mnt")
	// Before there is anything to undo, so that there is no gap.
	keeper := must.Get(startChild(role{Keep: []undo{{Unmount: f.Dir}, {RemoveAll: top}}}))(t)
	t.Cleanup(func() { must.Note(t, keeper.release()) })
	must.OK(t, os.Mkdir(f.Dir, 0o755))
	must.OK(t, f.Format())
	return f
}

// Format makes the filesystem anew, as it was at first, and mounts it.
func (f *Filesystem) Format() error {
	file, err := os.Create(f.image())
	if err == nil {
		err = file.Close()
	}
	if err == nil {
		err = f.run("truncate", "-s", f.size, f.image())
	}
	if err == nil {
		err = f.run(f.mkfs[0], append(f.mkfs[1:], f.image())...)
	}
	if err != nil {
		return err
	}
	return f.Mount()
}

// TempDir makes a directory until the test ends, or is killed. What is mounted there is
// unmounted.
func TempDir(t testing.TB) (dir string) {
	t.Helper()
	dir = must.Get(os.MkdirTemp("", "nodeprobe-pressure-"))(t) //nolint:usetesting // the keeper removes it
	keeper := must.Get(startChild(role{Keep: []undo{{Unmount: dir}, {RemoveAll: dir}}}))(t)
	t.Cleanup(func() { must.Note(t, keeper.release()) })
	return dir
}

// Tmpfs makes a filesystem in memory, of so many MiB at most, until the test ends, and
// returns its directory: without swap, what is there is never waited for.
func Tmpfs(t testing.TB, mebibytes int) (dir string) {
	t.Helper()
	need.Root(t)
	dir = TempDir(t)
	must.OK(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=700,size=%dm", mebibytes)))
	return dir
}

// Overlay mounts one whose files are in a filesystem, until the test ends, and returns
// where.
func Overlay(t testing.TB, f *Filesystem) (dir string) {
	t.Helper()
	dir = TempDir(t)
	var options []string
	for _, part := range []string{"lower", "upper", "work"} {
		must.OK(t, os.Mkdir(filepath.Join(f.Dir, part), 0o755))
		options = append(options, part+"dir="+filepath.Join(f.Dir, part))
	}
	must.OK(t, unix.Mount("overlay", dir, "overlay", 0, strings.Join(options, ",")))
	return dir
}

// Fill takes up space until no more than the given number of bytes is
// available, to within a block or two. A later call with more gives some back.
func (f *Filesystem) Fill(available int64) error {
	now, err := f.Available()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(f.Dir, ballast), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	held, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	size := max(0, held+now-available)
	if size <= held {
		return errors.Join(file.Truncate(size), f.commit())
	}
	// Takes the blocks at once, and writes nothing to the disk below.
	err = os.NewSyscallError("fallocate", unix.Fallocate(int(file.Fd()), 0, held, size-held))
	return errors.Join(err, f.commit())
}

// TakeInodes makes empty files until no more than the given number of inodes is
// free. A later call with more gives some back.
func (f *Filesystem) TakeInodes(free int64) error {
	dir := filepath.Join(f.Dir, inodesDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	now, err := f.InodesFree()
	for ; err == nil && now > free; now-- {
		err = os.WriteFile(filepath.Join(dir, strconv.Itoa(f.inodes)), nil, 0o600)
		f.inodes++
	}
	for ; err == nil && now < free && f.inodes > 0; now++ {
		f.inodes--
		err = os.Remove(filepath.Join(dir, strconv.Itoa(f.inodes)))
	}
	return err
}

// Empty gives all space and inodes back.
func (f *Filesystem) Empty() error {
	f.inodes = 0
	return errors.Join(os.RemoveAll(filepath.Join(f.Dir, ballast)), os.RemoveAll(filepath.Join(f.Dir, inodesDir)), f.commit())
}

// commit has a btrfs know what it has: what is free changes with its next transaction.
func (f *Filesystem) commit() error {
	if f.Type != "btrfs" {
		return nil
	}
	return f.run("sync", "-f", f.Dir)
}

// Available returns how many bytes unprivileged users may still write.
func (f *Filesystem) Available() (int64, error) {
	st, err := f.statfs()
	return int64(st.Bavail) * st.Frsize, err
}

// Capacity returns how many bytes there are in all.
func (f *Filesystem) Capacity() (int64, error) {
	st, err := f.statfs()
	return int64(st.Blocks) * st.Frsize, err
}

// InodesFree returns how many files may still be made.
func (f *Filesystem) InodesFree() (int64, error) {
	st, err := f.statfs()
	return int64(st.Ffree), err
}

func (f *Filesystem) statfs() (st unix.Statfs_t, err error) {
	err = os.NewSyscallError("statfs", unix.Statfs(f.Dir, &st))
	return st, err
}

// Resize makes the filesystem that many MiB large, which must be more than it is. An ext4
// is unmounted for that, and mounted again: to do it in use takes a right that root need
// not have. It needs the programs e2fsck and resize2fs, xfs_growfs or btrfs.
func (f *Filesystem) Resize(mebibytes int) error {
	size := strconv.Itoa(mebibytes) + "M"
	if f.Type == "ext4" {
		return inOrder(
			func() error { return f.Unmount(false) },
			func() error { return f.run("e2fsck", "-f", "-p", f.image()) },
			func() error { return f.run("resize2fs", f.image(), size) },
			f.Mount)
	}
	return inOrder(
		func() error { return os.Truncate(f.image(), int64(mebibytes)<<20) },
		f.followImage,
		func() error {
			if f.Type == "xfs" {
				return f.run("xfs_growfs", f.Dir)
			}
			return f.run("btrfs", "filesystem", "resize", "max", f.Dir)
		})
}

func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Reserve sets how many percent only root may fill, while the filesystem is in
// use. It needs the program tune2fs.
func (f *Filesystem) Reserve(percent int) error {
	device, err := f.device()
	if err != nil {
		return err
	}
	return f.run("tune2fs", "-m", strconv.Itoa(percent), device)
}

// Unmount unmounts the filesystem, which stays what it is; lazily, if somebody
// uses it still.
func (f *Filesystem) Unmount(lazily bool) error {
	flags := 0
	if lazily {
		flags = unix.MNT_DETACH
	}
	err := unix.Unmount(f.Dir, flags)
	// Whoever watches the filesystem may have it open just now.
	for deadline := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		err = unix.Unmount(f.Dir, flags)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", f.Dir, err)
	}
	return nil
}

// Mount mounts the filesystem again. The loop device is freed when it is unmounted.
func (f *Filesystem) Mount() error {
	options := "loop,nosuid,nodev"
	if f.Type == "xfs" {
		options += ",allocsize=64k" // no more than that ahead of what is written
	}
	return f.run("mount", "-o", options, f.image(), f.Dir)
}

func (f *Filesystem) image() string { return filepath.Join(filepath.Dir(f.Dir), "image") }

func (f *Filesystem) run(name string, args ...string) error {
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %q: %w: %s", name, args, err, output)
	}
	return nil
}
