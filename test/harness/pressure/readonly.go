package pressure

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Break has the kernel find an error in the filesystem, and take no more writes
// to it. No mount table changes by that, and nobody is notified.
func (f *Filesystem) Break() error {
	if err := f.remount("errors=remount-ro"); err != nil {
		return err
	}
	device, err := f.device()
	if err != nil {
		return fmt.Errorf("break filesystem: %w", err)
	}
	trigger := filepath.Join("/sys/fs/ext4", device, "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("test"), 0); err != nil {
		return fmt.Errorf("break filesystem: %w", err)
	}
	return nil
}

// device returns the name of the block device.
func (f *Filesystem) device() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(f.Dir, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", f.Dir, err)
	}
	// /sys/dev/block/7:0 leads to a directory that is named after the device.
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	return filepath.Base(link), err
}

// SetReadOnly remounts the filesystem so that it takes no writes, or takes them
// again.
func (f *Filesystem) SetReadOnly(readOnly bool) error {
	if readOnly {
		return f.remount("ro")
	}
	return f.remount("rw")
}

func (f *Filesystem) remount(option string) error {
	return f.run("mount", "-o", "remount,"+option, f.Dir)
}
