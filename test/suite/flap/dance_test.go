package flap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// dancer is a value of this machine that can be moved at will, and its limit.
type dancer struct {
	signal    string
	unit      string
	dir       string // of the filesystem, if it is of one
	condition corev1.NodeConditionType
	limit     int64
	// band is how far above the limit the kernel reports that the value is back.
	band int64
	// reach is how far beyond either edge a large dance goes; others move the
	// value by less than that meanwhile.
	reach     int64
	available func() (int64, error)
	move      func(available int64) error
}

// Where a dance turns around.
func (d *dancer) under() int64  { return d.limit - d.reach }
func (d *dancer) over() int64   { return d.limit + d.band + d.reach }
func (d *dancer) within() int64 { return d.limit + d.band/2 }

// newDancers makes a dancer for each limit that the kernel watches. The limits
// of memory and PIDs lie so far below what is available at present that both
// sides can be reached although others use some of it.
func newDancers(t *testing.T) []*dancer {
	t.Helper()
	present := must.Get(pressure.AvailableMemory())(t)
	if present < 6<<30 {
		t.Skipf("only %d MiB of memory are available", present>>20)
	}
	memory := &dancer{
		signal: "memory.available", unit: "bytes", condition: corev1.NodeMemoryPressure, limit: present - 3<<29, reach: 256 << 20,
		available: pressure.AvailableMemory, move: mover(t, must.Get(pressure.MemoryRamp(3<<30))(t), 8<<20),
	}
	pids := &dancer{
		signal: "pid.available", unit: "tasks", condition: corev1.NodePIDPressure, limit: must.Get(pressure.AvailableTasks())(t) - 1500, reach: 200,
		available: pressure.AvailableTasks, move: mover(t, must.Get(pressure.TaskRamp())(t), 1),
	}
	// Two filesystems, so that their dances do not wait for each other.
	nodefs, imagefs := pressure.Disk(t, 256), pressure.Disk(t, 256)
	return []*dancer{memory, {
		signal: "nodefs.available", unit: "bytes", dir: nodefs.Dir, condition: corev1.NodeDiskPressure, limit: 64 << 20, reach: 8 << 20,
		available: nodefs.Available, move: nodefs.Fill,
	}, {
		signal: "imagefs.inodesFree", unit: "inodes", dir: imagefs.Dir, condition: corev1.NodeDiskPressure, limit: 20_000, reach: 300,
		available: imagefs.InodesFree, move: imagefs.TakeInodes,
	}, pids}
}

// mover returns what moves the value of a ramp, in steps, until the test ends.
func mover(t *testing.T, r pressure.Ramp, step int64) func(available int64) error {
	t.Cleanup(func() { must.Note(t, r.Close()) })
	return func(available int64) error {
		now, err := r.Available()
		if err != nil {
			return err
		}
		if over := (now - available) / step * step; over > 0 {
			return r.Take(over)
		} else if err := r.Give(-over); err != nil {
			return err
		}
		// Threads take a moment to end, and are not to be counted by the next move.
		for deadline := time.Now().Add(time.Second); err == nil && now < available-step && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			now, err = r.Available()
		}
		return err
	}
}

func (d *dancer) dance(ctx context.Context, low, high int64) (swings int, err error) {
	for ; ctx.Err() == nil; swings++ {
		if err := errors.Join(d.move(low), d.move(high)); err != nil {
			return swings, fmt.Errorf("%s: %w", d.signal, err)
		}
	}
	return swings, nil
}

// all calls do for each dancer at the same time.
func all(dancers []*dancer, do func(int, *dancer) error) error {
	errs := make([]error, len(dancers))
	var group sync.WaitGroup
	for i, d := range dancers {
		group.Go(func() { errs[i] = do(i, d) })
	}
	group.Wait()
	return errors.Join(errs...)
}
