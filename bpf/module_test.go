//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// unload removes a filesystem's module, which the kernel loads again when one is mounted.
// It skips the test where that is not possible.
func unload(t testing.TB, f Filesystem) {
	t.Helper()
	needRoot(t)
	switch err := unix.DeleteModule(f.String(), unix.O_NONBLOCK); {
	case errors.Is(err, unix.ENOSYS):
		t.Skip("this kernel has no modules")
	case errors.Is(err, unix.ENOENT): // not loaded, or built in
		if drivers := readAll(t, "/proc/filesystems"); strings.Contains(drivers, f.String()) {
			t.Skipf("%v is built into this kernel", f)
		}
	case err != nil:
		t.Skipf("unload %v, which others may use: %v", f, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(kernelBTF), f.String())); err == nil {
		t.Fatalf("types of %v outlast it", f)
	}
}

// A module that is loaded later is picked up by the next Watch. Unloaded, it leaves stale
// watches behind, whatever is in its memory then, and loaded once more it is watched again.
func TestModulesComeAndGo(t *testing.T) {
	for _, f := range []Filesystem{XFS, Btrfs} {
		t.Run(f.String(), func(t *testing.T) {
			unload(t, f)
			s := open(t, Pressure)
			memory := Watch{Figure: MemAvailable, Below: never, Above: never}
			watch(t, s, memory)
			if s.kernel.timer.layout.known&(1<<f) != 0 {
				t.Fatal("known before it is loaded")
			}
			d := newDiskOf(t, f.String())
			for range 2 {
				fd := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
				on, off := crossings(t, s, Watch{Figure: FreeBytes, FD: fd}, 15<<20, func() func() {
					d.fallocate("big", 30<<20)
					unix.Syncfs(fd) // a btrfs tells then
					return func() { d.remove("big"); unix.Syncfs(fd) }
				})
				t.Logf("down by %d too many, up by %d", on.Limit-on.Value, off.Value-off.Limit)
				watch(t, s, memory, Watch{Figure: FreeBytes, FD: fd, Below: never, Above: never})
				before := levels(s)
				unix.Close(fd)
				d.unmount(0)
				e := wantEvent(t, s, Event{Kind: Stale, Watch: 1, Seq: uint64(before.Watches[1].Stale) + 1, On: true})
				unload(t, f)
				if err := s.Refresh(); err != nil {
					t.Fatal(err)
				}
				if w := levels(s).Watches[1]; !w.Stale.On() || w.Pressure.On() || w.ReadOnly.On() || w.Value != e.Value {
					t.Errorf("%+v, before %+v", w, before.Watches[1])
				}
				if e := event(t, s, 0); e != nil {
					t.Errorf("%+v", e)
				}
				d.mount(0, "")
			}
		})
	}
}
