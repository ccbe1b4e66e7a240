package pressure

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Load is a signal with a limit, and what crosses it for real.
type Load struct {
	Condition corev1.NodeConditionType
	// Signal and Threshold are a line of evictionHard. Limit is what the
	// threshold comes to.
	Signal, Threshold string
	Limit             int64
	// Available reads the signal from the kernel, independently of nodeprobe.
	Available func() (int64, error)
	// Press makes the pressure, of which only Left remains available, and Release
	// ends it. To release what was not pressed is fine.
	Press, Release func() error
	Left           int64
}

// Loads returns one of each kind: memory, tasks, and the space of a filesystem that
// is empty. The first two limits lie so far below what this machine has available
// now, and the pressure as far below them, that what others do meanwhile does not
// matter.
func Loads(disk *Filesystem) ([]*Load, error) {
	const mebibyte = 1 << 20
	memory := &Load{Condition: corev1.NodeMemoryPressure, Signal: "memory.available", Available: AvailableMemory}
	present, err := memory.Available()
	if err != nil {
		return nil, err
	}
	margin := min(present/8, 3<<29)
	memory.Limit = (present - margin) / mebibyte * mebibyte
	memory.Left = memory.Limit - margin
	memory.Threshold = fmt.Sprintf("%dMi", memory.Limit/mebibyte)
	memory.hold(func(n int64) (*Pressure, error) { return Memory(int(n / mebibyte)) })

	tasks := &Load{Condition: corev1.NodePIDPressure, Signal: "pid.available", Available: AvailableTasks}
	if present, err = tasks.Available(); err != nil {
		return nil, err
	}
	margin = 1500
	tasks.Limit = present - margin
	tasks.Left = tasks.Limit - margin
	tasks.Threshold = fmt.Sprint(tasks.Limit)
	tasks.hold(func(n int64) (*Pressure, error) { return Tasks(int(n)) })

	capacity, err := disk.Capacity()
	if err != nil {
		return nil, err
	}
	left := capacity / 20
	return []*Load{memory, tasks, {
		Condition: corev1.NodeDiskPressure, Signal: "nodefs.available", Threshold: "10%", Limit: capacity / 10,
		Available: disk.Available, Left: left,
		Press: func() error { return disk.Fill(left) }, Release: disk.Empty,
	}}, nil
}

// hold makes the load's pressure one that lasts as long as it is held.
func (l *Load) hold(start func(n int64) (*Pressure, error)) {
	var held *Pressure
	l.Press = func() error {
		now, err := l.Available()
		if err == nil {
			held, err = start(now - l.Left)
		}
		return err
	}
	l.Release = func() error {
		if held == nil {
			return nil
		}
		return held.Release()
	}
}

// Thresholds are the limits of all loads, and some that nothing comes near to.
func Thresholds(loads []*Load) map[string]string {
	all := map[string]string{"nodefs.inodesFree": "1%", "imagefs.available": "1%", "imagefs.inodesFree": "1%"}
	for _, l := range loads {
		all[l.Signal] = l.Threshold
	}
	return all
}
