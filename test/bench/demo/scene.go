package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// scene is one condition and how to bring it about.
type scene struct {
	*pressure.Load
	unit unit // how to print amounts of it
}

// newScenes decides on all thresholds.
func newScenes(fs *pressure.Filesystem) ([]*scene, error) {
	loads, err := pressure.Loads(fs)
	if err != nil {
		return nil, err
	}
	units := map[corev1.NodeConditionType]unit{
		corev1.NodeMemoryPressure: bytesUnit, corev1.NodeDiskPressure: bytesUnit, corev1.NodePIDPressure: countUnit,
	}
	var scenes []*scene
	for _, l := range loads {
		scenes = append(scenes, &scene{l, units[l.Condition]})
	}
	return scenes, nil
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
