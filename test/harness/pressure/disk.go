package pressure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// Filesystem is an ext4 filesystem of its own, in a file, to be filled and
// emptied. Its methods are not safe for concurrent use.
type Filesystem struct {
	// Dir is where it is mounted.
	Dir    string
	inodes int // how many files TakeInodes has made
}

const (
	ballast   = "ballast" // holds the space
	inodesDir = "inodes"  // holds the empty files
)

// Disk makes and mounts a filesystem of the given number of MiB, until the test ends:
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
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	need.Command(t, "mount", "mount")
	top := must.Get(os.MkdirTemp(dir, "nodeprobe-pressure-"))(t) //nolint:usetesting // the keeper removes it, even if the test is killed
	f := &Filesystem{Dir: filepath.Join(top, "mnt")}
	// Before there is anything to undo, so that there is no gap.
	keeper := must.Get(startChild(role{Keep: []undo{{Unmount: f.Dir}, {RemoveAll: top}}}))(t)
	t.Cleanup(func() { must.Note(t, keeper.release()) })
	must.OK(t, os.Mkdir(f.Dir, 0o755))
	// Without blocks reserved for root, what is free is available to all; without lazy
	// initialization no kernel thread writes to it later on.
	must.OK(t, f.run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", f.image(), strconv.Itoa(mebibytes)+"M"))
	must.OK(t, f.Mount())
	return f
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
		return file.Truncate(size)
	}
	// Takes the blocks at once, and writes nothing to the disk below.
	return os.NewSyscallError("fallocate", unix.Fallocate(int(file.Fd()), 0, 0, size))
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
	return errors.Join(os.RemoveAll(filepath.Join(f.Dir, ballast)), os.RemoveAll(filepath.Join(f.Dir, inodesDir)))
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

// Break makes the kernel find an error in the filesystem, after which it takes no
// writes. No mount table changes by that, and nobody is notified.
func (f *Filesystem) Break() error {
	device, err := f.device()
	if err == nil {
		err = f.remount("errors=remount-ro")
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("test"), 0)
}

// device returns the name of the block device.
func (f *Filesystem) device() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(f.Dir, &st); err != nil {
		return "", os.NewSyscallError("stat", err)
	}
	// /sys/dev/block/7:0 leads to a directory that is named after the device.
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	return filepath.Base(link), err
}

// SetReadOnly remounts the filesystem so that it takes no writes, or takes them
// again.
func (f *Filesystem) SetReadOnly(readOnly bool) error {
	if readOnly {
		return f.remount("ro")
	}
	return f.remount("rw")
}

func (f *Filesystem) remount(option string) error {
	return f.run("mount", "-o", "remount,"+option, f.Dir)
}

// Resize makes the filesystem that many MiB large. For that it is unmounted, and
// mounted again: to do it in use takes a right that root need not have. It needs
// the programs e2fsck and resize2fs.
func (f *Filesystem) Resize(mebibytes int) error {
	for _, step := range []func() error{
		func() error { return f.Unmount(false) },
		func() error { return f.run("e2fsck", "-f", "-p", f.image()) },
		func() error { return f.run("resize2fs", f.image(), strconv.Itoa(mebibytes)+"M") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return f.Mount()
}

// Reserve sets how many percent only root may fill, while the filesystem is in
// use. It needs the program tune2fs.
func (f *Filesystem) Reserve(percent int) error {
	device, err := f.device()
	if err != nil {
		return err
	}
	return f.run("tune2fs", "-m", strconv.Itoa(percent), "/dev/"+device)
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
	return f.run("mount", "-o", "loop,nosuid,nodev", f.image(), f.Dir)
}

func (f *Filesystem) image() string { return filepath.Join(filepath.Dir(f.Dir), "image") }

func (f *Filesystem) run(name string, args ...string) error {
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %q: %w: %s", name, args, err, output)
	}
	return nil
}
