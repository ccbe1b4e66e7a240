package main

import (
	"fmt"
	"os"
	"strings"
)

// cpuTime is how the machine has spent its CPUs' time since it was booted.
type cpuTime struct{ all, idle int64 }

func readCPUTime() (cpuTime, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTime{}, fmt.Errorf("read CPU time: %w", err)
	}
	return parseCPUTime(string(data))
}

// parseCPUTime reads the first line of /proc/stat:
//
//	cpu  user nice system idle iowait irq softirq steal guest guest_nice
func parseCPUTime(stat string) (t cpuTime, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	var f [8]int64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &f[0], &f[1], &f[2], &f[3], &f[4], &f[5], &f[6], &f[7]); err != nil {
		return t, fmt.Errorf("read CPU time: %w", err)
	}
	for _, n := range f {
		t.all += n
	}
	t.idle = f[3] + f[4]
	return t, nil
}

// idleSince is the share of the time since then in which the CPUs had nothing to
// do. A figure that was measured beside others' work says little.
func (t cpuTime) idleSince(then cpuTime) float64 {
	return float64(t.idle-then.idle) / float64(max(t.all-then.all, 1))
}
