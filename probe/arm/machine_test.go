package arm

import (
	"slices"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

const ki, mi = int64(1) << 10, int64(1) << 20

// What the CPUs hold back is the kernel's arithmetic.
func TestHeldBack(t *testing.T) {
	for _, test := range []struct {
		cpus, memory, page   int64
		workingSet           int64
		ext4, xfs, freeInode int64
	}{
		{1, gi / 2, 4 * ki, 3 * 8 * 4 * ki, 256 * ki, 4 * mi, 32},
		{2, 8 * gi, 4 * ki, 768 * ki, 512 * ki, 8 * mi, 64},
		{2, 8 * gi, 16 * ki, 3 * mi, 512 * ki, 8 * mi, 64},
		{2, 8 * gi, 64 * ki, 12 * mi, 512 * ki, 8 * mi, 64},
		{16, 64 * gi, 4 * ki, 5280 * 4 * ki, 4 * mi, 64 * mi, 512},
		{16, 64 * gi, 16 * ki, 5280 * 16 * ki, 4 * mi, 64 * mi, 512},
		{16, 64 * gi, 64 * ki, 330 * mi, 4 * mi, 64 * mi, 512},
		{128, 512 * gi, 4 * ki, 48000 * 4 * ki, 256 * mi, 512 * mi, 32768},
		{128, 512 * gi, 16 * ki, 750 * mi, 256 * mi, 512 * mi, 32768},
		{128, 512 * gi, 64 * ki, 3000 * mi, 256 * mi, 512 * mi, 32768},
		{512, 4096 * gi, 4 * ki, 750 * mi, 4 * gi, 2 * gi, 524288},
		{512, 4096 * gi, 16 * ki, 3000 * mi, 4 * gi, 2 * gi, 524288},
		{512, 4096 * gi, 64 * ki, 12000 * mi, 4 * gi, 2 * gi, 524288},
	} {
		m := machine{cpus: test.cpus, memory: test.memory, page: test.page}
		if got := m.heldBack(bpf.WorkingSet); got != test.workingSet {
			t.Errorf("%+v: memory: %d KiB, want %d", m, got/ki, test.workingSet/ki)
		}
		if got, want := m.heldBack(bpf.MemAvailable), test.workingSet/3*5; got != want {
			t.Errorf("%+v: available memory: %d KiB, want %d", m, got/ki, want/ki)
		}
		if got := m.heldBack(bpf.FreeBytes); got != test.ext4 {
			t.Errorf("%+v: ext4: %d KiB, want %d", m, got/ki, test.ext4/ki)
		}
		if got := m.heldBack(bpf.FreeInodes); got != test.freeInode {
			t.Errorf("%+v: inodes: %d, want %d", m, got, test.freeInode)
		}
		if got := m.heldBack(bpf.PIDs); got != 0 {
			t.Errorf("%+v: PIDs: %d", m, got)
		}
		m.xfs = true
		if got := m.heldBack(bpf.FreeBytes); got != test.xfs {
			t.Errorf("%+v: xfs: %d KiB, want %d", m, got/ki, test.xfs/ki)
		}
	}
}

// However large the machine is, a figure that is off by the limit itself is not relied on.
func TestSlack(t *testing.T) {
	for _, cpus := range []int64{1, 2, 16, 128, 512, 8192} {
		for _, page := range []int64{4 * ki, 16 * ki, 64 * ki} {
			m := machine{cpus: cpus, memory: cpus * 4 * gi, page: page}
			for figure, limits := range map[bpf.Figure][]int64{
				bpf.WorkingSet: {100 * mi, 10 * gi}, bpf.MemAvailable: {100 * mi, 10 * gi},
				bpf.FreeBytes: {100 * mi, 10 * gi, 1000 * gi}, bpf.FreeInodes: {20_000, 10_000_000}, bpf.PIDs: {2000, 400_000},
			} {
				for _, below := range limits {
					got := slack(bpf.Watch{Figure: figure, Below: below}, m)
					if got <= 0 || got >= below {
						t.Errorf("%+v: %v may be off by %d of %d", m, figure, got, below)
					}
				}
			}
		}
	}
	for name, test := range map[string]struct {
		cpus, below, want int64
	}{
		"two CPUs":                      {2, 100 * mi, 32*mi + 768*ki},
		"many, and a small limit":       {128, 100 * mi, 32*mi + 25*mi},
		"many, and a large limit":       {128, 25 * gi, 32*mi + 48000*4*ki},
		"a limit that is never reached": {128, -gi, 32 * mi},
	} {
		m := machine{cpus: test.cpus, memory: 8 * gi * max(1, test.cpus/2), page: 4 * ki}
		if got := slack(bpf.Watch{Figure: bpf.WorkingSet, Below: test.below}, m); got != test.want {
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
		fsType   string
		headroom int64
		status   pressure.Status
		relied   bool
	}{
		{"near", 2, "ext4", 512*ki - 1, pressure.False, false},
		{"not so near", 2, "ext4", 512 * ki, pressure.False, true},
		{"xfs", 2, "xfs", 8*mi - 1, pressure.False, false},
		{"xfs, not so near", 2, "xfs", 8 * mi, pressure.False, true},
		{"many CPUs", 128, "ext4", 256*mi - 1, pressure.False, false},
		{"many CPUs, not so near", 128, "ext4", 256 * mi, pressure.False, true},
		{"CPUs not counted", 0, "ext4", 256*ki - 1, pressure.False, false},
		{"beyond", 128, "ext4", -1, pressure.False, true},
		{"held", 128, "ext4", 1, pressure.True, true},
	} {
		s := newPlanScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%"}})
		s.snapshot.Capacity.CPUs, s.snapshot.NodeFs.Mount.FSType = test.cpus, test.fsType
		s.after(0)
		s.estimates[0].Headroom = 1 // of memory, where samples tell no more than the kernel
		s.estimates[1].Headroom, s.verdicts[pressure.DiskPressure].Status = test.headroom, test.status
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

// A machine is told by its snapshot.
func TestMachineOf(t *testing.T) {
	s := snapshot()
	s.Capacity.CPUs, s.Memory.Total = 16, 8*gi
	s.NodeFs.Mount.FSType, s.ImageFs.Mount.FSType = "xfs", "ext4"
	for signal, xfs := range map[probe.Signal]bool{probe.NodeFsAvailable: true, probe.ImageFsAvailable: false, probe.MemoryAvailable: false} {
		if m := machineOf(&s, signal); m.cpus != 16 || m.memory != 8*gi || m.page < 4*ki || m.xfs != xfs {
			t.Errorf("%s: %+v", signal, m)
		}
	}
}
