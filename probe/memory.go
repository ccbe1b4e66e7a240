package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// memoryReader reads the node's memory by its two accounts: the kernel's
// (/proc/meminfo) and the kubelet's (the root memory cgroup).
type memoryReader struct {
	meminfo hotFile
	root    memoryCgroup
	pods    memoryCgroup

	// What the tables below point at. They are made once, so that a read
	// allocates nothing.
	mem      Memory
	swap     Swap
	memTable []tableKey
}

func newMemoryReader(procfs string) *memoryReader {
	r := &memoryReader{meminfo: newHotFile(filepath.Join(procfs, "meminfo"))}
	r.memTable = []tableKey{
		{name: "MemTotal", value: &r.mem.Total, kib: true},
		{name: "MemFree", value: &r.mem.Free, kib: true},
		{name: "MemAvailable", value: &r.mem.Available, kib: true},
		{name: "SwapTotal", value: &r.swap.Total, kib: true},
		{name: "SwapFree", value: &r.swap.Free, kib: true},
	}
	return r
}

// discover finds the memory controller below cgroupfs, and the pods' cgroup if
// there is one by now. It comes before the first read, and is cheap enough to
// be called once a minute.
func (r *memoryReader) discover(cgroupfs string) {
	dir, version := memoryHierarchy(cgroupfs)
	r.root.locate(dir, version, true)
	r.pods.locate(podsCgroup(dir), version, false)
}

// CgroupVersion tells which memory controller the machine has.
type CgroupVersion uint8

// What memoryHierarchy tells apart.
const (
	CgroupNone CgroupVersion = iota // no memory controller that can be read
	CgroupV1
	CgroupV2
)

// String returns "none", "v1" or "v2".
func (v CgroupVersion) String() string { return [...]string{"none", "v1", "v2"}[v] }

// memoryHierarchy returns the root directory of the memory controller below
// cgroupfs, which is /sys/fs/cgroup: that directory itself on a cgroup v2
// machine, memory/ on v1 and on hybrid machines, whose unified/ hierarchy has
// the memory controller only if v1 does not. The root of a v2 hierarchy has the
// file that it is known by since Linux 5.8.
func memoryHierarchy(cgroupfs string) (string, CgroupVersion) {
	for _, c := range []struct {
		dir, mark string
		version   CgroupVersion
	}{
		{"memory", "memory.usage_in_bytes", CgroupV1},
		{"", "memory.stat", CgroupV2},
		{"unified", "memory.stat", CgroupV2},
	} {
		dir := filepath.Join(cgroupfs, c.dir)
		if _, err := os.Stat(filepath.Join(dir, c.mark)); err == nil {
			return dir, c.version
		}
	}
	return cgroupfs, CgroupNone
}

// MemoryCgroupVersion tells which memory controller the node has, for
// preflight.
func MemoryCgroupVersion(sysfs string) (dir string, version CgroupVersion) {
	return memoryHierarchy(filepath.Join(sysfs, "fs", "cgroup"))
}

// podsCgroup returns the cgroup that a kubelet keeps all pods in, by either of
// its cgroup drivers, or "".
func podsCgroup(root string) string {
	for _, name := range []string{"kubepods.slice", "kubepods"} {
		dir := filepath.Join(root, name)
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return ""
}

// memoryCgroup is one cgroup of the memory controller.
type memoryCgroup struct {
	dir     string
	version CgroupVersion
	isRoot  bool

	stat, usage, limit hotFile

	anon, file, inactive int64
	table                []tableKey
}

// locate points the cgroup at dir. Files stay open if nothing changed.
func (c *memoryCgroup) locate(dir string, version CgroupVersion, isRoot bool) {
	if c.table != nil && c.dir == dir && c.version == version {
		return
	}
	c.close()
	*c = memoryCgroup{dir: dir, version: version, isRoot: isRoot}
	if dir == "" || version == CgroupNone {
		return
	}
	c.stat = newHotFile(filepath.Join(dir, "memory.stat"))
	switch {
	case version == CgroupV1:
		c.usage = newHotFile(filepath.Join(dir, "memory.usage_in_bytes"))
		c.limit = newHotFile(filepath.Join(dir, "memory.limit_in_bytes"))
		c.table = []tableKey{{name: "total_inactive_file", value: &c.inactive}}
	case isRoot: // the v2 root has neither memory.current nor memory.max
		c.table = []tableKey{
			{name: "anon", value: &c.anon},
			{name: "file", value: &c.file},
			{name: "inactive_file", value: &c.inactive},
		}
	default:
		c.usage = newHotFile(filepath.Join(dir, "memory.current"))
		c.limit = newHotFile(filepath.Join(dir, "memory.max"))
		c.table = []tableKey{{name: "inactive_file", value: &c.inactive}}
	}
}

// read returns what the cgroup uses, and how much of that is file cache that
// the kernel would drop first, both in bytes.
func (c *memoryCgroup) read() (usage, inactive int64, err error) {
	if c.version == CgroupNone {
		return 0, 0, fmt.Errorf("find memory controller below %s: %w", c.dir, fs.ErrNotExist)
	}
	b, err := c.stat.read()
	if err != nil {
		return 0, 0, err
	}
	if err := parseTable(b, c.table); err != nil {
		return 0, 0, readError(c.stat.path, err)
	}
	if c.usage.path == "" {
		if c.anon > math.MaxInt64-c.file {
			return 0, 0, readError(c.stat.path, fmt.Errorf("anon + file: %w", errRange))
		}
		return c.anon + c.file, c.inactive, nil
	}
	usage, err = readNumber(&c.usage)
	return usage, c.inactive, err
}

// maxLimit is the highest value that is a limit. Cgroup v1 shows "no limit" as
// the highest multiple of a page that fits in an int64; the kubelet draws the
// line here.
const maxLimit = 1 << 62

var errNoLimit = errors.New("no limit")

// readLimit returns the cgroup's limit in bytes, or errNoLimit. It may be 0.
func (c *memoryCgroup) readLimit() (int64, error) {
	b, err := c.limit.read()
	if err != nil {
		return 0, err
	}
	if string(b) == "max\n" {
		return 0, errNoLimit
	}
	n, err := parseNumberFile(b)
	if err != nil {
		return 0, readError(c.limit.path, err)
	}
	if n > maxLimit {
		return 0, errNoLimit
	}
	return n, nil
}

func (c *memoryCgroup) close() {
	c.stat.close()
	c.usage.close()
	c.limit.close()
}

// readNumber reads a file that holds one number.
func readNumber(f *hotFile) (int64, error) {
	b, err := f.read()
	if err != nil {
		return 0, err
	}
	n, err := parseNumberFile(b)
	if err != nil {
		return 0, readError(f.path, err)
	}
	return n, nil
}

func parseNumberFile(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, errEmpty
	}
	line, _, whole := nextLine(b)
	field, _ := nextField(line)
	n, err := parseUint(field)
	if err == nil && !whole {
		err = errCut
	}
	if err != nil {
		return 0, lineError(line, err)
	}
	return n, nil
}

// read fills in the memory part of s.
func (r *memoryReader) read(s *Snapshot) {
	b, err := r.meminfo.read()
	if err == nil {
		if err = parseTable(b, r.memTable); err != nil {
			err = readError(r.meminfo.path, err)
		} else if r.mem.Total == 0 {
			err = readError(r.meminfo.path, fmt.Errorf("MemTotal: %w", errZero))
		}
	}
	s.Errors[SourceMeminfo] = err
	s.Memory = Memory{}
	s.Swap = Swap{}
	if err == nil {
		s.Memory, s.Swap = r.mem, r.swap
		s.Memory.OK, s.Swap.OK = true, true
	}

	usage, inactive, cgErr := r.root.read()
	s.Errors[SourceMemoryCgroup] = cgErr
	if cgErr == nil {
		s.Memory.Usage, s.Memory.InactiveFile = usage, inactive
		s.Memory.WorkingSet = max(0, usage-inactive)
		s.Memory.CgroupOK = true
	}
	s.Signals[MemoryAvailable] = Observation{Err: errors.Join(err, cgErr)}
	if err == nil && cgErr == nil {
		s.Signals[MemoryAvailable] = observe(r.mem.Total-s.Memory.WorkingSet, r.mem.Total)
	}
	s.Signals[AllocatableMemoryAvailable], s.Errors[SourcePodsCgroup] = r.readPods(err)
}

// readPods observes the pods' cgroup. No such cgroup, and no limit on it, are
// nothing to observe, and no error. The kubelet takes a limit of 0 for the
// machine's memory, which is known unless there is a meminfoErr.
func (r *memoryReader) readPods(meminfoErr error) (Observation, error) {
	if r.pods.dir == "" || r.pods.version == CgroupNone {
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
	r.meminfo.close()
	r.root.close()
	r.pods.close()
}

// observe is an observation that succeeded.
func observe(available, capacity int64) Observation {
	return Observation{Available: available, Capacity: capacity, OK: true}
}
