package pressure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Containers has n processes sleep, each in a memory cgroup of its own, as those of
// a node's containers are. It needs root and the program cat.
func Containers(n int) (_ *Pressure, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("make containers: needs root")
	}
	top, err := planCgroup("memory")
	if err != nil {
		return nil, err
	}
	p := &Pressure{Cgroup: top.dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Release())
		}
	}()
	var keep []undo
	dirs := make([]string, n)
	for i := range dirs {
		dirs[i] = filepath.Join(top.dir, "container-"+strconv.Itoa(i))
		keep = append(keep, undo{RemoveCgroup: dirs[i]})
	}
	// Before there is anything to undo, so that there is no gap.
	if p.keeper, err = startChild(role{Keep: append(keep, undo{RemoveCgroup: top.dir})}); err != nil {
		return nil, err
	}
	if err := os.Mkdir(top.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		c, err := startChild(role{Cgroup: dir, Sleep: true})
		if err != nil {
			return nil, err
		}
		p.holders = append(p.holders, c)
	}
	return p, nil
}
