package probe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/probe/deadline"
	"github.com/nodeprobe/nodeprobe/probe/hotfile"
	"github.com/nodeprobe/nodeprobe/probe/mount"
	"github.com/nodeprobe/nodeprobe/probe/rootfs"
)

// filesystem reads the filesystem that holds one directory by statfs(2), which may hang
// for ever (a dead NFS server, a stopped FUSE daemon): so each filesystem has a worker
// of its own.
type filesystem struct {
	rootfs string
	// dirs are directories of the node: the first that exists counts. The last is
	// the root, which always exists.
	dirs []string
	call func(path []byte, st *unix.Statfs_t) error // path ends in NUL

	what   string
	ask    func() statfsAnswer
	worker deadline.Worker[statfsAnswer]
	got    statfsAnswer
	mount  Mount // zero while it is not known

	late  lateness
	known bool // there was an answer

	gaveUp   bool
	gaveUpAt string // the path then

	// Owned by the call under way.
	candidates []statfsPath
	resolved   time.Time
	answer     statfsAnswer // kept, as a local one would escape to the heap each time
}

type statfsAnswer struct {
	path     string
	resolved string // path without symbolic links
	st       unix.Statfs_t
	err      error
}

// defaultStatfsTimeout is the kubelet's as well.
const defaultStatfsTimeout = 2 * time.Second

func newFilesystem(rootfs string, dirs []string) *filesystem {
	f := &filesystem{rootfs: rootfs, dirs: dirs, call: hotfile.Statfs, what: "statfs " + filepath.Join(rootfs, dirs[0])}
	f.ask = f.statfs
	f.worker.OnAnswer(f.late.answered)
	return f
}

// start begins a call, unless an earlier one still hangs.
func (f *filesystem) start(now time.Time) {
	if a, ok, err := takeLate(&f.late, &f.worker); ok {
		f.take(a, err)
	}
	f.worker.Start(now, f.what, f.ask)
}

// statfs is the call that may hang. It also follows symbolic links, once a minute and
// after an error, as that may hang too.
func (f *filesystem) statfs() statfsAnswer {
	if f.resolved.IsZero() || time.Since(f.resolved) >= machineInterval {
		f.candidates, f.resolved = statfsPaths(f.rootfs, f.dirs), time.Now()
	}
	a := &f.answer
	for i := range f.candidates {
		c := &f.candidates[i]
		a.path, a.resolved, a.err = c.path, c.resolved, c.err
		if c.err == nil {
			a.err = f.call(c.terminated, &a.st)
		}
		if !errors.Is(a.err, fs.ErrNotExist) {
			break
		}
	}
	if a.err != nil {
		f.resolved = time.Time{}
	}
	return *a
}

// statfsPath is one of the paths to try.
type statfsPath struct {
	path       string
	resolved   string // path without symbolic links
	terminated []byte // path and a NUL
	err        error  // why path could not be resolved
}

// statfsPaths resolves dirs below root, without those that do not exist at present.
func statfsPaths(root string, dirs []string) []statfsPath {
	var paths []statfsPath
	for _, dir := range dirs {
		path, err := rootfs.Path(root, dir)
		if errors.Is(err, fs.ErrNotExist) && dir != "/" {
			continue
		}
		if err == nil && dir == "/" && isEmpty(path) {
			err = errEmptyRoot
		}
		if err != nil {
			path = filepath.Join(root, dir)
		}
		resolved := path
		if filepath.Clean(root) == "/" { // elsewhere rootfs.Path did that
			if direct, err := rootfs.Resolve(root, path); err == nil {
				resolved = direct
			}
		}
		paths = append(paths, statfsPath{path: path, resolved: resolved, terminated: append([]byte(path), 0), err: err})
	}
	return paths
}

// errEmptyRoot keeps the filesystem of a container from passing for the node's if that
// was not mounted.
var errEmptyRoot = errors.New("it is empty, and so not the root of the node")

func isEmpty(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// finish waits for the answer.
func (f *filesystem) finish(now time.Time, wait waits) {
	if a, ok, err := await(&f.late, &f.worker, now, wait, f.known); ok {
		f.take(a, err)
	}
}

// take keeps an answer, or the error that there was none in time.
func (f *filesystem) take(a statfsAnswer, err error) {
	if err != nil {
		f.got.err = late(f.got.err, err)
		return
	}
	if a.err != nil {
		a.err = &fs.PathError{Op: "statfs", Path: a.path, Err: a.err}
	}
	f.got, f.known = a, true
}

// observations turns the answer into the space and inode signals.
func (f *filesystem) observations() (space, inodes Observation, err error) {
	if f.got.err != nil {
		o := Observation{Err: f.got.err}
		return o, o, f.got.err
	}
	space, inodes, err = parseStatfs(&f.got.st)
	if err != nil {
		err = fmt.Errorf("statfs %s: %w", f.got.path, err)
		o := Observation{Err: err}
		return o, o, err
	}
	return space, inodes, nil
}

// found returns the filesystem that answered. One that gave up may not even do that any
// more, nor be open to the kernel's watch: while nobody knows, it is as it was.
func (f *filesystem) found(gaveUp func(path string) (is, known bool)) Filesystem {
	if gaveUp != nil {
		is, known := gaveUp(f.got.path)
		if known || f.got.err == nil && f.got.path != f.gaveUpAt {
			f.gaveUp, f.gaveUpAt = is && known, f.got.path
		}
	}
	if f.got.err != nil {
		return Filesystem{GaveUp: f.gaveUp}
	}
	st := &f.got.st
	unit := blockSize(st)
	reserved := st.Bfree - st.Bavail
	if st.Bfree < st.Bavail || unit == 0 || reserved > math.MaxInt64/unit {
		reserved = 0
	}
	return Filesystem{Path: f.got.path, Reserved: int64(reserved * unit), Mount: f.mount, GaveUp: f.gaveUp}
}

// errSize is wrapped by the error about a filesystem without a size, or an impossible
// one.
var errSize = errors.New("impossible size")

// blockSize is the unit of f_blocks and the like, in bytes.
func blockSize(st *unix.Statfs_t) uint64 {
	if st.Frsize == 0 {
		return uint64(st.Bsize)
	}
	return uint64(st.Frsize)
}

// parseStatfs applies the kubelet's formulas: available is the space that unprivileged
// users may fill (f_bavail, not f_bfree), and every free inode. A filesystem that does
// not count inodes (f_files is 0, or nonsense) has no inode signal, while the kubelet
// takes it for one without free inodes.
func parseStatfs(st *unix.Statfs_t) (space, inodes Observation, err error) {
	unit := blockSize(st)
	blocks, free := st.Blocks, st.Bavail
	if blocks == 0 || unit == 0 || blocks > math.MaxInt64/unit {
		return space, inodes, fmt.Errorf("%w: %d blocks of %d bytes", errSize, blocks, unit)
	}
	// A filesystem filled into its reserve shows a negative f_bavail.
	available := int64(free)
	if available > int64(blocks) || available < -int64(blocks) {
		return space, inodes, fmt.Errorf("%w: %d of %d blocks available", errSize, free, blocks)
	}
	space = observe(max(0, available)*int64(unit), int64(blocks)*int64(unit))
	if st.Files > 0 && st.Files <= math.MaxInt64 && st.Ffree <= st.Files {
		inodes = observe(int64(st.Ffree), int64(st.Files))
	}
	return space, inodes, nil
}

// diskReader reads the filesystems that node conditions are about.
type diskReader struct {
	procfs  string
	wait    waits
	nodefs  *filesystem
	imagefs *filesystem

	// The mount table has a worker, too: to write it, the kernel may read from the disks
	// (btrfs looks up the names of its subvolumes).
	mounts      deadline.Worker[mountsAnswer]
	mountsLate  lateness
	mountsKnown bool  // the table was read before
	mountsErr   error // of the answer that counts
	mountsOld   bool  // the call under way began before the latest change

	imageDirectories []string // without that of imagesAt
	images           string   // that of imagesAt
}

// newDiskReader returns a reader of the filesystem that holds rootDirectory, and of the
// one that holds the first of imageDirectories that exists. All are directories of the
// node, whose root is at rootfs and whose /proc is at procfs.
func newDiskReader(procfs, rootfs, rootDirectory string, imageDirectories []string, wait waits) *diskReader {
	nodefs := ancestors(rootDirectory)
	r := &diskReader{
		procfs: procfs,
		wait:   wait,
		nodefs: newFilesystem(rootfs, nodefs),

		imageDirectories: slices.Concat(imageDirectories, nodefs),
	}
	r.imagefs = newFilesystem(rootfs, r.imageDirectories)
	r.mounts.OnAnswer(r.mountsLate.answered)
	return r
}

// imagesAt makes dir the first of the image directories, in place of the one before,
// and reports whether that is a change. A call that hangs is left to its worker, which
// ends when the call returns.
func (r *diskReader) imagesAt(dir string) bool {
	if dir == r.images {
		return false
	}
	r.images = dir
	call := r.imagefs.call
	r.imagefs = newFilesystem(r.nodefs.rootfs, append([]string{dir}, r.imageDirectories...))
	r.imagefs.call, r.imagefs.late.wake = call, r.nodefs.late.wake
	return true
}

// ancestors returns dir and every directory above it: where dir does not exist yet, the
// filesystem that it will be created on counts.
func ancestors(dir string) []string {
	dirs := []string{filepath.Clean(dir)}
	for dir = dirs[0]; dir != "/"; {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// mountsAnswer is how two filesystems are mounted; nil is one not asked about.
type mountsAnswer struct {
	of     [2]*filesystem
	mounts []Mount
	err    error
}

// findMounts looks up how those filesystems are mounted that answered this sample. The
// others keep their mounts, as both do if the table cannot be read in time. Changed means
// that an answer of before now will not do.
func (r *diskReader) findMounts(now time.Time, changed bool) error {
	if a, ok, err := takeLate(&r.mountsLate, &r.mounts); ok {
		r.takeMounts(a, err)
		if err == nil && !changed && !r.mountsOld {
			return r.mountsErr
		}
	}
	r.mountsOld = (changed || r.mountsOld) && !r.mounts.Asked().IsZero()
	all := [2]*filesystem{r.nodefs, r.imagefs}
	var paths [2]string
	for i, f := range all {
		if f.got.err == nil {
			paths[i] = filepath.Join("/", strings.TrimPrefix(f.got.resolved, filepath.Clean(f.rootfs)))
		}
	}
	procfs, rootfs := r.procfs, r.nodefs.rootfs
	r.mounts.Start(now, "read "+mount.TablePaths(procfs)[0], func() (a mountsAnswer) {
		a.of = all
		for i, path := range paths {
			if path == "" {
				a.of[i] = nil
			}
		}
		a.mounts, a.err = mount.FindAll(procfs, rootfs, paths[:]...)
		return a
	})
	if a, ok, err := await(&r.mountsLate, &r.mounts, now, r.wait, r.mountsKnown); ok {
		r.takeMounts(a, err)
	}
	return r.mountsErr
}

// takeMounts keeps an answer, or the error that there was none in time.
func (r *diskReader) takeMounts(a mountsAnswer, err error) {
	if err != nil {
		r.mountsErr = late(r.mountsErr, err)
		return
	}
	r.mountsKnown, r.mountsErr = true, a.err
	for i, f := range a.of {
		if f != nil {
			f.mount = a.mounts[i]
		}
	}
}

// start begins both calls; finish waits for them after everything else has been read.
func (r *diskReader) start(now time.Time) {
	r.nodefs.start(now)
	r.imagefs.start(now)
}

// finish fills in the disk part of s, with the mounts looked up again if remount.
func (r *diskReader) finish(s *Snapshot, remount bool, gaveUp func(path string) (is, known bool)) {
	r.nodefs.finish(s.Time, r.wait)
	r.imagefs.finish(s.Time, r.wait)
	if remount || r.mountsLate.pending {
		s.Errors[SourceMounts] = r.findMounts(time.Now(), remount)
	}
	s.NodeFs, s.ImageFs = r.nodefs.found(gaveUp), r.imagefs.found(gaveUp)
	s.Signals[NodeFsAvailable], s.Signals[NodeFsInodesFree], s.Errors[SourceNodeFs] = r.nodefs.observations()
	s.Signals[ImageFsAvailable], s.Signals[ImageFsInodesFree], s.Errors[SourceImageFs] = r.imagefs.observations()
}
