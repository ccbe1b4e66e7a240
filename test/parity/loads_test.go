package parity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/pressure"
)

// load is a signal with a limit, and what crosses it for real.
type load struct {
	condition     corev1.NodeConditionType
	signal, limit string
	press         func() error
	release       func() error
}

// newLoads chooses limits that this machine is far away from now, so that what others
// do meanwhile does not matter.
func newLoads(disk *pressure.Filesystem) ([]*load, error) {
	memory, err := pressure.AvailableMemory()
	if err != nil {
		return nil, err
	}
	tasks, err := pressure.AvailableTasks()
	if err != nil {
		return nil, err
	}
	someMemory, someTasks := min(memory/8, 2<<30), int64(1500)
	memoryLimit, tasksLimit := (memory-someMemory)>>20<<20, tasks-someTasks
	return []*load{
		held(corev1.NodeMemoryPressure, "memory.available", fmt.Sprintf("%dMi", memoryLimit>>20), func() (*pressure.Pressure, error) {
			now, err := pressure.AvailableMemory()
			if err != nil {
				return nil, err
			}
			return pressure.Memory(int((now - memoryLimit + someMemory) >> 20))
		}),
		held(corev1.NodePIDPressure, "pid.available", fmt.Sprint(tasksLimit), func() (*pressure.Pressure, error) {
			now, err := pressure.AvailableTasks()
			if err != nil {
				return nil, err
			}
			return pressure.Tasks(int(now - tasksLimit + someTasks))
		}),
		{
			condition: corev1.NodeDiskPressure, signal: "nodefs.available", limit: "10%",
			press: func() error { return disk.Fill(100 << 20) }, release: disk.Empty,
		},
	}, nil
}

// held is a load of something that is held as far beyond the limit as the machine
// was above it.
func held(condition corev1.NodeConditionType, signal, limit string, hold func() (*pressure.Pressure, error)) *load {
	var p *pressure.Pressure
	return &load{
		condition: condition, signal: signal, limit: limit,
		press:   func() (err error) { p, err = hold(); return err },
		release: func() error { return p.Release() },
	}
}

// thresholds are the limits of all loads, and some that nothing comes near to.
func thresholds(loads []*load) map[string]string {
	all := map[string]string{"nodefs.inodesFree": "1%", "imagefs.available": "1%", "imagefs.inodesFree": "1%"}
	for _, l := range loads {
		all[l.signal] = l.limit
	}
	return all
}
