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
)

// filesystem watches the filesystem that holds one directory by statfs(2). A
// statfs may hang for ever (a dead NFS server, a stopped FUSE daemon), so each
// filesystem has a worker goroutine of its own that makes the call, and a
// sample waits for it only so long. A worker that hangs is left alone until its
// call returns: there is never more than one per filesystem, and the samples
// that follow do not wait for it again.
type filesystem struct {
	rootfs string
	// dirs are directories of the node, tried in order: the first that exists
	// counts. They end in the root, which always exists.
	dirs []string
	call func(path []byte, st *unix.Statfs_t) error // path ends in NUL

	ask    chan struct{}
	answer chan statfsAnswer
	asked  time.Time // when the worker was asked; zero while it is free
	got    statfsAnswer
	mount  Mount // zero while it is not known
}

type statfsAnswer struct {
	path     string
	resolved string // path without symbolic links
	st       unix.Statfs_t
	err      error
}

// defaultStatfsTimeout is what the kubelet allows as well.
const defaultStatfsTimeout = 2 * time.Second

func newFilesystem(rootfs string, dirs []string) *filesystem {
	return &filesystem{rootfs: rootfs, dirs: dirs, call: statfs}
}

// start asks the worker for an answer, unless it still owes one.
func (f *filesystem) start(now time.Time) {
	if f.ask == nil {
		f.ask, f.answer = make(chan struct{}, 1), make(chan statfsAnswer, 1)
		go statfsWorker(f.rootfs, f.dirs, f.call, f.ask, f.answer)
	}
	if !f.asked.IsZero() {
		select {
		case <-f.answer: // late, and by now stale
		default:
			return
		}
	}
	f.asked = now
	f.ask <- struct{}{}
}

// statfsWorker answers until ask is closed. Symbolic links are followed once a
// minute and after an error, and here, as that may hang too.
func statfsWorker(rootfs string, dirs []string, call func([]byte, *unix.Statfs_t) error, ask <-chan struct{}, answer chan<- statfsAnswer) {
	var candidates []statfsPath
	var resolved time.Time
	var a statfsAnswer // kept, as its address goes where it would be allocated each time
	for range ask {
		if resolved.IsZero() || time.Since(resolved) >= machineInterval {
			candidates, resolved = statfsPaths(rootfs, dirs), time.Now()
		}
		for i := range candidates {
			c := &candidates[i]
			a.path, a.resolved, a.err = c.path, c.resolved, c.err
			if c.err == nil {
				a.err = call(c.terminated, &a.st)
			}
			if !errors.Is(a.err, fs.ErrNotExist) {
				break
			}
		}
		if a.err != nil {
			resolved = time.Time{}
		}
		answer <- a
	}
}

// statfsPath is one of the paths to try.
type statfsPath struct {
	path       string
	resolved   string // path without symbolic links
	terminated []byte // path and a NUL
	err        error  // why the path is not known
}

// statfsPaths finds dirs below rootfs. One that does not exist on the node is
// left out until the next time.
func statfsPaths(rootfs string, dirs []string) []statfsPath {
	var paths []statfsPath
	for _, dir := range dirs {
		path, err := nodePath(rootfs, dir)
		if errors.Is(err, fs.ErrNotExist) && dir != "/" {
			continue
		}
		if err == nil && dir == "/" && isEmpty(path) {
			err = errEmptyRoot
		}
		if err != nil {
			path = filepath.Join(rootfs, dir)
		}
		resolved := path
		if direct, err := filepath.EvalSymlinks(path); err == nil && filepath.Clean(rootfs) == "/" {
			resolved = direct // elsewhere nodePath has seen to it
		}
		paths = append(paths, statfsPath{path: path, resolved: resolved, terminated: append([]byte(path), 0), err: err})
	}
	return paths
}

// errEmptyRoot keeps the filesystem of a container, which holds the place where the
// node's should have been mounted, from passing for the node's.
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

// finish waits for the answer until the deadline. A worker that was asked in an
// earlier sample is not waited for.
func (f *filesystem) finish(now time.Time, timer *time.Timer, deadline time.Time) {
	var a statfsAnswer
	select {
	case a = <-f.answer:
	default:
		if f.asked.Before(now) {
			f.got.err = f.hung()
			return
		}
		timer.Reset(time.Until(deadline))
		select {
		case a = <-f.answer:
		case <-timer.C:
			select {
			case a = <-f.answer: // it was us who were late
			default:
				f.got.err = f.hung()
				return
			}
		}
	}
	f.asked, f.got = time.Time{}, a
	if a.err != nil {
		f.got.err = &fs.PathError{Op: "statfs", Path: a.path, Err: a.err}
	}
}

var errHung = errors.New("no answer")

// hung names the time of the question, not how long ago it was, so that the
// message stays the same while nothing changes.
func (f *filesystem) hung() error {
	return fmt.Errorf("statfs %s: %w since %s", filepath.Join(f.rootfs, f.dirs[0]), errHung, f.asked.Format(time.TimeOnly))
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

// found says which filesystem answered.
func (f *filesystem) found() Filesystem {
	if f.got.err != nil {
		return Filesystem{}
	}
	st := &f.got.st
	unit := blockSize(st)
	reserved := st.Bfree - st.Bavail
	if st.Bfree < st.Bavail || unit == 0 || reserved > math.MaxInt64/unit {
		reserved = 0
	}
	return Filesystem{Path: f.got.path, Reserved: int64(reserved * unit), Mount: f.mount}
}

// errSize marks the answer of a filesystem that has no size, or an impossible
// one.
var errSize = errors.New("impossible size")

// blockSize is the unit of f_blocks and the like, in bytes.
func blockSize(st *unix.Statfs_t) uint64 {
	if st.Frsize == 0 {
		return uint64(st.Bsize)
	}
	return uint64(st.Frsize)
}

// parseStatfs applies the kubelet's formulas: what unprivileged users may fill
// counts as available (f_bavail, not f_bfree), and every free inode does. A
// filesystem that does not count inodes (f_files is 0, or nonsense) has no inode
// signal: the kubelet takes it for one that has run out.
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

// close lets the worker end; one that hangs ends when its call returns. There
// is no start after it.
func (f *filesystem) close() {
	if f.ask != nil {
		close(f.ask)
		f.ask = nil
	}
}

// diskReader reads the filesystems that node conditions are about.
type diskReader struct {
	timeout time.Duration
	timer   *time.Timer
	nodefs  *filesystem
	imagefs *filesystem

	imageDirectories []string // without what imagesAt was told
	images           string   // what that was
}

// newDiskReader watches the filesystem that holds rootDirectory, and the one
// that holds the first of imageDirectories that exists. All are directories of
// the node, whose root is at rootfs.
func newDiskReader(rootfs, rootDirectory string, imageDirectories []string, timeout time.Duration) *diskReader {
	nodefs := ancestors(rootDirectory)
	r := &diskReader{
		timeout: timeout,
		timer:   time.NewTimer(math.MaxInt64),
		nodefs:  newFilesystem(rootfs, nodefs),

		imageDirectories: slices.Concat(imageDirectories, nodefs),
	}
	r.imagefs = newFilesystem(rootfs, r.imageDirectories)
	r.timer.Stop()
	return r
}

// imagesAt makes dir the first of the image directories, in place of the one that
// it was told before, and says whether that is another. A worker that hangs is left
// behind: it ends when its call returns.
func (r *diskReader) imagesAt(dir string) bool {
	if dir == r.images {
		return false
	}
	r.images = dir
	call := r.imagefs.call
	r.imagefs.close()
	r.imagefs = newFilesystem(r.nodefs.rootfs, append([]string{dir}, r.imageDirectories...))
	r.imagefs.call = call
	return true
}

// ancestors returns dir and every directory above it: on a machine where dir is
// not there yet, the filesystem that it will be made on counts.
func ancestors(dir string) []string {
	dirs := []string{filepath.Clean(dir)}
	for dir = dirs[0]; dir != "/"; {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// start sets the workers going; the answers are awaited after everything else
// has been read.
func (r *diskReader) start(now time.Time) {
	r.nodefs.start(now)
	r.imagefs.start(now)
}

// findMounts looks up how the filesystems are mounted that answered last. One
// that did not keeps what is known of it.
func (r *diskReader) findMounts(procfs string) error {
	for _, f := range []*filesystem{r.nodefs, r.imagefs} {
		if f.got.err != nil {
			continue
		}
		if n := r.nodefs; f != n && n.got.err == nil && f.got.resolved == n.got.resolved {
			f.mount = n.mount
			continue
		}
		path := filepath.Join("/", strings.TrimPrefix(f.got.resolved, filepath.Clean(f.rootfs)))
		mount, err := FindMount(procfs, f.rootfs, path)
		if err != nil {
			f.mount = Mount{}
			return err
		}
		f.mount = mount
	}
	return nil
}

// finish fills in the disk part of s; remount says whether to look up the mounts.
func (r *diskReader) finish(s *Snapshot, procfs string, remount bool) {
	deadline := s.Time.Add(r.timeout)
	r.nodefs.finish(s.Time, r.timer, deadline)
	r.imagefs.finish(s.Time, r.timer, deadline)
	r.timer.Stop()
	if remount {
		s.Errors[SourceMounts] = r.findMounts(procfs)
	}
	s.NodeFs, s.ImageFs = r.nodefs.found(), r.imagefs.found()
	s.Signals[NodeFsAvailable], s.Signals[NodeFsInodesFree], s.Errors[SourceNodeFs] = r.nodefs.observations()
	s.Signals[ImageFsAvailable], s.Signals[ImageFsInodesFree], s.Errors[SourceImageFs] = r.imagefs.observations()
}

func (r *diskReader) close() {
	r.nodefs.close()
	r.imagefs.close()
}
