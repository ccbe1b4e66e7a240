package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/probe/rootfs"
)

var (
	// errGone means that no cgroup has the ID any more. That is common after an OOM
	// kill: the runtime removes a container's cgroup as soon as it is empty.
	errGone = fmt.Errorf("removed by now: %w", fs.ErrNotExist)
	// errElsewhere means that the process is not, or no longer, in the cgroup.
	errElsewhere = errors.New("its process is in another cgroup")
)

// fileIDKernfs is FILEID_KERNFS: a file handle that is nothing but the 64-bit ID
// (Linux 5.5).
const fileIDKernfs = 0xfe

// walkInterval is the least time between two looks at every cgroup.
const walkInterval = time.Minute

// Finder finds memory cgroups by the inode numbers of their directories. It must not be
// used concurrently.
type Finder struct {
	// Procfs and Cgroupfs are where the node's /proc and /sys/fs/cgroup are mounted.
	Procfs, Cgroupfs string

	base   string    // where the root of our cgroup namespace is, as far as is known
	walked time.Time // when byWalk was called last
}

// Path returns the path of the cgroup id, as bpf.Event.CgroupID, relative to the root of
// the hierarchy that is mounted below Cgroupfs. A process pid, of the node's PIDs, was in
// it. The error wraps fs.ErrNotExist if the cgroup is gone.
//
// With CAP_DAC_READ_SEARCH it opens the cgroup by its file handle, which takes 40 us.
// Without, it asks where the process is, and once a minute at most, if that does not
// tell, it looks at every cgroup. IDs have 64 bits, and the inode numbers of a 32-bit
// kernel do not, so only the first way works there.
func (f *Finder) Path(id uint64, pid int) (string, error) {
	dir, version := Memory(f.Cgroupfs)
	if version == None {
		return "", fmt.Errorf("find cgroup %d: no memory cgroup below %s: %w", id, f.Cgroupfs, fs.ErrNotExist)
	}
	path, err := byHandle(dir, id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		path, err = f.byTask(dir, version, id, pid)
	}
	if err != nil {
		return "", fmt.Errorf("find cgroup %d below %s: %w", id, dir, err)
	}
	return path, nil
}

// byTask takes the path from the process, which is good if it leads to the cgroup.
//
// In a cgroup namespace, as a container has one, it begins with a ".." for each level
// up, and says nothing of what is between there and the root of the hierarchy. That
// follows from what one walk finds.
func (f *Finder) byTask(dir string, version Version, id uint64, pid int) (string, error) {
	relative, err := taskCgroup(f.Procfs, version, pid)
	if err == nil {
		if strings.HasSuffix(relative, " (deleted)") {
			return "", errGone
		}
		if path := filepath.Join("/", f.base, relative); isCgroup(dir, path, id) {
			return path, nil
		}
		err = errElsewhere
	}
	if !f.walked.IsZero() && time.Since(f.walked) < walkInterval {
		return "", err
	}
	f.walked = time.Now()
	path, err := byWalk(dir, id)
	if err != nil {
		return "", err
	}
	below, up := relative, 0
	for strings.HasPrefix(below, "/../") {
		below, up = below[len("/.."):], up+1
	}
	if above, found := strings.CutSuffix(path, below); found && below != "" {
		f.base = above + strings.Repeat("/_", up)
	}
	return path, nil
}

// taskCgroup returns the path of a process's memory cgroup, relative to the root of our
// cgroup namespace.
func taskCgroup(procfs string, version Version, pid int) (string, error) {
	b, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(b) {
		parts := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(parts) == 3 && (version == V2 && parts[0] == "0" || version == V1 && hasController(parts[1], "memory")) {
			return parts[2], nil
		}
	}
	return "", fmt.Errorf("process %d is in no memory cgroup", pid)
}

func hasController(list, name string) bool {
	return strings.Contains(","+list+",", ","+name+",")
}

func isCgroup(dir, path string, id uint64) bool {
	var st unix.Stat_t
	return unix.Stat(filepath.Join(dir, path), &st) == nil && st.Ino == id
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
	if !isCgroup(dir, path, id) {
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
		if isCgroup(path, "", id) {
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
