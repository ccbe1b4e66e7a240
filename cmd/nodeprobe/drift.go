package main

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// drift is how far the kernel's figure for a limit is from the sampled one.
type drift struct {
	offset int64 // of the latest look; 0 if within the slack
	sure   bool  // it was the same the time before
}

// slack is how far the two may be apart: what the CPUs have not handed in to the
// kernel's counters yet, and what may happen between the sample and the look.
func slack(figure bpf.Figure) int64 {
	cpus := int64(runtime.NumCPU())
	batch := max(32, 2*cpus) * cpus // of the counters of filesystems
	switch figure {
	case bpf.WorkingSet:
		return 32<<20 + cpus*8<<20
	case bpf.FreeBytes:
		return 32<<20 + batch*4096
	case bpf.FreeInodes:
		return 10_000 + batch
	}
	return 1000
}

// observe takes note of a look. One that is far off may be a burst between sample
// and look; two that are off by the same are none.
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

// doubtful says whether a look was far off, and is to be repeated.
func (k *kernelLimits) doubtful() bool {
	for _, d := range k.drift {
		if d.offset != 0 && !d.sure {
			return true
		}
	}
	return false
}

// verify compares what the kernel sees with what has just been sampled. A limit
// whose figures disagree is polled as if the kernel did not watch it.
func (k *kernelLimits) verify(s *probe.Snapshot, ws []bpf.Watch, of []int, estimates []pressure.Estimate) error {
	k.levels(&k.level)
	var errs []error
	for i, w := range ws {
		e := of[i]
		if !k.watched[e] {
			k.drift[e] = drift{}
			continue
		}
		signal := estimates[e].Signal
		kernel := k.level.Watches[i].Value
		if w.Figure == bpf.FreeBytes {
			kernel = max(0, kernel-filesystemOf(s, signal).Reserved)
		}
		d := &k.drift[e]
		if d.observe(kernel, s.Signals[signal].Available, slack(w.Figure)); d.sure {
			k.watched[e] = false
			errs = append(errs, fmt.Errorf("%s: the kernel's figure is off by %d %s", signal, d.offset, signal.Unit()))
		}
	}
	return errors.Join(errs...)
}
