//go:build linux && (amd64 || arm64)

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A filesystem that is frozen takes no writes for a moment, as for a snapshot of its
// device. That is no error, and nothing is forgotten over it.
func TestFrozen(t *testing.T) {
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE, FITHAW
	s := open(t, Pressure)
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			d := newDiskOf(t, kind)
			d.watchBytes(s)
			before := levels(s).Watches[0]
			if err := d.control(freeze, nil); err != nil {
				t.Fatal(err)
			}
			frozen := true
			defer func() {
				if frozen {
					_ = d.control(thaw, nil)
				}
			}()
			ticks := levels(s).Ticks
			eventually(t, "ticks while it is frozen", func() bool { return levels(s).Ticks > ticks+2 })
			d.watchBytes(s) // as user space may do meanwhile
			if err := s.Refresh(); err != nil {
				t.Fatal(err)
			}
			if l := levels(s).Watches[0]; l.ReadOnly != before.ReadOnly || l.Stale != before.Stale || l.Pressure.On() {
				t.Errorf("frozen: %+v, before %+v", l, before)
			}
			if err := d.control(thaw, nil); err != nil {
				t.Fatal(err)
			}
			frozen = false
			if e := event(t, s, 0); e != nil {
				t.Errorf("%+v", e)
			}
			d.crossesBytes(s)
		})
	}
}

// crossesBytes checks that a limit on free bytes is watched.
func (d *disk) crossesBytes(s *Sensor) {
	d.t.Helper()
	fd := d.open(unix.O_RDONLY | unix.O_DIRECTORY)
	defer unix.Close(fd)
	sync := func() { // a hint moves at a commit
		if err := unix.Syncfs(fd); err != nil {
			d.t.Error(err)
		}
	}
	crossings(d.t, s, Watch{Figure: FreeBytes, FD: fd}, 15<<20, func() func() {
		d.fallocate("big", 30<<20)
		sync()
		return func() { d.remove("big"); sync() }
	})
	watch(d.t, s)
}

// A filesystem that grows while it is watched is the same one, and its figures go on being
// what statfs(2) tells.
func TestResized(t *testing.T) {
	const more = 64 << 20
	s := open(t, Pressure)
	for kind, grow := range map[string]func(d *disk, size int64) error{
		"ext4": func(d *disk, size int64) error {
			var blocks [8]byte
			binary.NativeEndian.PutUint64(blocks[:], uint64(size/4096))
			return d.control(0x40086610, blocks[:]) // EXT4_IOC_RESIZE_FS
		},
		"xfs": func(d *disk, size int64) error {
			var in [16]byte // struct xfs_growfs_data
			binary.NativeEndian.PutUint64(in[:], uint64(size/4096))
			binary.NativeEndian.PutUint32(in[8:], 25) // most percent for inodes, as mkfs has it
			return d.control(0x4010586e, in[:])       // XFS_IOC_FSGROWFSDATA
		},
		"btrfs": func(d *disk, size int64) error {
			var in [4096]byte // struct btrfs_ioctl_vol_args
			copy(in[8:], fmt.Sprint(size))
			return d.control(0x50009403, in[:]) // BTRFS_IOC_RESIZE
		},
	} {
		t.Run(kind, func(t *testing.T) {
			d := newDiskOf(t, kind)
			d.watchBytes(s)
			before, told := levels(s).Watches[0], d.statfs()
			st, err := d.backing.Stat()
			if err == nil {
				err = d.resizeDevice(st.Size() + more)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := grow(d, st.Size()+more); errors.Is(err, unix.EPERM) && kind == "ext4" {
				// Here it takes CAP_SYS_RESOURCE, which root need not have.
				t.Logf("offline: %v", err)
				d.growOffline(s)
			} else if err != nil {
				t.Fatal(err)
			}
			if err := s.Refresh(); err != nil {
				t.Fatal(err)
			}
			l, now := levels(s).Watches[0], d.statfs()
			grown := int64(now.Bfree-told.Bfree) * now.Bsize
			if grown < more/2 {
				t.Fatalf("statfs has %d bytes more", grown)
			}
			off := l.Value - before.Value - grown
			if l.IsHint() && off < 0 {
				// Before 6.7 a btrfs does not count what it grew by as unallocated.
				off = min(0, off+grown)
			}
			if max(off, -off) > 2*l.Lag(FreeBytes, int64(possibleCPUs()))+1<<20 {
				t.Errorf("off by %d bytes from what statfs says, which has %d more", off, grown)
			}
			if l.ReadOnly.On() || l.Stale.On() || l.Pressure.On() {
				t.Errorf("%+v", l)
			}
			d.crossesBytes(s)
		})
	}
}

// growOffline is for where a filesystem may not grow while it is mounted.
func (d *disk) growOffline(s *Sensor) {
	d.t.Helper()
	d.unmount(0)
	for _, args := range [][]string{{"e2fsck", "-f", "-p", d.device}, {"resize2fs", d.device}} {
		if out, err := exec.CommandContext(d.t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			d.t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	d.mount(0, "")
	d.watchBytes(s)
	for event(d.t, s, 0) != nil { // that the old one is stale
	}
}
