package pressure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Break makes the kernel find an error in the filesystem, after which it takes no
// writes. No mount table changes by that, and nobody is notified.
func (f *Filesystem) Break() error {
	device, err := f.device()
	if err == nil {
		err = f.remount("errors=remount-ro")
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error"), []byte("test"), 0)
}

// device returns the path of the block device.
func (f *Filesystem) device() (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(table)) {
		// A btrfs has a device number of its own.
		if mount, fs, _ := strings.Cut(line, " - "); strings.Contains(mount, " "+f.Dir+" ") && len(strings.Fields(fs)) > 1 {
			return strings.Fields(fs)[1], nil
		}
	}
	return "", fmt.Errorf("%s is not mounted", f.Dir)
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

// Shutdown makes an ext4 or xfs take no more requests, as it does by itself after some
// errors.
func (f *Filesystem) Shutdown() error { return f.control(0x8004587d, 2) } // EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN

// Freeze makes writers wait, as for a snapshot of the device, until Thaw.
func (f *Filesystem) Freeze() error { return f.control(0xc0045877, 0) } // FIFREEZE

// Thaw ends Freeze.
func (f *Filesystem) Thaw() error { return f.control(0xc0045878, 0) } // FITHAW

// control makes an ioctl, and never of the filesystem below.
func (f *Filesystem) control(request uintptr, arg uint32) error {
	dir, err := os.Open(f.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	var is, below unix.Stat_t
	if err := errors.Join(unix.Fstat(int(dir.Fd()), &is), unix.Stat(filepath.Dir(f.Dir), &below)); err != nil {
		return err
	}
	if is.Dev == below.Dev {
		return fmt.Errorf("%s is not mounted", f.Dir)
	}
	var in [4]byte
	binary.NativeEndian.PutUint32(in[:], arg)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), request, uintptr(unsafe.Pointer(&in))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

// Lose makes nearly all of the device fail, as if it had been pulled, and writes for the
// filesystem to notice. Only Format makes another one of it.
func (f *Filesystem) Lose() error {
	file := filepath.Join(f.Dir, "lost")
	if err := inOrder(
		func() error { return os.WriteFile(file, nil, 0o600) },
		func() error { return f.run("sync", "-f", f.Dir) },
		func() error { return os.Truncate(f.image(), 64<<10) },
		f.followImage,
	); err != nil {
		return err
	}
	// Both may well fail.
	_ = os.WriteFile(file, make([]byte, 1<<20), 0o600)
	_ = f.run("sync", "-f", f.Dir)
	return nil
}

// followImage makes the device as large as the file behind it.
func (f *Filesystem) followImage() error {
	device, err := f.device()
	if err != nil {
		return err
	}
	return f.run("losetup", "-c", device)
}
