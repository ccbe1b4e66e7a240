// Package rootfs finds the node's files from a process that may see its root
// directory elsewhere: in a container, below the directory where it is mounted.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Path returns where a path of the node is found below root. Symbolic links on the
// way lead to where they lead on the node: if the node's root is mounted at /host
// and /var/lib/kubelet is a link to /data, that is /host/data, not the /data of the
// container that this process runs in.
//
// That takes openat2(2) (Linux 5.6). Where it is missing or forbidden, links are
// followed as if root were /. The error wraps that of open(2).
func Path(root, path string) (string, error) {
	plain := filepath.Join(root, path)
	if filepath.Clean(root) == "/" {
		return plain, nil
	}
	dir, err := openRoot(root)
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	fd, err := openIn(dir, path)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // EPERM is how seccomp forbids it
		return plain, nil
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: plain, Err: err}
	}
	defer unix.Close(fd)
	resolved, err := readFD(fd)
	if err != nil {
		return plain, nil // without /proc, as without openat2
	}
	return resolved, nil
}

// Resolve returns path without symbolic links as the node has it, which is also how
// the node's mount table spells it. Unlike Path it does not fall back where openat2(2)
// is missing, and fails instead. Only an error about path itself wraps
// fs.ErrNotExist, not one about root.
func Resolve(root, path string) (string, error) {
	if filepath.Clean(root) == "/" {
		if direct, err := readPath(path); err == nil {
			return direct, nil
		}
		return filepath.EvalSymlinks(path)
	}
	dir, err := openRoot(root)
	if err != nil {
		return "", errors.New(err.Error())
	}
	defer unix.Close(dir)
	fd, err := openIn(dir, path)
	if err != nil {
		return "", &fs.PathError{Op: "openat2", Path: filepath.Join(root, path), Err: err}
	}
	defer unix.Close(fd)
	return Within(dir, fd)
}

// ReadFile is os.ReadFile for a path of the node.
func ReadFile(root, path string) ([]byte, error) {
	path, err := Path(root, path)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Within returns the path of an open file relative to an open directory above it,
// with a leading slash. It needs this process's own /proc.
func Within(dir, file int) (string, error) {
	base, err := readFD(dir)
	if err != nil {
		return "", err
	}
	path, err := readFD(file)
	if err != nil {
		return "", err
	}
	rest, found := strings.CutPrefix(path, strings.TrimSuffix(base, "/"))
	if !found || rest != "" && rest[0] != '/' {
		return "", fmt.Errorf("%s is not in %s", path, base)
	}
	return filepath.Join("/", rest), nil
}

func openRoot(root string) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	return fd, nil
}

func openIn(dir int, path string) (int, error) {
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT,
	})
}

// readPath resolves a path without lstat(2), which a filesystem that was shut down
// answers with an error.
func readPath(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readFD(fd)
}

func readFD(fd int) (string, error) { return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)) }
