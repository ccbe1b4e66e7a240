package bpf

import "testing"

// What the CPUs may hold back grows with their number and the size of a block.
func TestLag(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, test := range []struct {
		of     Filesystem
		figure Figure
		shift  uint32
		cpus   int64
		want   int64
	}{
		{Ext4, FreeBytes, 12, 2, 2 * 32 * 2 * 4 * kib},
		{Ext4, FreeBytes, 10, 2, 2 * 32 * 2 * kib},
		{Ext4, FreeBytes, 16, 16, 2 * 32 * 16 * 64 * kib}, // bigalloc, or large pages
		{Ext4, FreeBytes, 12, 16, 4 * mib},
		{Ext4, FreeBytes, 12, 128, 2 * 256 * 128 * 4 * kib},
		{Ext4, FreeBytes, 12, 512, 2 * 1024 * 512 * 4 * kib},
		{Ext4, FreeInodes, 0, 128, 256 * 128},
		{XFS, FreeBytes, 12, 2, 8 * mib},
		{XFS, FreeBytes, 12, 16, 64 * mib},
		{XFS, FreeBytes, 14, 16, 256 * mib},
		{XFS, FreeBytes, 16, 16, 1024 * mib},
		{XFS, FreeBytes, 12, 128, 512 * mib},
		{XFS, FreeBytes, 12, 512, 2048 * mib},
		{XFS, FreeInodes, 3, 2, 2 * (8*1024 + 128 + 32)},
		{Btrfs, FreeBytes, 12, 128, 0},
		{0, WorkingSet, 0, 128, 0},
	} {
		l := Level{Filesystem: test.of, shift: test.shift}
		if got := l.Lag(test.figure, test.cpus); got != test.want {
			t.Errorf("%v %v, blocks of 2^%d, %d CPUs: %d, want %d", test.of, test.figure, test.shift, test.cpus, got, test.want)
		}
		l.summed = true
		if got := l.Lag(test.figure, test.cpus); got != 0 {
			t.Errorf("%v %v, %d CPUs: %d although it is summed", test.of, test.figure, test.cpus, got)
		}
	}
}
