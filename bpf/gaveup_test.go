//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestReadOnlyIsAnEdge(t *testing.T) {
	s := open(t, Pressure)
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			d := newDiskOf(t, kind)
			d.watchBytes(s)
			d.mount(unix.MS_REMOUNT|unix.MS_RDONLY, "")
			// Each of the two watches reports it.
			before := uint64(levels(s).Watches[0].ReadOnly) &^ 1
			wantEvent(t, s, Event{Kind: ReadOnly, Watch: 0, Seq: before + 1, On: true})
			wantEvent(t, s, Event{Kind: ReadOnly, Watch: 1, Seq: before + 1, On: true})
			if l := levels(s); !l.Watches[0].ReadOnly.On() || l.Watches[0].Stale.On() || l.Watches[0].Pressure.On() {
				t.Errorf("%+v", l.Watches[0])
			}
			d.mount(unix.MS_REMOUNT, "")
			wantEvent(t, s, Event{Kind: ReadOnly, Watch: 0, Seq: before + 2})
			wantEvent(t, s, Event{Kind: ReadOnly, Watch: 1, Seq: before + 2})
			watch(t, s)
		})
	}
}

// watchBytes is watch for a filesystem of which inodes cannot be watched.
func (d *disk) watchBytes(s *Sensor) {
	d.t.Helper()
	fd := d.open(unix.O_PATH)
	defer unix.Close(fd)
	w := Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never}
	watch(d.t, s, w, w)
}

// control makes an ioctl of the root directory, and never of what is below.
func (d *disk) control(request uintptr, arg []byte) error {
	fd := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
	defer unix.Close(fd)
	var is, below unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &is), unix.Stat(filepath.Dir(d.dir), &below)); err != nil || is.Dev == below.Dev {
		d.t.Fatalf("%s is not mounted: %v", d.dir, err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg)))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

// resizeDevice makes what is behind the device, and the device, that large.
func (d *disk) resizeDevice(size int64) error {
	const setCapacity = 0x4c07 // LOOP_SET_CAPACITY
	return errors.Join(d.backing.Truncate(size), unix.IoctlSetInt(d.loop, setCapacity, 0))
}

// lose makes nearly all of the device fail, as if it had been pulled: what is behind it
// shrinks. Then it writes, with errors of all kinds, for the filesystem to notice.
func (d *disk) lose() error {
	fd := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
	defer unix.Close(fd)
	names := d.touch(10)
	if err := errors.Join(unix.Syncfs(fd), d.resizeDevice(64<<10)); err != nil {
		return err
	}
	for _, name := range names {
		_ = os.WriteFile(filepath.Join(d.dir, name), make([]byte, 64<<10), 0o600)
		_ = unix.Syncfs(fd)
	}
	return nil
}

// A filesystem that takes no more writes is read-only, whatever its mount says. The timer
// needs no more than 0.8 s to notice, wherever the limit is.
func TestGaveUp(t *testing.T) {
	s := open(t, Pressure)
	shutdown := func(d *disk) error { return d.control(0x8004587d, []byte{2, 0, 0, 0}) } // EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
	trigger := func(d *disk) error {
		trigger := filepath.Join("/sys/fs/ext4", filepath.Base(d.device), "trigger_fs_error")
		return os.WriteFile(trigger, []byte("nodeprobe test\n"), 0)
	}
	for _, tt := range []struct {
		kind, name, options string
		fail                func(*disk) error
	}{
		{"ext4", "error", "", trigger},
		{"ext4 no journal", "error", "", trigger},
		{"ext4", "shutdown", "", shutdown},
		{"ext4", "device lost", "", (*disk).lose},
		{"ext4", "device lost, errors=continue", "errors=continue", (*disk).lose},
		{"xfs", "shutdown", "", shutdown},
		{"xfs", "device lost", "", (*disk).lose},
		{"btrfs", "device lost", "", (*disk).lose},
	} {
		t.Run(tt.kind+" "+tt.name, func(t *testing.T) {
			d := newDiskOf(t, tt.kind)
			if tt.options != "" {
				d.mount(unix.MS_REMOUNT, tt.options)
			}
			d.watchBytes(s)
			before := uint64(levels(s).Watches[0].ReadOnly)
			if err := tt.fail(d); err != nil {
				t.Fatal(err)
			}
			failed := time.Now()
			if tt.kind == "ext4 no journal" && os.WriteFile(filepath.Join(d.dir, "new"), nil, 0o600) == nil {
				t.Log("this kernel, as Debian's 6.1, says that it remounts it read-only, and goes on writing to it")
				if e := event(t, s, time.Second); e != nil {
					t.Errorf("%+v", e)
				}
				watch(t, s)
				return
			}
			wantEvent(t, s, Event{Kind: ReadOnly, Watch: 0, Seq: before + 1, On: true})
			took := time.Since(failed)
			wantEvent(t, s, Event{Kind: ReadOnly, Watch: 1, Seq: before + 1, On: true})
			if err := os.WriteFile(filepath.Join(d.dir, "new"), nil, 0o600); err == nil {
				t.Error("it can still be written to")
			}
			t.Logf("noticed after %v", took)
			// It stays so, and is neither stale nor under pressure, until it is mounted anew.
			if err := s.Refresh(); err != nil {
				t.Fatal(err)
			}
			if l := levels(s).Watches[0]; !l.ReadOnly.On() || l.Stale.On() || l.Pressure.On() {
				t.Errorf("%+v", l)
			}
			d.unmount(0)
			wantEvent(t, s, Event{Kind: Stale, Watch: 0, Seq: uint64(levels(s).Watches[0].Stale)&^1 + 1, On: true})
			watch(t, s)
		})
	}
}
