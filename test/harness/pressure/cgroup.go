package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// cgroup is one that does not exist yet.
type cgroup struct {
	dir string
	// limitFile is the name of the file that takes the limit.
	limitFile string
	// enableFile is the parent's file that has to name the controller before its
	// children have it (v2 only). Empty if it does already.
	enableFile string
	controller string
}

// cgroups numbers the cgroups of this process.
var cgroups atomic.Int64

// planCgroup decides where a cgroup of the controller ("memory", "pids") will
// be: below the root of the v1 hierarchy that has it, or else of cgroup v2.
func planCgroup(controller string) (*cgroup, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	root, v2, err := cgroupRoot(mountinfo, controller, func(root string) bool { return hasWord(root+"/cgroup.controllers", controller) })
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("nodeprobe-test-%d-%d", os.Getpid(), cgroups.Add(1))
	g := &cgroup{dir: filepath.Join(root, name), limitFile: limitFile(controller, v2), controller: controller}
	if file := filepath.Join(root, "cgroup.subtree_control"); v2 && !hasWord(file, controller) {
		g.enableFile = file
	}
	return g, nil
}

// cgroupRoot returns the mount point of the hierarchy that has the controller.
func cgroupRoot(mountinfo []byte, controller string, inV2 func(root string) bool) (root string, v2 bool, err error) {
	var unified string
	for line := range bytes.Lines(mountinfo) {
		// 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
		mount, fstype, found := strings.Cut(string(line), " - ")
		fields, tail := strings.Fields(mount), strings.Fields(fstype)
		if !found || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		switch tail[0] {
		case "cgroup":
			if slices.Contains(strings.Split(tail[2], ","), controller) {
				return fields[4], false, nil
			}
		case "cgroup2":
			unified = fields[4]
		}
	}
	if unified != "" && inV2(unified) {
		return unified, true, nil
	}
	return "", false, fmt.Errorf("find cgroups: no hierarchy has the %s controller", controller)
}

func limitFile(controller string, v2 bool) string {
	if controller == "memory" && !v2 {
		return "memory.limit_in_bytes"
	}
	return controller + ".max" // memory.max; pids.max in both versions.
}

// create makes the cgroup and limits it. A controller that it had to enable
// stays enabled: by the time of the release somebody else may rely on it.
func (g *cgroup) create(limit int64) error {
	if g.enableFile != "" {
		if err := os.WriteFile(g.enableFile, []byte("+"+g.controller), 0); err != nil {
			return fmt.Errorf("enable cgroup controller: %w", err)
		}
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, g.limitFile), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		return fmt.Errorf("limit cgroup: %w", err)
	}
	return nil
}

// joinCgroup moves this process there.
func joinCgroup(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// inCgroup starts the holders in a new limited cgroup, with a keeper over it.
func inCgroup(controller string, limit int64, roles []role) (_ *Pressure, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("make pressure: needs root")
	}
	g, err := planCgroup(controller)
	if err != nil {
		return nil, err
	}
	p := &Pressure{Cgroup: g.dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Release())
		}
	}()
	// Before there is anything to undo, so that there is no gap.
	if p.keeper, err = startChild(role{Keep: []undo{{RemoveCgroup: g.dir}}}); err != nil {
		return nil, err
	}
	if err := g.create(limit); err != nil {
		return nil, err
	}
	for _, r := range roles {
		r.Cgroup = g.dir
		c, err := startChild(r)
		if err != nil {
			return nil, err
		}
		p.holders = append(p.holders, c)
	}
	return p, nil
}

func hasWord(file, word string) bool {
	data, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(data)), word)
}
