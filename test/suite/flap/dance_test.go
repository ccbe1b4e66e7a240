package flap

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	memory := &dancer{
		signal: "memory.available", unit: "bytes", condition: corev1.NodeMemoryPressure,
		available: pressure.AvailableMemory, reach: 256 << 20, move: (&memoryMaker{}).move,
	}
	present := must.Get(memory.available())(t)
	if present < 6<<30 {
		t.Skipf("only %d MiB of memory are available", present>>20)
	}
	memory.limit = present - 3<<29

	pids := &dancer{
		signal: "pid.available", unit: "tasks", condition: corev1.NodePIDPressure,
		available: pressure.AvailableTasks, reach: 200, move: (&threadMaker{}).move,
	}
	present = must.Get(pids.available())(t)
	pids.limit = present - 1500

	// Two filesystems, so that their dances do not wait for each other.
	nodefs, imagefs := pressure.Disk(t, 256), pressure.Disk(t, 256)
	dancers := []*dancer{memory, {
		signal: "nodefs.available", unit: "bytes", dir: nodefs.Dir, condition: corev1.NodeDiskPressure, limit: 64 << 20, reach: 8 << 20,
		available: nodefs.Available, move: nodefs.Fill,
	}, {
		signal: "imagefs.inodesFree", unit: "inodes", dir: imagefs.Dir, condition: corev1.NodeDiskPressure, limit: 20_000, reach: 300,
		available: imagefs.InodesFree, move: imagefs.TakeInodes,
	}, pids}
	t.Cleanup(func() {
		const everything = 1 << 60
		must.Note(t, errors.Join(memory.move(everything), pids.move(everything)))
	})
	return dancers
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

// memoryMaker holds memory of this process.
type memoryMaker struct{ held [][]byte }

const memoryChunk = 8 << 20

func (m *memoryMaker) move(available int64) error {
	now, err := pressure.AvailableMemory()
	if err != nil {
		return err
	}
	for ; now >= available+memoryChunk; now -= memoryChunk {
		b, err := unix.Mmap(-1, 0, memoryChunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
		if err != nil {
			return fmt.Errorf("hold memory: %w", err)
		}
		m.held = append(m.held, b)
	}
	for ; now <= available-memoryChunk && len(m.held) > 0; now += memoryChunk {
		last := len(m.held) - 1
		if err := unix.Munmap(m.held[last]); err != nil {
			return fmt.Errorf("give memory back: %w", err)
		}
		m.held = m.held[:last]
	}
	return nil
}

// threadMaker holds threads of this process.
type threadMaker struct{ end []chan struct{} }

func (m *threadMaker) move(available int64) error {
	now, err := pressure.AvailableTasks()
	if err != nil {
		return err
	}
	var changed sync.WaitGroup
	for ; now > available; now-- {
		end := make(chan struct{})
		changed.Add(1)
		go func() {
			runtime.LockOSThread() // and never unlocks it, so that the thread ends
			changed.Done()
			<-end
		}()
		m.end = append(m.end, end)
	}
	if give := min(int(available-now), len(m.end)); give > 0 {
		last := len(m.end) - give
		for _, end := range m.end[last:] {
			close(end)
		}
		m.end = m.end[:last]
	} else {
		available = now
	}
	changed.Wait()
	// Threads take a moment to end, and are not to be counted by the next move.
	for deadline := time.Now().Add(time.Second); now < available && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if now, err = pressure.AvailableTasks(); err != nil {
			return err
		}
	}
	return nil
}
