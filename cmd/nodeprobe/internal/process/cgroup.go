package process

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/cgroup"
)

// Cgroup is what the memory controller grants this process.
type Cgroup struct {
	// Path is where it is. In a container it may be "/", and what it is in is not
	// visible.
	Path    string
	Version cgroup.Version
	// Limit is the lowest memory limit of the cgroup and of those that it is in;
	// [math.MaxInt64] is none.
	Limit int64
	// Min and Low are memory.min and memory.low, of cgroup v2. Each has no effect beyond
	// what the cgroups have that it is in.
	Min, Low int64
	// Unprotected is the cgroup outside of this one that takes away from its Min, or "".
	Unprotected string
}

// BoundLock returns how much may be locked in the cgroup of this process: limit, or what
// its memory limit allows, which is logged.
func BoundLock(limit int64, log *slog.Logger) int64 {
	own, err := OwnCgroup()
	if err != nil { // there is no limit
		return limit
	}
	bound := own.LockBound(limit)
	if bound < limit {
		log.Info("less memory may be locked than configured", "cgroup", own.Path, "cgroupLimit", own.Limit,
			"lockedMemoryLimit", limit, "limit", bound)
	}
	return bound
}

// LockBound returns limit, or three quarters of the cgroup's memory limit if that is less.
// Locked memory cannot be reclaimed: what reaches the cgroup's limit ends with the OOM
// killer. The rest is for what the kernel charges to it: page tables, sockets, BPF maps.
func (c *Cgroup) LockBound(limit int64) int64 { return min(limit, c.Limit/4*3) }

// OwnCgroup reads the cgroup of this process, where /sys/fs/cgroup is mounted.
func OwnCgroup() (*Cgroup, error) { return ownCgroup("/proc/self/cgroup", "/sys/fs/cgroup") }

func ownCgroup(file, cgroupfs string) (*Cgroup, error) {
	root, version := cgroup.Memory(cgroupfs)
	if version == cgroup.None {
		return nil, fmt.Errorf("no memory controller below %s", cgroupfs)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	path, ok := memoryCgroup(string(text), version)
	if !ok {
		return nil, fmt.Errorf("read %s: no memory cgroup", file)
	}
	c := &Cgroup{Path: path, Version: version, Limit: math.MaxInt64}
	limit := "memory.max"
	if version == cgroup.V1 {
		limit = "memory.limit_in_bytes"
	}
	if n, _, ok := least(root, path, limit); ok {
		c.Limit = n
	}
	c.Min, c.Unprotected, _ = least(root, path, "memory.min")
	if c.Unprotected == path {
		c.Unprotected = ""
	}
	c.Low, _, _ = least(root, path, "memory.low")
	return c, nil
}

// memoryCgroup finds the path in lines such as
//
//	0::/system.slice/nodeprobe.service
//	4:memory:/user.slice
func memoryCgroup(text string, version cgroup.Version) (string, bool) {
	for line := range strings.Lines(text) {
		hierarchy, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		unified := hierarchy == "0" && controllers == ""
		if ok && (version == cgroup.V2 && unified || version == cgroup.V1 && slices.Contains(strings.Split(controllers, ","), "memory")) {
			return path, true
		}
	}
	return "", false
}

// least returns the lowest value that a file has in the cgroup and in those that it is
// in, and where. The root has none, nor have those that a container does not see.
func least(root, path, name string) (low int64, at string, ok bool) {
	for {
		if n, found := bytesIn(filepath.Join(root, path, name)); found && (!ok || n < low) {
			low, at, ok = n, path, true
		}
		if path == "/" || path == "." {
			return low, at, ok
		}
		path = filepath.Dir(path)
	}
}

// unlimited is what cgroup v1 has for no limit, rounded to pages, and more than any
// machine has.
const unlimited = 1 << 60

// bytesIn returns the number in a cgroup's file; "max" is [math.MaxInt64].
func bytesIn(file string) (int64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n >= unlimited {
		return math.MaxInt64, strings.TrimSpace(string(text)) == "max" || n >= unlimited
	}
	return n, true
}
