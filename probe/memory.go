package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

// memoryReader reads the node's memory by two accounts: the kernel's, and the
// kubelet's, which is that of the root memory cgroup. Both come from /proc/meminfo: it
// has the root cgroup's figures too, at no further cost, while to read the root's
// memory.stat the kernel adds up what every cgroup has counted since the last read,
// which takes milliseconds if thousands of them are busy.
type memoryReader struct {
	meminfo hotfile.File
	root    string // of the memory controller
	version cgroup.Version
	none    bool // cgroups are mounted, without a memory controller
	pods    memoryCgroup

	podsLast Observation
	podsDue  time.Time                                   // when to read it again
	readPods func(meminfoErr error) (Observation, error) // readPodsCgroup; tests replace it

	// The tables below point at these. They are made once, so that a read allocates
	// nothing.
	mem      Memory
	swap     Swap
	memTable []hotfile.Key

	// The root cgroup's account: anonymous memory, and file cache in three parts.
	anon, cached, buffers, swapCached int64
	cgroupTable                       []hotfile.Key
}

func newMemoryReader(procfs string) *memoryReader {
	r := &memoryReader{meminfo: hotfile.New(filepath.Join(procfs, "meminfo"))}
	r.readPods = r.readPodsCgroup
	r.memTable = []hotfile.Key{
		{Name: "MemTotal", Value: &r.mem.Total, KiB: true},
		{Name: "MemFree", Value: &r.mem.Free, KiB: true},
		{Name: "MemAvailable", Value: &r.mem.Available, KiB: true},
		{Name: "SwapTotal", Value: &r.swap.Total, KiB: true},
		{Name: "SwapFree", Value: &r.swap.Free, KiB: true},
	}
	r.cgroupTable = []hotfile.Key{
		{Name: "AnonPages", Value: &r.anon, KiB: true},
		{Name: "Cached", Value: &r.cached, KiB: true},
		{Name: "Buffers", Value: &r.buffers, KiB: true},
		{Name: "SwapCached", Value: &r.swapCached, KiB: true},
		{Name: "Inactive(file)", Value: &r.mem.InactiveFile, KiB: true},
	}
	return r
}

// discover finds the memory controller below cgroupfs, and the pods' cgroup if it
// exists by now. It must precede the first read, and is cheap enough for once a minute.
func (r *memoryReader) discover(cgroupfs string) {
	r.root, r.version = cgroup.Memory(cgroupfs)
	r.none = r.version == cgroup.None && cgroup.Mounted(cgroupfs)
	r.pods.locate(cgroup.Pods(r.root), r.version)
	r.podsDue = time.Time{}
}

// memoryCgroup is one cgroup of the memory controller.
type memoryCgroup struct {
	dir     string
	version cgroup.Version

	stat, usage, limit hotfile.File

	inactive int64
	table    []hotfile.Key
}

// locate points the cgroup at dir. Files stay open if nothing changed.
func (c *memoryCgroup) locate(dir string, version cgroup.Version) {
	if c.table != nil && c.dir == dir && c.version == version {
		return
	}
	c.close()
	*c = memoryCgroup{dir: dir, version: version}
	if dir == "" || version == cgroup.None {
		return
	}
	c.stat = hotfile.New(filepath.Join(dir, "memory.stat"))
	if version == cgroup.V1 {
		c.usage = hotfile.New(filepath.Join(dir, "memory.usage_in_bytes"))
		c.limit = hotfile.New(filepath.Join(dir, "memory.limit_in_bytes"))
		c.table = []hotfile.Key{{Name: "total_inactive_file", Value: &c.inactive}}
	} else {
		c.usage = hotfile.New(filepath.Join(dir, "memory.current"))
		c.limit = hotfile.New(filepath.Join(dir, "memory.max"))
		c.table = []hotfile.Key{{Name: "inactive_file", Value: &c.inactive}}
	}
}

// read returns the cgroup's usage, and how much of that is file cache that the kernel
// would drop first, both in bytes.
func (c *memoryCgroup) read() (usage, inactive int64, err error) {
	b, err := c.stat.Read()
	if err != nil {
		return 0, 0, err
	}
	if err := hotfile.ParseTable(b, c.table); err != nil {
		return 0, 0, readError(c.stat.Path, err)
	}
	usage, err = c.usage.Number()
	return usage, c.inactive, err
}

// maxLimit is the highest value that is a limit. Cgroup v1 shows "no limit" as the
// highest multiple of a page that fits in an int64; the kubelet draws the line here.
const maxLimit = 1 << 62

var errNoLimit = errors.New("no limit")

// readLimit returns the cgroup's limit in bytes, or errNoLimit. It may be 0.
func (c *memoryCgroup) readLimit() (int64, error) {
	b, err := c.limit.Read()
	if err != nil {
		return 0, err
	}
	if string(b) == "max\n" {
		return 0, errNoLimit
	}
	n, err := hotfile.ParseNumber(b)
	if err != nil {
		return 0, readError(c.limit.Path, err)
	}
	if n > maxLimit {
		return 0, errNoLimit
	}
	return n, nil
}

func (c *memoryCgroup) close() {
	c.stat.Close()
	c.usage.Close()
	c.limit.Close()
}

// read fills in the memory part of s.
func (r *memoryReader) read(s *Snapshot) {
	b, err := r.meminfo.Read()
	if err == nil {
		if err = hotfile.ParseTable(b, r.memTable); err != nil {
			err = readError(r.meminfo.Path, err)
		} else if r.mem.Total == 0 {
			err = readError(r.meminfo.Path, fmt.Errorf("MemTotal: %w", hotfile.ErrZero))
		}
	}
	s.Errors[SourceMeminfo] = err
	s.Memory = Memory{}
	s.Swap = Swap{}
	s.Signals[MemAvailable], s.Signals[SwapAvailable] = Observation{Err: err}, Observation{Err: err}
	var cgroupErr error
	switch {
	case r.version == cgroup.None && !r.none:
		cgroupErr = fmt.Errorf("find memory controller below %s: %w", r.root, fs.ErrNotExist)
	case err == nil:
		cgroupErr = r.parseCgroup(b)
	}
	if err == nil {
		s.Memory = Memory{Total: r.mem.Total, Free: r.mem.Free, Available: r.mem.Available, OK: true}
		s.Swap = r.swap
		s.Swap.OK = true
		s.Signals[MemAvailable] = observe(r.mem.Available, r.mem.Total)
		if r.swap.Total > 0 {
			s.Signals[SwapAvailable] = observe(r.swap.Free, r.swap.Total)
		}
	}
	s.Errors[SourceMemoryCgroup] = cgroupErr
	s.Signals[MemoryAvailable] = Observation{Err: errors.Join(err, cgroupErr)}
	if err == nil && cgroupErr == nil {
		s.Memory.Usage, s.Memory.InactiveFile = r.mem.Usage, r.mem.InactiveFile
		s.Memory.WorkingSet = max(0, r.mem.Usage-r.mem.InactiveFile)
		s.Memory.CgroupOK = true
		s.Signals[MemoryAvailable] = observe(r.mem.Total-s.Memory.WorkingSet, r.mem.Total)
	}
	s.PodsCgroup = r.pods.dir
	s.Signals[AllocatableMemoryAvailable], s.Errors[SourcePodsCgroup] = r.observePods(s.Time, err)
}

// parseCgroup takes the root cgroup's account out of meminfo: its usage is the
// memory.usage_in_bytes of v1, and anon and file of v2's memory.stat.
func (r *memoryReader) parseCgroup(meminfo []byte) error {
	if err := hotfile.ParseTable(meminfo, r.cgroupTable); err != nil {
		return readError(r.meminfo.Path, err)
	}
	r.mem.Usage = 0
	for _, part := range [...]int64{r.anon, r.cached, r.buffers, r.swapCached} {
		if r.mem.Usage > math.MaxInt64-part {
			return readError(r.meminfo.Path, fmt.Errorf("AnonPages + Cached + Buffers + SwapCached: %w", hotfile.ErrRange))
		}
		r.mem.Usage += part
	}
	return nil
}

const (
	// podsShare limits the time spent on reading the pods' cgroup to 1/podsShare.
	// Only memory.stat has how much of its memory is cache, and the kernel adds that
	// up as for the root.
	podsShare = 100
	// maxPodsAge limits how old the figure may get. A kubelet's is up to 10 s old.
	maxPodsAge = time.Second
)

// observePods is readPods, or what that returned last if another read would cost too
// much yet. Usage and cache are always of one moment: cache that was added in between
// would look like memory in use.
func (r *memoryReader) observePods(now time.Time, meminfoErr error) (Observation, error) {
	if now.Before(r.podsDue) {
		return r.podsLast, nil
	}
	began := time.Now()
	o, err := r.readPods(meminfoErr)
	r.podsLast, r.podsDue = o, time.Time{}
	if o.OK {
		r.podsDue = now.Add(min(podsShare*time.Since(began), maxPodsAge))
	}
	return o, err
}

// readPodsCgroup observes the pods' cgroup. If there is none, or it has no limit, there
// is nothing to observe, and no error. As for the kubelet, a limit of 0 means all of
// the machine's memory, which is known unless there is a meminfoErr.
func (r *memoryReader) readPodsCgroup(meminfoErr error) (Observation, error) {
	if r.pods.dir == "" || r.pods.version == cgroup.None {
		return Observation{}, nil
	}
	limit, err := r.pods.readLimit()
	if err == nil && limit == 0 {
		if meminfoErr != nil {
			return Observation{Err: meminfoErr}, nil
		}
		limit = r.mem.Total
	}
	if err == nil {
		var usage, inactive int64
		if usage, inactive, err = r.pods.read(); err == nil {
			return observe(limit-max(0, usage-inactive), limit), nil
		}
	}
	if errors.Is(err, errNoLimit) {
		return Observation{}, nil
	}
	return Observation{Err: err}, err
}

func (r *memoryReader) close() {
	r.meminfo.Close()
	r.pods.close()
}

// observe returns an Observation that succeeded.
func observe(available, capacity int64) Observation {
	return Observation{Available: available, Capacity: capacity, OK: true}
}

// readError returns an error about the content of a file.
func readError(path string, err error) error { return fmt.Errorf("read %s: %w", path, err) }
