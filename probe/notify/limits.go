package notify

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// limitsSource is the sysctls that limit the number of tasks, by inotify (Linux
// 2.6.13): a write is reported even if it changes nothing. Inotify watches the inode.
// The kernel would forget that and make another for the next writer, but the sampler
// keeps the files open.
type limitsSource struct{ procfs string }

func (s *limitsSource) name() string  { return "task_limits" }
func (s *limitsSource) cause() Cause  { return Limits }
func (s *limitsSource) events() int16 { return unix.POLLIN }

func (s *limitsSource) open() (int, string, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return -1, "", err
	}
	dir := filepath.Join(s.procfs, "sys/kernel")
	for _, name := range []string{"pid_max", "threads-max"} {
		path := filepath.Join(dir, name)
		if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
			unix.Close(fd)
			return -1, "", &fs.PathError{Op: "watch", Path: path, Err: err}
		}
	}
	return fd, "pid_max and threads-max of " + dir, nil
}

// heard empties the queue; what the events say is known.
func (s *limitsSource) heard(fd int, _ int16) (bool, error) {
	var buf [4096]byte
	for {
		switch _, err := unix.Read(fd, buf[:]); {
		case errors.Is(err, unix.EAGAIN):
			return true, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}

func (s *limitsSource) stale(int) bool { return false }

func (s *limitsSource) remedy(err error) string {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOSPC) {
		return "raise fs.inotify.max_user_instances and max_user_watches"
	}
	return "mount the node's /proc, and name it in path.procfs"
}
