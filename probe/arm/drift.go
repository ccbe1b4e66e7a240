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

// slack returns how far the kernel's figure for a watch may be from the sampled one: by
// what happens between the sample and the look, and by what the CPUs have not added to
// the kernel's counters yet. On a large machine the latter may be more than all of the
// limit: a figure that is off by more than a quarter of that says too little about it.
func slack(w bpf.Watch, heldBack int64) int64 {
	between := int64(1000)
	switch w.Figure {
	case bpf.WorkingSet, bpf.MemAvailable, bpf.CgroupMemory, bpf.FreeBytes:
		between = 32 << 20
	case bpf.FreeInodes:
		between = 10_000
	}
	return between + min(heldBack, max(0, w.Below/4))
}
