package notify

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
	"golang.org/x/sys/unix"
)

// StallTrigger is a PSI trigger: tasks stalled on a resource for a share of a short
// window (Linux 5.2).
type StallTrigger struct {
	Resource probe.Resource
	// Full means that all tasks stall at once, not just some.
	Full bool
	// Share is the part of the window, above 0 and up to 1.
	Share float64
	// Window is the shortest window to ask for; 0 means 500 ms. The kernel reports a
	// stall that goes on once per window.
	Window time.Duration
}

// ruleWindow is that of the triggers of rules. The kernel's averages, which rules are
// about, take in two seconds at a time.
const ruleWindow = 2 * time.Second

// leastShare keeps a rule that holds as soon as anything stalls from waking somebody for
// microseconds.
const leastShare = 0.01

// WithRule returns triggers with one that tells of stalls of a kind for more than a share
// of the time, if none of them does so already. An average cannot come to a share unless
// some window before has it.
func WithRule(triggers []StallTrigger, resource probe.Resource, full bool, share float64) []StallTrigger {
	share = max(share, leastShare)
	for _, t := range triggers {
		// While all tasks stall, some do.
		if t.Resource == resource && t.Share <= share && (full || !t.Full) {
			return triggers
		}
	}
	return append(triggers, StallTrigger{Resource: resource, Full: full, Share: share, Window: ruleWindow})
}

// DefaultStallTriggers returns the triggers that deserve a sample. Stalls on memory
// come long before it runs out, so a small share is enough; disks are busy on healthy
// nodes too, so only a full stall counts. No condition is about waiting for a CPU.
func DefaultStallTriggers() []StallTrigger {
	return []StallTrigger{
		{Resource: probe.MemoryResource, Share: 0.05},
		{Resource: probe.IO, Full: true, Share: 0.25},
	}
}

func (t StallTrigger) validate() error {
	if int(t.Resource) >= probe.NumResources {
		return fmt.Errorf("resource: %d is unknown", t.Resource)
	}
	if longest := stallWindows[len(stallWindows)-1]; t.Window < 0 || t.Window > longest {
		return fmt.Errorf("window: %s is not up to %s", t.Window, longest)
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

// stallWindows are tried in this order. With CAP_SYS_RESOURCE the kernel accepts any
// from 500 ms to 10 s (newer kernels also shorter ones, which cost more and report no
// more); without it, the kernel evaluates every 2 s and accepts only multiples of that.
var stallWindows = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}

// stallSource is a trigger on a file of /proc/pressure (Linux 5.2, CONFIG_PSI).
// The kernel reports it at most once per window.
type stallSource struct {
	trigger StallTrigger
	procfs  string
}

func (s *stallSource) name() string {
	name := "pressure_" + s.trigger.Resource.String() + "_" + s.trigger.kind()
	if s.trigger.Window > 0 { // there may be another of the kind
		name += "_rule"
	}
	return name
}

func (s *stallSource) events() int16 { return unix.POLLPRI }

func (s *stallSource) cause() Cause { return CPUStall + Cause(s.trigger.Resource) }

func (s *stallSource) open() (int, string, error) {
	fd, detail, err := s.openIn(s.procfs)
	// A trigger is set by writing, and containers get the host's /proc read-only.
	// PSI knows no namespaces: the container's own /proc serves as well.
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
	// What follows writes, and must not change a copy of /proc.
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		unix.Close(fd)
		return -1, "", &fs.PathError{Op: "set trigger on", Path: path, Err: cmp.Or(err, errNotProcfs)}
	}
	for _, window := range stallWindows {
		if window < s.trigger.Window {
			continue
		}
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
		return "none: another program has set a trigger on the same open file; report this"
	}
	return ""
}
