package footprint

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what a process has in memory at a moment, in bytes.
type Memory struct {
	// RSS is what is resident: Anon, which it allocated, and File, which the kernel
	// could read again from files unless it is Locked.
	RSS, Anon, File, Locked int64
	// PSS is RSS with its share only of what other processes map too.
	PSS int64
	// Charged is what its cgroup is charged with: kernel memory and page cache too, of
	// which WorkingSet leaves out what was used once. Both are -1 without a cgroup.
	Charged, WorkingSet int64
}

// ReadMemory looks at a process and its cgroup.
func ReadMemory(s Subject) (Memory, error) {
	m := Memory{Charged: -1, WorkingSet: -1}
	err := scanFigures(fmt.Sprintf("/proc/%d/smaps_rollup", s.PID), map[string]*int64{
		"Rss": &m.RSS, "Pss": &m.PSS, "Anonymous": &m.Anon, "Locked": &m.Locked,
	})
	if err != nil {
		return m, err
	}
	if m.File = m.RSS - m.Anon; s.Cgroup == "" {
		return m, nil
	}
	// cgroup v1, or else v2.
	file, inactive := filepath.Join(s.Cgroup, "memory.usage_in_bytes"), "total_inactive_file"
	if _, err := os.Stat(file); err != nil {
		file, inactive = filepath.Join(s.Cgroup, "memory.current"), "inactive_file"
	}
	charged, err := os.ReadFile(file)
	if err != nil {
		return m, fmt.Errorf("read charge: %w", err)
	}
	if m.Charged, err = strconv.ParseInt(strings.TrimSpace(string(charged)), 10, 64); err != nil {
		return m, fmt.Errorf("parse %s: %w", file, err)
	}
	if err := scanFigures(filepath.Join(s.Cgroup, "memory.stat"), map[string]*int64{inactive: &m.WorkingSet}); err != nil {
		return m, err
	}
	m.WorkingSet = max(0, m.Charged-m.WorkingSet)
	return m, nil
}
