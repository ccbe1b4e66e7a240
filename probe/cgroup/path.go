package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/rootfs"
	"golang.org/x/sys/unix"
)

// errGone means that no cgroup has the ID any more. That is common after an OOM kill:
// the runtime removes a container's cgroup as soon as it is empty.
var errGone = fmt.Errorf("removed by now: %w", fs.ErrNotExist)

// fileIDKernfs is FILEID_KERNFS: a file handle that is nothing but the 64-bit ID
// (Linux 5.5).
const fileIDKernfs = 0xfe

// Path returns the path of the memory cgroup whose directory has the inode
// number id, as bpf.Event.CgroupID, relative to the root of the hierarchy that
// is mounted below cgroupfs (/sys/fs/cgroup). The error wraps fs.ErrNotExist if
// the cgroup is gone.
//
// With CAP_DAC_READ_SEARCH it opens the cgroup by its file handle, which takes 40 us;
// without, it looks at every cgroup. IDs have 64 bits, and the inode numbers of a 32-bit
// kernel do not, so only the first way works there.
func Path(cgroupfs string, id uint64) (string, error) {
	dir, version := Memory(cgroupfs)
	if version == None {
		return "", fmt.Errorf("find cgroup %d: no memory cgroup below %s: %w", id, cgroupfs, fs.ErrNotExist)
	}
	path, err := byHandle(dir, id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		path, err = byWalk(dir, id)
	}
	if err != nil {
		return "", fmt.Errorf("find cgroup %d below %s: %w", id, dir, err)
	}
	return path, nil
}

// byHandle opens the cgroup by its file handle. It fails without the capability
// (EPERM), if a seccomp profile forbids open_by_handle_at(2), and if only a part of the
// hierarchy is mounted and the cgroup is not in it.
func byHandle(dir string, id uint64) (string, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	handle := unix.NewFileHandle(fileIDKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(root, handle, unix.O_PATH|unix.O_CLOEXEC)
	if errors.Is(err, unix.ESTALE) {
		return "", errGone
	}
	if err != nil {
		return "", fmt.Errorf("open by handle: %w", err)
	}
	defer unix.Close(fd)
	path, err := rootfs.Within(root, fd)
	if err != nil {
		return "", err
	}
	// If it was removed between the two calls, its path has a suffix.
	var opened, there unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	if err := unix.Stat(filepath.Join(dir, path), &there); err != nil || opened.Ino != there.Ino {
		return "", errGone
	}
	return path, nil
}

// byWalk looks at every cgroup. Those that vanish meanwhile are skipped.
func byWalk(dir string, id uint64) (string, error) {
	found := ""
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case path == dir && err != nil:
			return err
		case err != nil && errors.Is(err, fs.ErrNotExist):
			return fs.SkipDir
		case err != nil || !entry.IsDir():
			return err
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Ino == id {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if found == "" {
		return "", errGone
	}
	return filepath.Join("/", strings.TrimPrefix(found, dir)), nil
}
