package arm

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// Each limit is put to the kernel in terms of the kernel's own figure.
func TestWanted(t *testing.T) {
	const most = bpf.MaxFigure
	share := func(p float32) pressure.Value { return pressure.Value{Percentage: p} }
	amount := func(n int64) pressure.Value { return pressure.Value{Quantity: n} }
	s := snapshot()
	s.ImageFs = probe.Filesystem{Path: "/images", Reserved: gi}
	s.Signals[probe.ImageFsAvailable] = probe.Observation{Available: gi, Capacity: 10 * gi, OK: true}
	s.Signals[probe.AllocatableMemoryAvailable] = probe.Observation{Available: gi, Capacity: 6 * gi, OK: true}
	s.Signals[probe.SwapAvailable] = probe.Observation{Available: gi, Capacity: 10 * gi, OK: true}
	s.Signals[probe.ContainerFsAvailable] = probe.Observation{Available: gi, Capacity: 10 * gi, OK: true}
	tenth := share(0.1).Of(100 * gi)
	for name, test := range map[string]struct {
		signal       probe.Signal
		value, extra pressure.Value // of the threshold, and to be reclaimed
		want         bpf.Watch
	}{
		"memory":        {probe.MemoryAvailable, amount(100 << 20), amount(0), bpf.Watch{Figure: bpf.WorkingSet, Total: 8 * gi, Below: 100 << 20, Above: 110 << 20}},
		"1 % is enough": {probe.PIDAvailable, share(0.5), amount(0), bpf.Watch{Figure: bpf.PIDs, Total: 32768, Below: 16384, Above: 16384 + 327}},
		"pods":          {probe.AllocatableMemoryAvailable, amount(100 << 20), amount(0), bpf.Watch{Figure: bpf.CgroupMemory, Total: 6 * gi, Below: 100 << 20, Above: 110 << 20}},
		"the kernel's":  {probe.MemAvailable, share(0.1), amount(0), bpf.Watch{Figure: bpf.MemAvailable, Below: share(0.1).Of(8 * gi), Above: share(0.1).Of(8*gi) + 8*gi/100}},
		// What only root may fill is free, but not available.
		"nodefs":          {probe.NodeFsAvailable, share(0.1), amount(0), bpf.Watch{Figure: bpf.FreeBytes, Below: tenth + 5*gi, Above: tenth + gi + 5*gi}},
		"imagefs":         {probe.ImageFsAvailable, amount(gi), amount(2 * gi), bpf.Watch{Figure: bpf.FreeBytes, Below: gi + gi, Above: gi + 2*gi + gi}},
		"inodes":          {probe.NodeFsInodesFree, share(0.05), amount(100), bpf.Watch{Figure: bpf.FreeInodes, Below: 50, Above: 150}},
		"reclaim is less": {probe.NodeFsInodesFree, amount(50), amount(1), bpf.Watch{Figure: bpf.FreeInodes, Below: 50, Above: 55}},

		"could not be read":       {probe.ImageFsInodesFree, share(0.1), amount(0), bpf.Watch{}},
		"nothing":                 {probe.MemoryAvailable, amount(0), amount(0), bpf.Watch{}},
		"less than one":           {probe.NodeFsInodesFree, share(0.0001), amount(0), bpf.Watch{}},
		"swap":                    {probe.SwapAvailable, amount(gi), amount(0), bpf.Watch{}},
		"no figure of the kernel": {probe.ContainerFsAvailable, amount(gi), amount(0), bpf.Watch{}},

		"more than there can be": {probe.MemoryAvailable, amount(1<<63 - 1), amount(1<<63 - 1), bpf.Watch{Figure: bpf.WorkingSet, Total: 8 * gi, Below: most, Above: most}},
		"and of a filesystem":    {probe.NodeFsAvailable, amount(1<<63 - 1), amount(0), bpf.Watch{Figure: bpf.FreeBytes, Below: most, Above: most}},
		"and of inodes":          {probe.NodeFsInodesFree, amount(1<<63 - 1), amount(0), bpf.Watch{Figure: bpf.FreeInodes, Below: most, Above: most}},
		"and to be reclaimed":    {probe.PIDAvailable, amount(1<<63 - 1), share(10), bpf.Watch{Figure: bpf.PIDs, Total: 32768, Below: most, Above: most}},
	} {
		l := limit{threshold: pressure.Threshold{Signal: test.signal, Value: test.value, MinReclaim: test.extra}}
		got := l.wanted(&s)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
