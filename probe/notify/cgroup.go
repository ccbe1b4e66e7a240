package notify

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
	"golang.org/x/sys/unix"
)

// cgroupSource is an events file of the cgroup that holds all pods, on a machine
// whose memory controller is that of cgroup v2. memory.events.local (Linux 5.2) counts
// what the limit of all pods together caused, and every event matters there;
// memory.events also counts what happened in each pod, and as pods at their own limit
// are nothing special, only OOM events matter there.
//
// The kernel reports a change both by inotify and by poll(2). This polls: it needs no
// inotify watch, of which there are few, and the read that must follow is needed
// anyway. Neither reports reliably that the cgroup was removed, so stale checks.
type cgroupSource struct {
	cgroupfs string
	file     string
	only     string // the prefix of the keys that matter

	path string // what is open
	sum  int64  // of the keys that matter, when last read
	buf  [1024]byte
}

func (s *cgroupSource) name() string  { return "pods_" + strings.ReplaceAll(s.file, ".", "_") }
func (s *cgroupSource) cause() Cause  { return Cgroup }
func (s *cgroupSource) events() int16 { return unix.POLLPRI }

var (
	errNotV2  = errors.New("no memory controller of cgroup v2")
	errNoPods = errors.New("no cgroup for pods")
)

// find returns the path of the file at present.
func (s *cgroupSource) find() (string, error) {
	dir, version := cgroup.Memory(s.cgroupfs)
	if version != cgroup.V2 {
		return "", fmt.Errorf("find %s below %s: %w", s.file, s.cgroupfs, errNotV2)
	}
	pods := cgroup.Pods(dir)
	if pods == "" {
		return "", fmt.Errorf("find %s below %s: %w", s.file, dir, errNoPods)
	}
	return filepath.Join(pods, s.file), nil
}

func (s *cgroupSource) open() (int, string, error) {
	path, err := s.find()
	if err != nil {
		return -1, "", err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	s.path = path
	// poll compares with what was read last, so read once.
	if s.sum, err = s.read(fd); err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, path, nil
}

func (s *cgroupSource) read(fd int) (int64, error) {
	n, err := unix.Pread(fd, s.buf[:], 0)
	if err != nil {
		return 0, &fs.PathError{Op: "read", Path: s.path, Err: err}
	}
	sum, err := sumEvents(string(s.buf[:n]), s.only)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", s.path, err)
	}
	return sum, nil
}

var errCut = errors.New("cut off before its end")

// sumEvents adds up the counters whose names begin with prefix, of a file such
// as
//
//	low 0
//	high 12
//	max 7
//	oom 1
//	oom_kill 1
func sumEvents(text, prefix string) (int64, error) {
	var sum int64
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		value, whole := strings.CutSuffix(value, "\n")
		count, err := strconv.ParseUint(value, 10, 63)
		if err == nil && !whole {
			err = errCut
		}
		if err != nil {
			return 0, fmt.Errorf("line %.60q: %w", line, err)
		}
		sum += int64(count) // may wrap: it is only compared
	}
	return sum, nil
}

// heard reads the counters, which also arms the file for the next event. For a cgroup
// that was removed, poll reports an error for ever, and the read fails.
func (s *cgroupSource) heard(fd int, _ int16) (bool, error) {
	sum, err := s.read(fd)
	if err != nil {
		return false, err
	}
	changed := sum != s.sum
	s.sum = sum
	return changed, nil
}

func (s *cgroupSource) stale(fd int) bool {
	path, err := s.find()
	if err != nil || path != s.path {
		return true
	}
	var open, there unix.Stat_t
	return unix.Fstat(fd, &open) != nil || unix.Stat(path, &there) != nil || open.Ino != there.Ino || open.Dev != there.Dev
}

func (s *cgroupSource) remedy(err error) string {
	switch {
	case errors.Is(err, errNotV2):
		return "boot with cgroup v2 only (systemd.unified_cgroup_hierarchy=1)"
	case errors.Is(err, errNoPods):
		return "none needed: it is found once there are pods"
	case errors.Is(err, fs.ErrNotExist):
		return "run Linux 5.2 or later"
	}
	return ""
}
