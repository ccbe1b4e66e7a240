package pressure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

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
