package main

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// load is one signal, and how to press on it: quantities are bytes or tasks.
type load struct {
	name      string // in the figures' names
	condition corev1.NodeConditionType
	signal    string
	text      func(int64) string // a quantity as a threshold has it

	// highest is the highest limit, below what is available at present by more
	// than the kernel waits for before it reports that a figure is back.
	highest int64
	// spacing is the distance between two limits, beginning how far above one
	// the clocked steps begin, step their size, and beyond how far the pressure
	// goes on after a crossing, as a real one would: the kernel's counters, from
	// which BPF, /proc and statfs take their figures, lag by some hundred pages.
	spacing, beginning, step, beyond int64
	// hold is what keeps a limit crossed while others use and give back as well.
	hold int64

	ramp pressure.Ramp
}

const mi = 1 << 20

func mebibytes(n int64) string { return fmt.Sprintf("%dMi", n/mi) }

// limit returns the i-th limit, counted from the highest.
func (l *load) limit(i int) int64 { return l.highest - int64(i)*l.spacing }

// newLoads decides on all limits; most is how many each load has. A load's ramp
// is to be closed, even if there is an error.
func newLoads(fs *pressure.Filesystem, most int) (loads []*load, err error) {
	memory := &load{
		name: "memory", condition: corev1.NodeMemoryPressure, signal: "memory.available", text: mebibytes,
		spacing: 32 * mi, beginning: 24 * mi, step: 16 << 10, beyond: 2 * mi, hold: 256 * mi,
	}
	present, err := pressure.AvailableMemory()
	if err != nil {
		return nil, err
	}
	// The more, the less does it matter what else happens on the machine.
	margin := min(present/8, 2<<30)
	memory.highest = (present - margin) / mi * mi
	// What others give back in the meantime has to be held as well.
	if memory.ramp, err = pressure.MemoryRamp(2*margin + int64(most)*memory.spacing + memory.hold); err != nil {
		return nil, err
	}
	loads = append(loads, memory)

	tasks := &load{
		name: "pid", condition: corev1.NodePIDPressure, signal: "pid.available", text: func(n int64) string { return fmt.Sprint(n) },
		spacing: 60, beginning: 30, step: 1, beyond: 16, hold: 500,
	}
	if tasks.ramp, err = pressure.TaskRamp(); err != nil {
		return loads, err
	}
	loads = append(loads, tasks)
	if present, err = tasks.ramp.Available(); err != nil {
		return loads, err
	}
	tasks.highest = present - 1500

	disk := &load{
		name: "disk", condition: corev1.NodeDiskPressure, signal: "nodefs.available", text: mebibytes,
		spacing: 2 * mi, beginning: mi, step: 16 << 10, beyond: mi * 3 / 4, hold: mi,
	}
	if disk.ramp, err = pressure.DiskRamp(fs); err != nil {
		return loads, err
	}
	loads = append(loads, disk)
	disk.highest = 40 * mi
	return loads, nil
}

// filesystemSize leaves room above the highest limit and below the lowest.
const filesystemSize = 64 // MiB

const (
	// poise is the pause between the approach and the clocked steps: a process
	// that has just been busy is faster than one that has slept. A part of it is
	// random, so that nothing falls into step with anything.
	poise = 300 * time.Millisecond
)
