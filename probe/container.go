package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Container says whose a cgroup is.
type Container struct {
	// PodUID is the pod's UID as Kubernetes has it; a static pod's is a hash
	// without dashes unless its manifest names one. "" for a container that is
	// no pod's.
	PodUID string
	// ID is the container's ID at the runtime, without a scheme. "" for the
	// cgroup of a whole pod.
	ID string
}

// ParseContainer finds pod and container in the path of a cgroup, by either of
// the kubelet's cgroup drivers:
//
//	/kubepods/burstable/pod<uid>/<id>                                            cgroupfs
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<u_i_d>.slice/cri-containerd-<id>.scope   systemd
//	/system.slice/kubepods-burstable-pod<u_i_d>.slice:cri-containerd:<id>        a runtime that was told neither
//
// What is around it (cgroupRoot, a container that the node itself runs in) and
// below (the init.scope of a systemd in the container) does not matter: of
// several pods or containers inside each other the outermost is the node's. It
// returns false if there is neither.
func ParseContainer(cgroup string) (Container, bool) {
	var outside, inside Container // a container that holds no pod, and one in a pod
	kubepods := false
	for name := range strings.SplitSeq(cgroup, "/") {
		// Taken apart, such a name is one of a pod and one of a container.
		slice, id, joined := strings.Cut(name, ":")
		if inside.PodUID == "" {
			uid, within := podUID(slice, kubepods)
			kubepods = kubepods || within
			inside.PodUID = uid
			if uid != "" && !joined {
				continue
			}
		}
		if joined {
			name = strings.ReplaceAll(id, ":", "-")
		}
		switch id := containerID(name); {
		case id == "":
		case inside.PodUID != "":
			inside.ID = id
			return inside, true
		case outside.ID == "":
			outside.ID = id
		}
	}
	if inside.PodUID != "" {
		return inside, true
	}
	return outside, outside.ID != ""
}

// podUID returns the UID in the name of a pod's cgroup. Within tells that it is,
// or is below, the cgroup of all pods: somebody else's cgroup may be called
// pod-something.
func podUID(name string, within bool) (uid string, kubepods bool) {
	slice, isSlice := strings.CutSuffix(name, ".slice")
	if !isSlice {
		if uid, ok := strings.CutPrefix(name, "pod"); ok && within {
			return uid, true
		}
		return "", within || name == "kubepods"
	}
	// A slice's name repeats those above it, and as "-" separates them, the
	// kubelet writes "_" for each "-" within one.
	parts := strings.Split(slice, "-")
	for i, part := range parts {
		if part == "kubepods" {
			within = true
		} else if uid, ok := strings.CutPrefix(part, "pod"); ok && within && i == len(parts)-1 {
			return strings.ReplaceAll(uid, "_", "-"), true
		}
	}
	return "", within
}

// containerIDLength is that of containerd, CRI-O, Docker and Podman alike.
const containerIDLength = 64

// containerID returns the ID in the name of a container's cgroup: the bare ID,
// or prefixes such as cri-containerd-, crio-, crio-conmon-, docker- and libpod-,
// with .scope after it or not.
func containerID(name string) string {
	name = strings.TrimSuffix(name, ".scope")
	name = name[strings.LastIndexByte(name, '-')+1:]
	if len(name) != containerIDLength || strings.Trim(name, "0123456789abcdef") != "" {
		return ""
	}
	return name
}

// errCgroupGone says that no cgroup has the ID any more. After an OOM kill that
// is common: the runtime removes a container's cgroup as soon as it is empty.
var errCgroupGone = fmt.Errorf("removed by now: %w", fs.ErrNotExist)

// fileIDKernfs is FILEID_KERNFS: a file handle that is nothing but the 64-bit ID
// (Linux 5.5).
const fileIDKernfs = 0xfe

// CgroupPath returns the path of the memory cgroup whose directory has the inode
// number id, as bpf.Event.CgroupID, relative to the root of the hierarchy that
// is mounted below cgroupfs (/sys/fs/cgroup). The error wraps fs.ErrNotExist if
// the cgroup is gone.
//
// With CAP_DAC_READ_SEARCH it asks the kernel, which takes 40 us; without, it looks
// at every cgroup there is. IDs have 64 bits: a 32-bit kernel has no inode
// numbers for them and only the first way works.
func CgroupPath(cgroupfs string, id uint64) (string, error) {
	dir, version := memoryHierarchy(cgroupfs)
	if version == CgroupNone {
		return "", fmt.Errorf("find cgroup %d: no memory cgroup below %s: %w", id, cgroupfs, fs.ErrNotExist)
	}
	path, err := cgroupByHandle(dir, id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		path, err = cgroupByWalk(dir, id)
	}
	if err != nil {
		return "", fmt.Errorf("find cgroup %d below %s: %w", id, dir, err)
	}
	return path, nil
}

// cgroupByHandle asks the kernel. It fails where we may not (EPERM), where a
// container's seccomp profile has no open_by_handle_at(2), and where only a part
// of the hierarchy is mounted and the cgroup is not in it.
func cgroupByHandle(dir string, id uint64) (string, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	handle := unix.NewFileHandle(fileIDKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(root, handle, unix.O_PATH|unix.O_CLOEXEC)
	if errors.Is(err, unix.ESTALE) {
		return "", errCgroupGone
	}
	if err != nil {
		return "", fmt.Errorf("open by handle: %w", err)
	}
	defer unix.Close(fd)
	path, err := pathWithin(root, fd)
	if err != nil {
		return "", err
	}
	// Between the two calls it may have gone; its name then has an addition.
	var opened, there unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	if err := unix.Stat(filepath.Join(dir, path), &there); err != nil || opened.Ino != there.Ino {
		return "", errCgroupGone
	}
	return path, nil
}

// cgroupByWalk looks at every cgroup. Those that vanish meanwhile are nothing to
// worry about.
func cgroupByWalk(dir string, id uint64) (string, error) {
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
		return "", errCgroupGone
	}
	return filepath.Join("/", strings.TrimPrefix(found, dir)), nil
}
