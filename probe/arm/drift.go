package arm

import "github.com/nodeprobe/nodeprobe/bpf"

// drift is how far the kernel's figure for a limit is from the sampled one.
type drift struct {
	offset int64 // at the latest look; 0 if within the slack
	sure   bool  // it was the same at the look before
}

// observe takes note of a look. One that is far off may be a burst between the sample and
// the look; two that are off by the same are not.
func (d *drift) observe(kernel, sampled, slack int64) {
	offset := kernel - sampled
	if offset >= -slack && offset <= slack {
		*d = drift{}
		return
	}
	difference := offset - d.offset
	d.sure = d.offset != 0 && difference >= -slack && difference <= slack
	d.offset = offset
}

// doubtful reports whether the latest look was far off, and another has to tell why.
func (d *drift) doubtful() bool { return d.offset != 0 && !d.sure }

// slack returns how far the two figures may be apart: by what the CPUs have not added to
// the kernel's counters yet, and by what may happen between the sample and the look.
func slack(figure bpf.Figure, cpus int64, level *bpf.Level) int64 {
	lag := level.Lag(figure, cpus)
	switch figure {
	case bpf.WorkingSet, bpf.MemAvailable, bpf.CgroupMemory:
		return 32<<20 + cpus*8<<20
	case bpf.FreeBytes:
		return 32<<20 + lag
	case bpf.FreeInodes:
		return 10_000 + lag
	}
	return 1000
}
