package pressure

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Resize makes the filesystem that many MiB large. For that it is unmounted, and
// mounted again: to do it in use takes a right that root need not have. It needs
// the programs e2fsck and resize2fs.
func (f *Filesystem) Resize(mebibytes int) error {
	if err := f.Unmount(false); err != nil {
		return err
	}
	if err := f.run("e2fsck", "-f", "-p", f.image()); err != nil {
		return err
	}
	if err := f.run("resize2fs", f.image(), strconv.Itoa(mebibytes)+"M"); err != nil {
		return err
	}
	return f.Mount()
}

// Reserve sets how many percent only root may fill, while the filesystem is in
// use. It needs the program tune2fs.
func (f *Filesystem) Reserve(percent int) error {
	device, err := f.device()
	if err != nil {
		return fmt.Errorf("reserve space: %w", err)
	}
	return f.run("tune2fs", "-m", strconv.Itoa(percent), "/dev/"+device)
}

// Unmount unmounts the filesystem, which stays what it is; lazily, if somebody
// uses it still.
func (f *Filesystem) Unmount(lazily bool) error {
	flags := 0
	if lazily {
		flags = unix.MNT_DETACH
	}
	err := unix.Unmount(f.Dir, flags)
	// Whoever watches the filesystem may have it open just now.
	for deadline := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		err = unix.Unmount(f.Dir, flags)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", f.Dir, err)
	}
	return nil
}

// Mount mounts the filesystem again.
func (f *Filesystem) Mount() error {
	return f.run("mount", "-o", "loop,nosuid,nodev", f.image(), f.Dir)
}

func (f *Filesystem) image() string { return filepath.Join(filepath.Dir(f.Dir), "image") }

func (f *Filesystem) run(name string, args ...string) error {
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("run %s %q: %w: %s", name, args, err, output)
	}
	return nil
}
