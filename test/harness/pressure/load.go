package pressure

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
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
func Loads(t testing.TB, disk *Filesystem) []*Load {
	t.Helper()
	const mebibyte = 1 << 20
	memory := &Load{Condition: corev1.NodeMemoryPressure, Signal: "memory.available", Available: AvailableMemory}
	present := must.Get(memory.Available())(t)
	margin := min(present/8, 3<<29)
	memory.Limit = (present - margin) / mebibyte * mebibyte
	memory.Left = memory.Limit - margin
	memory.Threshold = fmt.Sprintf("%dMi", memory.Limit/mebibyte)
	memory.hold(t, must.Get(MemoryRamp(3*margin))(t)) // others may free some

	tasks := &Load{Condition: corev1.NodePIDPressure, Signal: "pid.available", Available: AvailableTasks}
	margin = 1500
	tasks.Limit = must.Get(tasks.Available())(t) - margin
	tasks.Left = tasks.Limit - margin
	tasks.Threshold = fmt.Sprint(tasks.Limit)
	tasks.hold(t, must.Get(TaskRamp())(t))

	capacity := must.Get(disk.Capacity())(t)
	left := capacity / 20
	return []*Load{memory, tasks, {
		Condition: corev1.NodeDiskPressure, Signal: "nodefs.available", Threshold: "10%", Limit: capacity / 10,
		Available: disk.Available, Left: left,
		Press: func() error { return disk.Fill(left) }, Release: disk.Empty,
	}}
}

// hold makes the load's pressure that of a ramp.
func (l *Load) hold(t testing.TB, r Ramp) {
	t.Cleanup(func() { must.Note(t, r.Close()) })
	l.Press = func() error {
		now, err := r.Available()
		if err != nil {
			return err
		}
		return r.Take(max(0, now-l.Left))
	}
	l.Release = func() error { return r.Give(math.MaxInt64) }
}

// Thresholds are the limits of all loads, and some that nothing comes near to.
func Thresholds(loads []*Load) map[string]string {
	all := map[string]string{"nodefs.inodesFree": "1%", "imagefs.available": "1%", "imagefs.inodesFree": "1%"}
	for _, l := range loads {
		all[l.Signal] = l.Threshold
	}
	return all
}

// MemoryCgroup makes an empty cgroup of memory, for other processes to join. With a
// limit of 0 it has none.
func MemoryCgroup(limit int64) (*Pressure, error) {
	if limit == 0 {
		limit = unlimited
	}
	return inCgroup("memory", limit, nil)
}

// Containers starts n processes that sleep, each in a memory cgroup of its own, as
// those of a node's containers are. It needs root and the program cat.
func Containers(n int) (*Pressure, error) {
	roles := make([]role, n)
	for i := range roles {
		roles[i] = role{Cgroup: "container-" + strconv.Itoa(i), Sleep: true}
	}
	return inCgroup("memory", unlimited, roles)
}

// undo is one step back. Exactly one field is set.
type undo struct {
	Unmount      string `json:",omitempty"`
	RemoveCgroup string `json:",omitempty"`
	RemoveAll    string `json:",omitempty"`
}

// undoAll takes the steps in order. A step with nothing to undo is fine, since
// the keeper starts before there is anything.
func undoAll(steps []undo) error {
	var errs []error
	for _, s := range steps {
		if err := s.do(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s undo) do() error {
	switch {
	case s.Unmount != "":
		return unmount(s.Unmount)
	case s.RemoveCgroup != "":
		return removeCgroup(s.RemoveCgroup)
	default:
		return os.RemoveAll(s.RemoveAll)
	}
}

// unmount unmounts a filesystem; its loop device goes with it (autoclear). If
// somebody still has a file open there it is only detached, so that the last
// close ends it.
func unmount(dir string) error {
	_ = (&Filesystem{Dir: dir}).Thaw() // what is frozen outlives its last mount
	err := unix.Unmount(dir, 0)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(dir, unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: not a mount point.
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// removeCgroup waits for the tasks of a cgroup to be gone, which takes the
// kernel a moment after their process has been waited for, and removes it.
func removeCgroup(dir string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := os.Remove(dir)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
