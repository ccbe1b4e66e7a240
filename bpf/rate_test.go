package bpf

import "testing"

// The arithmetic in the kernel holds for as many CPUs as a kernel may be built for.
func TestMaxRate(t *testing.T) {
	for cpus, want := range map[int]uint64{0: 4 << 30, 1: 4 << 30, 2: 8 << 30, 128: 512 << 30, 512: 2 << 40, 2048: 8 << 40, 8192: maxRate} {
		for _, f := range []Figure{WorkingSet, MemAvailable} {
			if got := MaxRate(f, cpus); got != want {
				t.Errorf("%v, %d CPUs: %d, want %d", f, cpus, got, want)
			}
		}
		if MaxRate(FreeBytes, cpus) != 64<<30 || MaxRate(FreeInodes, cpus) != 1_000_000 {
			t.Errorf("%d CPUs: it matters to disks", cpus)
		}
	}
}
