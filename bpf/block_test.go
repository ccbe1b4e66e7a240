//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestBlockErrors(t *testing.T) {
	s := open(t, BlockIO)
	before := s.Counters().BlockErrors
	failBlockIO(t)
	if s.Counters().BlockErrors == before {
		t.Error("no block error counted")
	}
}

// failBlockIO writes to a block device that is larger than what is behind it: a
// loop device over a sparse file on a filesystem that has no room for it.
func failBlockIO(t *testing.T) {
	t.Helper()
	needRoot(t)
	const chunk, size = 1 << 20, 8 << 20
	backing := sparseFile(t, 64<<10, size)
	device := loopDevice(t, backing)
	// O_DIRECT wants the memory aligned to the device's blocks.
	buf := make([]byte, chunk+4096)
	skip := -int(uintptr(unsafe.Pointer(&buf[0]))) & 4095
	// The write that no longer fits whole may pass as complete (Linux 6.12).
	for offset := int64(0); offset < size; offset += chunk {
		n, err := unix.Pwrite(device, buf[skip:skip+chunk], offset)
		t.Logf("%d bytes written at %d, error %v", n, offset, err)
		if err != nil {
			return
		}
	}
	t.Fatal("every write succeeded")
}

// sparseFile returns a file of the given size on a tmpfs that holds room bytes.
// The tmpfs is no longer mounted, and gone with the last use of the file.
func sparseFile(t testing.TB, room, size int64) *os.File {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("nodeprobe", dir, "tmpfs", 0, fmt.Sprintf("size=%d", room)); err != nil {
		lacking(t, "mount tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	f, err := os.Create(filepath.Join(dir, "backing"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// loopDevice returns a file descriptor of a loop device over backing. The kernel
// frees the device with its last file descriptor.
func loopDevice(t testing.TB, backing *os.File) int {
	t.Helper()
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		lacking(t, "no loop devices: %v", err)
	}
	defer unix.Close(control)
	for range 10 {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			lacking(t, "no free loop device: %v", err)
		}
		device, err := unix.Open(fmt.Sprintf("/dev/loop%d", n), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			lacking(t, "open loop device: %v", err)
		}
		config := unix.LoopConfig{
			Fd:   uint32(backing.Fd()),
			Size: 512,
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		}
		err = unix.IoctlLoopConfigure(device, &config)
		if err == nil {
			t.Cleanup(func() { unix.Close(device) })
			return device
		}
		unix.Close(device)
		if !errors.Is(err, unix.EBUSY) { // Someone else was faster.
			lacking(t, "configure loop device: %v", err)
		}
	}
	lacking(t, "no free loop device")
	return -1
}
