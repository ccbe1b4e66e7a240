package probe

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// StallTrigger is a stall to hear of: tasks stalled on a resource for a share of
// a short window.
type StallTrigger struct {
	Resource Resource
	// Full asks that all tasks stall at once, not just some.
	Full bool
	// Share is the part of the window, above 0 and up to 1.
	Share float64
}

// DefaultStallTriggers returns what is worth a look at the node. Stalls on
// memory come long before there is none left, so little is enough; disks are
// busy on healthy nodes too, and only count when nobody gets on. Waiting for a
// CPU is nothing that any condition is about.
func DefaultStallTriggers() []StallTrigger {
	return []StallTrigger{
		{Resource: MemoryResource, Share: 0.05},
		{Resource: IO, Full: true, Share: 0.25},
	}
}

func (t StallTrigger) validate() error {
	if int(t.Resource) >= NumResources {
		return fmt.Errorf("resource: %d is unknown", t.Resource)
	}
	if !(t.Share > 0 && t.Share <= 1) { // NaN is neither
		return fmt.Errorf("share: %v is not above 0 and up to 1", t.Share)
	}
	return nil
}

func (t StallTrigger) kind() string {
	if t.Full {
		return "full"
	}
	return "some"
}

// stallWindows are tried in this order. A process with CAP_SYS_RESOURCE may have
// any from 500 ms to 10 s (newer kernels allow shorter ones, which cost more and
// tell no more); without it, the kernel evaluates every 2 s and wants multiples
// of that.
var stallWindows = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}

// stallSource is a trigger on a file of /proc/pressure (Linux 5.2, CONFIG_PSI).
// The kernel reports it at most once per window.
type stallSource struct {
	trigger StallTrigger
	procfs  string
}

func (s *stallSource) name() string {
	return "pressure_" + s.trigger.Resource.String() + "_" + s.trigger.kind()
}

func (s *stallSource) events() int16 { return unix.POLLPRI }

func (s *stallSource) cause() NotifyCause { return NotifyCPUStall + NotifyCause(s.trigger.Resource) }

func (s *stallSource) open() (int, string, error) {
	fd, detail, err := s.openIn(s.procfs)
	// Hints need a file that can be written, and containers get the host's /proc
	// read-only. No namespace bounds PSI: the container's own /proc serves.
	if s.procfs != "/proc" && errors.Is(err, unix.EROFS) {
		return s.openIn("/proc")
	}
	return fd, detail, err
}

func (s *stallSource) openIn(procfs string) (int, string, error) {
	path := filepath.Join(procfs, "pressure", s.trigger.Resource.String())
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	// What follows writes, and a copy of somebody's /proc is not to be changed.
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		unix.Close(fd)
		return -1, "", &fs.PathError{Op: "set trigger on", Path: path, Err: cmp.Or(err, errNotProcfs)}
	}
	for _, window := range stallWindows {
		threshold := max(1, int64(s.trigger.Share*float64(window.Microseconds())))
		// The kernel puts a NUL in the place of the last byte.
		request := fmt.Sprintf("%s %d %d\x00", s.trigger.kind(), threshold, window.Microseconds())
		if _, err = unix.Write(fd, []byte(request)); err == nil {
			return fd, fmt.Sprintf("%s, %s %.4g%% of %s", path, s.trigger.kind(), 100*s.trigger.Share, window), nil
		}
		if err != unix.EINVAL {
			break
		}
	}
	unix.Close(fd)
	return -1, "", &fs.PathError{Op: "set trigger on", Path: path, Err: err}
}

var (
	errPolled    = errors.New("poll reports an error")
	errNotProcfs = errors.New("not on procfs")
)

func (s *stallSource) heard(_ int, revents int16) (bool, error) {
	if revents&unix.POLLPRI == 0 || revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
		return false, fmt.Errorf("%s: %w: %#x", s.name(), errPolled, revents)
	}
	return true, nil
}

func (s *stallSource) stale(int) bool { return false }

func (s *stallSource) remedy(err error) string {
	switch {
	case errors.Is(err, errNotProcfs):
		return "mount the host's /proc at --path.procfs"
	case errors.Is(err, unix.ENOENT):
		return "run a kernel with CONFIG_PSI, and psi=1 on its command line if it is off by default"
	case errors.Is(err, unix.EOPNOTSUPP):
		return "boot with psi=1 on the kernel's command line"
	case errors.Is(err, unix.EPERM):
		return "grant CAP_SYS_RESOURCE, or run Linux 6.5 or later (6.1.42 or later in the 6.1 series)"
	case errors.Is(err, unix.EACCES):
		return "run as root, and let AppArmor or SELinux allow writing to /proc/pressure"
	case errors.Is(err, unix.EROFS):
		return "mount /proc read-write"
	case errors.Is(err, unix.EINVAL):
		return "grant CAP_SYS_RESOURCE; if that does not help, the kernel does not know the trigger (cpu full: Linux 5.13)"
	case errors.Is(err, unix.EIO):
		return "run Linux 5.2 or later"
	case errors.Is(err, unix.EBUSY):
		return "none: somebody else has set a trigger on the same open file; report this"
	}
	return ""
}

// mountsSource is the mount table (Linux 2.6.26). It reports what changes the
// table or the options of a mount in that mount namespace: not that ext4 has
// stopped writing after an error, and not a remount of the filesystem in another
// namespace.
type mountsSource struct{ procfs string }

func (s *mountsSource) name() string       { return "mounts" }
func (s *mountsSource) cause() NotifyCause { return NotifyMounts }
func (s *mountsSource) events() int16      { return unix.POLLPRI }

func (s *mountsSource) open() (int, string, error) {
	var first error
	for _, path := range mountinfoPaths(s.procfs) {
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

// heard needs to do nothing: polling has taken the news already. POLLERR is
// how this file reports them, along with POLLPRI.
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

// cgroupSource is a file of events of the cgroup that all pods are in, on a
// machine whose memory controller is that of cgroup v2. memory.events.local
// (Linux 5.2) counts what the limit of all pods together caused, and each of it
// counts; memory.events counts what happened in any pod too, and pods at their
// own limit are nothing special, so only the OOM killer counts there.
//
// The kernel reports a change both by inotify and by poll(2). This polls: it
// needs no watch, of which there are few, and the read that must follow is one
// that we make anyway. Neither tells reliably that the cgroup is removed, so
// stale looks.
type cgroupSource struct {
	cgroupfs string
	file     string
	only     string // a prefix of the keys that count

	path string // what is open
	sum  int64  // of the keys that count, when last read
	buf  [1024]byte
}

func (s *cgroupSource) name() string       { return "pods_" + strings.ReplaceAll(s.file, ".", "_") }
func (s *cgroupSource) cause() NotifyCause { return NotifyCgroup }
func (s *cgroupSource) events() int16      { return unix.POLLPRI }

var (
	errNotV2  = errors.New("no memory controller of cgroup v2")
	errNoPods = errors.New("no cgroup for pods")
)

// find returns the path of the file as things are now.
func (s *cgroupSource) find() (string, error) {
	dir, version := memoryHierarchy(s.cgroupfs)
	if version != CgroupV2 {
		return "", fmt.Errorf("find %s below %s: %w", s.file, s.cgroupfs, errNotV2)
	}
	pods := podsCgroup(dir)
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
	// poll compares with what was read last, so something must have been.
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
	sum, err := sumEvents(s.buf[:n], s.only)
	if err != nil {
		return 0, readError(s.path, err)
	}
	return sum, nil
}

// sumEvents adds up the counters whose names begin with prefix, of a file such
// as
//
//	low 0
//	high 12
//	max 7
//	oom 1
//	oom_kill 1
func sumEvents(b []byte, prefix string) (int64, error) {
	var sum int64
	for len(b) > 0 {
		line, rest, whole := nextLine(b)
		b = rest
		name, value := nextField(line)
		if !bytes.HasPrefix(name, []byte(prefix)) {
			continue
		}
		field, _ := nextField(value)
		count, err := parseUint(field)
		if err == nil && !whole {
			err = errCut
		}
		if err != nil {
			return 0, lineError(line, err)
		}
		sum += count // may wrap: it is only compared
	}
	return sum, nil
}

// heard reads the counters, which readies the file for the next report. Of a
// cgroup that was removed poll reports an error for ever, and the read fails.
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
		return "none needed: it is looked for again once there are pods"
	case errors.Is(err, fs.ErrNotExist):
		return "run Linux 5.2 or later"
	}
	return ""
}
