package arm

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const ki, mi = int64(1) << 10, int64(1) << 20

// How many pages a CPU holds back is the kernel's arithmetic.
func TestVmstatBatch(t *testing.T) {
	for _, test := range []struct{ cpus, memory, want int64 }{
		{1, 64 * mi, 2},
		{1, gi / 2, 8},
		{2, 8 * gi, 32},
		{16, 64 * gi, 110},
		{128, 512 * gi, 125},
		{512, 4096 * gi, 125},
		{8192, 65536 * gi, 125},
	} {
		if got := vmstatBatch(test.cpus, test.memory); got != test.want {
			t.Errorf("%d CPUs, %d MiB: %d pages, want %d", test.cpus, test.memory/mi, got, test.want)
		}
	}
}

func TestHeldBack(t *testing.T) {
	page := int64(os.Getpagesize())
	for _, test := range []struct {
		figure bpf.Figure
		of     bpf.Filesystem
		cpus   int64
		want   int64
	}{
		{bpf.WorkingSet, 0, 2, 3 * 32 * 2 * page},
		{bpf.WorkingSet, 0, 0, 3 * 16 * page}, // not counted
		{bpf.WorkingSet, 0, 128, 3 * 125 * 128 * page},
		{bpf.MemAvailable, 0, 2, 5 * 32 * 2 * page},
		{bpf.PIDs, 0, 128, 0},
		{bpf.FreeBytes, bpf.Ext4, 2, 2 * 32 * 2}, // of blocks of one byte
		{bpf.FreeBytes, bpf.Ext4, 0, 2 * 32},
		{bpf.FreeBytes, bpf.XFS, 128, 1024 * 128},
		{bpf.FreeInodes, bpf.Ext4, 128, 256 * 128},
	} {
		var s probe.Snapshot
		s.Capacity.CPUs, s.Memory.Total = test.cpus, 8*gi
		if got := heldBack(&s, test.figure, &bpf.Level{Filesystem: test.of}); got != test.want {
			t.Errorf("%v, %d CPUs: %d, want %d", test.figure, test.cpus, got, test.want)
		}
	}
}

// How far the kernel's figure may be off on machines of 4 GiB a CPU, in KiB, by the size of
// a page, which is that of a block too. Disks are those of kernels before 5.19, or of more
// CPUs than are summed up: nearer to its limit than that a disk is sampled, at least each
// second. Of memory no sample tells more.
func TestHeldBackOfMachines(t *testing.T) {
	for _, test := range []struct {
		cpus, page                                      int64
		ext4, xfs, workingSet, memAvailable, podsMemory int64
	}{
		{2, 4, 512, 8_192, 768, 1_280, 1_024},
		{2, 16, 2_048, 32_768, 3_072, 5_120, 4_096},
		{2, 64, 8_192, 131_072, 12_288, 20_480, 16_384},
		{16, 4, 4_096, 65_536, 21_120, 35_200, 8_192},
		{16, 16, 16_384, 262_144, 84_480, 140_800, 32_768},
		{16, 64, 65_536, 1_048_576, 337_920, 563_200, 131_072},
		{128, 4, 262_144, 524_288, 192_000, 320_000, 65_536},
		{128, 16, 1_048_576, 2_097_152, 768_000, 1_280_000, 262_144},
		{128, 64, 4_194_304, 8_388_608, 3_072_000, 5_120_000, 1_048_576},
		{512, 4, 4_194_304, 2_097_152, 768_000, 1_280_000, 262_144},
		{512, 16, 16_777_216, 8_388_608, 3_072_000, 5_120_000, 1_048_576},
		{512, 64, 67_108_864, 33_554_432, 12_288_000, 20_480_000, 4_194_304},
	} {
		memory := func(f bpf.Figure) int64 { return pagesHeldBack(f, test.cpus, test.cpus*4*gi) * test.page }
		disk := func(of bpf.Filesystem) int64 {
			return (&bpf.Level{Filesystem: of}).Lag(bpf.FreeBytes, test.cpus) * test.page // of blocks of one byte
		}
		got := [...]int64{disk(bpf.Ext4), disk(bpf.XFS), memory(bpf.WorkingSet), memory(bpf.MemAvailable), memory(bpf.CgroupMemory)}
		if want := [...]int64{test.ext4, test.xfs, test.workingSet, test.memAvailable, test.podsMemory}; got != want {
			t.Errorf("%d CPUs, pages of %d KiB: %d, want %d", test.cpus, test.page, got, want)
		}
	}
}

// A disk that is too near to its limit for the kernel's figure is sampled each second, and
// ten times a second while it fills, however many CPUs there are. Farther away than a burst
// gets in that time, less often.
func TestNearIsSampled(t *testing.T) {
	for _, cpus := range []int64{2, 16, 128, 512} {
		for _, block := range []int64{4 * ki, 16 * ki, 64 * ki} {
			for _, of := range []bpf.Filesystem{bpf.Ext4, bpf.XFS} {
				near := (&bpf.Level{Filesystem: of}).Lag(bpf.FreeBytes, cpus)*block - 1
				e := pressure.Estimate{
					Signal: probe.NodeFsAvailable, Capacity: 10_000 * gi, Headroom: near,
				}
				resting := max(time.Second, time.Duration(float64(near)/(2<<30)*float64(time.Second)))
				if got := pressure.NextSample([]pressure.Estimate{e}, time.Hour, pressure.Pace{}); got > min(resting, 10*time.Second) {
					t.Errorf("%d CPUs, %v, %d MiB above its limit: sampled after %s", cpus, of, near/mi, got)
				}
				e.Earliest = time.Second // until it gets there, at the rate that was seen
				if got := pressure.NextSample([]pressure.Estimate{e}, time.Second, pressure.Pace{}); got != 100*time.Millisecond {
					t.Errorf("%d CPUs, %v, %d MiB above its limit and falling: sampled after %s", cpus, of, near/mi, got)
				}
			}
		}
	}
}

// However large the machine and its pages are, a figure that is off by the limit itself is
// not relied on.
func TestSlack(t *testing.T) {
	limits := map[bpf.Figure][]int64{
		bpf.WorkingSet: {100 * mi, 10 * gi}, bpf.MemAvailable: {100 * mi, 10 * gi},
		bpf.FreeBytes: {100 * mi, 10 * gi, 1000 * gi}, bpf.FreeInodes: {20_000, 10_000_000}, bpf.PIDs: {2000, 400_000},
	}
	for _, cpus := range []int64{2, 16, 128, 512} {
		for _, page := range []int64{4 * ki, 16 * ki, 64 * ki} {
			memory := 3 * vmstatBatch(cpus, cpus*4*gi) * cpus * page
			blocks := 2 * max(32, 2*cpus) * cpus * page
			for figure, all := range limits {
				for _, below := range all {
					for _, held := range []int64{0, memory, blocks} {
						if got := slack(bpf.Watch{Figure: figure, Below: below}, held); got <= 0 || got >= below {
							t.Errorf("%d CPUs, pages of %d: %v may be off by %d of %d", cpus, page, figure, got, below)
						}
					}
				}
			}
		}
	}
	for name, test := range map[string]struct{ below, held, want int64 }{
		"little is held back":           {100 * mi, 768 * ki, 32*mi + 768*ki},
		"much, and a small limit":       {100 * mi, gi, 32*mi + 25*mi},
		"much, and a large limit":       {25 * gi, gi, 32*mi + gi},
		"a limit that is never reached": {-gi, gi, 32 * mi},
	} {
		if got := slack(bpf.Watch{Figure: bpf.WorkingSet, Below: test.below}, test.held); got != test.want {
			t.Errorf("%s: %d KiB, want %d", name, got/ki, test.want/ki)
		}
	}
}

// A disk that is nearer to its limit than the kernel's figure is exact is sampled, and on a
// large machine that is further away.
func TestStepNear(t *testing.T) {
	for _, test := range []struct {
		name     string
		cpus     int64
		of       bpf.Filesystem
		headroom int64
		settled  bool
		relied   bool
	}{ // of blocks of one byte
		{"near", 2, bpf.Ext4, 127, false, false},
		{"not so near", 2, bpf.Ext4, 128, false, true},
		{"xfs", 2, bpf.XFS, 2047, false, false},
		{"xfs, not so near", 2, bpf.XFS, 2048, false, true},
		{"many CPUs", 128, bpf.Ext4, 65535, false, false},
		{"many CPUs, not so near", 128, bpf.Ext4, 65536, false, true},
		{"CPUs not counted", 0, bpf.Ext4, 63, false, false},
		{"beyond", 128, bpf.Ext4, -1, false, true},
		{"held", 128, bpf.Ext4, 1, true, true},
	} {
		s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%"}})
		s.snapshot.Capacity.CPUs, s.levels.Watches[1].Filesystem = test.cpus, test.of
		s.after(0)
		s.estimates[0].Headroom = 1 // of memory, where samples tell no more than the kernel
		s.estimates[1].Headroom, s.settled[1] = test.headroom, test.settled
		if got, _ := s.after(time.Second); !slices.Equal(got, []bool{true, test.relied}) {
			t.Errorf("%s: relied on %v, want %t", test.name, got, test.relied)
		}
	}
}

// The timer's rate is that of the CPUs there are, not of those that this process may use;
// one that comes or goes is put to the kernel at once.
func TestStepCPUs(t *testing.T) {
	s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%"}})
	for i, cpus := range []int64{0, 2, 128} {
		s.snapshot.Capacity.CPUs = cpus
		s.after(time.Second)
		var want uint64
		if cpus > 0 {
			want = bpf.MaxRate(bpf.WorkingSet, int(cpus))
		}
		if s.sets != i+1 || s.set[0].MaxRate != want {
			t.Errorf("%d CPUs: %d sets, rate %d, want %d", cpus, s.sets, s.set[0].MaxRate, want)
		}
	}
}
