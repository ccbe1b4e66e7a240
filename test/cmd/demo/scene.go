package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/pressure"
)

// scene is one condition and how to bring it about.
type scene struct {
	condition corev1.NodeConditionType
	// signal and threshold are a line of evictionHard; limit is what the
	// threshold comes to, and unit how to print it.
	signal, threshold string
	limit             int64
	unit              unit
	// available reads the signal from the kernel, independently of nodeprobe.
	available func() (int64, error)
	// press makes the pressure, what of it is for people to read, and release
	// ends it.
	press   func() error
	what    string
	release func() error
}

// newScenes decides on all thresholds. Those for memory and process IDs lie
// just below what is available at present, by a margin that leaves the rest of
// the machine room to come and go; the pressure is twice that.
func newScenes(fs *pressure.Filesystem) ([]*scene, error) {
	const diskLimit, left = 16 << 20, 4 << 20
	disk := &scene{
		condition: corev1.NodeDiskPressure, signal: "nodefs.available", threshold: "16Mi", limit: diskLimit, unit: bytesUnit,
		available: fs.Available, press: func() error { return fs.Fill(left) }, release: fs.Empty,
		what: fmt.Sprintf("fill it up to the last %s", bytesUnit(left)),
	}

	memory := &scene{condition: corev1.NodeMemoryPressure, signal: "memory.available", unit: bytesUnit, available: availableMemory}
	present, err := memory.available()
	if err != nil {
		return nil, err
	}
	margin := max(64<<20, min(present/32, 1<<30))
	memory.limit = (present - margin) >> 20 << 20
	memory.threshold = fmt.Sprintf("%dMi", memory.limit>>20)
	memory.what = fmt.Sprintf("hold %s of memory", bytesUnit(2*margin))
	memory.hold(func() (*pressure.Pressure, error) { return pressure.Memory(int(2 * margin >> 20)) })

	pids := &scene{condition: corev1.NodePIDPressure, signal: "pid.available", unit: countUnit, available: availablePIDs}
	if present, err = pids.available(); err != nil {
		return nil, err
	}
	const tasks = 3000
	pids.limit = present - tasks/2
	pids.threshold = fmt.Sprint(pids.limit)
	pids.what = fmt.Sprintf("start %d tasks", tasks)
	pids.hold(func() (*pressure.Pressure, error) { return pressure.Tasks(tasks) })

	return []*scene{memory, disk, pids}, nil
}

// hold makes the scene's pressure one that exists as long as it is held.
func (s *scene) hold(start func() (*pressure.Pressure, error)) {
	var held *pressure.Pressure
	s.press = func() (err error) {
		held, err = start()
		return err
	}
	s.release = func() error {
		if held == nil {
			return nil
		}
		return held.Release()
	}
}

// unit formats a quantity.
type unit func(int64) string

func bytesUnit(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func countUnit(n int64) string { return fmt.Sprintf("%d PIDs", n) }

// availableMemory is the kubelet's memory.available: all that the root memory
// cgroup does not use, or uses for file cache that has not been touched lately.
func availableMemory() (int64, error) {
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

// availablePIDs is the kubelet's pid.available.
func availablePIDs() (int64, error) {
	limit, err := field("/proc/sys/kernel/pid_max", "")
	if err != nil {
		return 0, err
	}
	threads, err := field("/proc/sys/kernel/threads-max", "")
	if err != nil {
		return 0, err
	}
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	// 0.20 0.18 0.12 1/80 11206
	_, rest, _ := bytes.Cut(data, []byte("/"))
	var tasks int64
	if _, err := fmt.Sscan(string(rest), &tasks); err != nil {
		return 0, fmt.Errorf("read /proc/loadavg: %w", err)
	}
	return min(limit, threads) - tasks, nil
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
