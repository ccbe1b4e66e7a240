package notify

import (
	"fmt"
	"io/fs"

	"github.com/nodeprobe/nodeprobe/probe/mount"
	"golang.org/x/sys/unix"
)

// mountsSource is the mount table (Linux 2.6.26). It reports changes of the table and
// of a mount's options in that mount namespace; not that ext4 stopped writing after an
// error, and not a remount of the filesystem in another namespace.
type mountsSource struct{ procfs string }

func (s *mountsSource) name() string  { return "mounts" }
func (s *mountsSource) cause() Cause  { return Mounts }
func (s *mountsSource) events() int16 { return unix.POLLPRI }

func (s *mountsSource) open() (int, string, error) {
	var first error
	for _, path := range mount.TablePaths(s.procfs) {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, path, nil
		}
		if first == nil {
			first = &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
	return -1, "", first
}

// heard has nothing to read: polling has consumed the event. This file reports it by
// POLLERR along with POLLPRI.
func (s *mountsSource) heard(_ int, revents int16) (bool, error) {
	if revents&unix.POLLPRI == 0 {
		return false, fmt.Errorf("%s: %w: %#x", s.name(), errPolled, revents)
	}
	return true, nil
}

func (s *mountsSource) stale(int) bool { return false }

func (s *mountsSource) remedy(error) string {
	return "mount the node's /proc, and name it in path.procfs"
}
