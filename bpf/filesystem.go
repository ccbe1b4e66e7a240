package bpf

import (
	"fmt"
	"iter"
)

// Filesystem is a kind of filesystem whose figures the kernel can watch.
type Filesystem uint8

// The filesystems.
const (
	Ext4 Filesystem = iota + 1
	XFS
	Btrfs
)

// String returns the name of the filesystem's driver, as in /proc/filesystems.
func (f Filesystem) String() string {
	switch f {
	case Ext4:
		return "ext4"
	case XFS:
		return "xfs"
	case Btrfs:
		return "btrfs"
	}
	return fmt.Sprintf("filesystem(%d)", uint8(f))
}

func filesystems() iter.Seq[Filesystem] {
	return func(yield func(Filesystem) bool) {
		for f := Ext4; f <= Btrfs && yield(f); f++ {
		}
	}
}

// IsHint reports whether Value only moves with what statfs(2) tells, at another level.
func (l *Level) IsHint() bool { return l.Filesystem == Btrfs }

// Lag returns how far Value, which is the figure f of a filesystem, may be from what
// statfs(2) tells: by what each of the CPUs has not added to the kernel's counters yet, if
// the kernel does not sum that up (Linux 5.19, up to 512 CPUs).
func (l *Level) Lag(f Figure, cpus int64) int64 {
	if l.summed {
		return 0
	}
	batch := max(32, 2*cpus) // of a counter that sets none
	var counts int64
	switch {
	case l.Filesystem == Ext4 && f == FreeBytes:
		counts = 2 * batch << l.shift // free clusters, and dirty ones
	case l.Filesystem == Ext4:
		counts = batch
	case l.Filesystem == XFS && f == FreeBytes:
		counts = xfsBlocks << l.shift
	case l.Filesystem == XFS: // free blocks count as inodes
		counts = xfsBlocks<<l.shift + xfsInodes + batch
	}
	return cpus * counts
}

// The batches of xfs: XFS_FDBLOCKS_BATCH, as long as there are many free blocks, and
// XFS_ICOUNT_BATCH.
const (
	xfsBlocks = 1024
	xfsInodes = 128
)
