package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// nodePath returns where a path of the node is found below rootfs. Symbolic
// links on the way lead to where they lead on the node: where the node's root is
// mounted at /host and /var/lib/kubelet is a link to /data, that is /host/data,
// not the /data of the container that this process runs in.
//
// That takes openat2(2) (Linux 5.6). Where it is missing or forbidden, links
// are followed as if rootfs were /.
func nodePath(rootfs, path string) (string, error) {
	plain := filepath.Join(rootfs, path)
	if filepath.Clean(rootfs) == "/" {
		return plain, nil
	}
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: rootfs, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT,
	})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // EPERM is how seccomp forbids it
		return plain, nil
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: plain, Err: err}
	}
	defer unix.Close(fd)
	resolved, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return plain, nil // without /proc, as without openat2
	}
	return resolved, nil
}

// readNodeFile is os.ReadFile for a path of the node. It tells at which file it is.
func readNodeFile(rootfs, path string, at func(path string)) ([]byte, error) {
	at(filepath.Join(rootfs, path))
	path, err := nodePath(rootfs, path)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}
