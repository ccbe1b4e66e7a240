package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// AvailableMemory returns what the kubelet calls memory.available: all that the root memory
// cgroup does not use, or uses for file cache that has not been touched lately.
func AvailableMemory() (int64, error) {
	total, err := field("/proc/meminfo", "MemTotal:")
	if err != nil {
		return 0, err
	}
	const v1, v2 = "/sys/fs/cgroup/memory/memory", "/sys/fs/cgroup/memory"
	usage, err := field(v1+".usage_in_bytes", "")
	if err == nil {
		inactive, err := field(v1+".stat", "total_inactive_file")
		return total<<10 - (usage - inactive), err
	}
	anon, err := field(v2+".stat", "anon")
	if err != nil {
		return 0, err
	}
	file, fileErr := field(v2+".stat", "file")
	inactive, err := field(v2+".stat", "inactive_file")
	return total<<10 - (anon + file - inactive), errors.Join(fileErr, err)
}

// AvailablePIDs returns what the kubelet calls pid.available.
func AvailablePIDs() (int64, error) {
	limit, used, err := systemTasks()
	return int64(limit - used), err
}

// field returns the number that follows a key at the beginning of a line, or
// the first number of the file.
func field(file, key string) (n int64, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if key != "" && (len(f) < 2 || string(f[0]) != key) {
			continue
		}
		if key != "" {
			f = f[1:]
		}
		_, err := fmt.Sscan(string(f[0]), &n)
		return n, err
	}
	return 0, fmt.Errorf("read %s: no %s", file, key)
}
