package main

import (
	"fmt"

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

	memory := &scene{condition: corev1.NodeMemoryPressure, signal: "memory.available", unit: bytesUnit, available: pressure.AvailableMemory}
	present, err := memory.available()
	if err != nil {
		return nil, err
	}
	margin := max(64<<20, min(present/32, 1<<30))
	memory.limit = (present - margin) >> 20 << 20
	memory.threshold = fmt.Sprintf("%dMi", memory.limit>>20)
	memory.what = fmt.Sprintf("hold %s of memory", bytesUnit(2*margin))
	memory.hold(func() (*pressure.Pressure, error) { return pressure.Memory(int(2 * margin >> 20)) })

	pids := &scene{condition: corev1.NodePIDPressure, signal: "pid.available", unit: countUnit, available: pressure.AvailablePIDs}
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
