package arm

import (
	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// limit is a threshold or a rule's term, and what the kernel does about it.
type limit struct {
	threshold pressure.Threshold
	// want is the watch that the latest snapshot asks for, without a descriptor; the zero
	// Watch if there is nothing to watch. asked is what want was when the watches were
	// set last.
	want, asked bpf.Watch
	// behind is the limit that has a watch instead, as the signal cannot get to this one
	// without crossing that one first; nil if there is none.
	behind  *limit
	slot    int   // the index of its watch in the kernel; -1 if it has none
	watched bool  // the watch is in force, and its figure agrees with the samples
	ahead   bool  // the kernel reports pressure that the sample does not show
	near    bool  // by less than the kernel's figure may be off, and the sample is not
	drift   drift // of the kernel's figure
	// hint means that the kernel's figure only moves with the sampled one, shift above it.
	// The kernel's event brings a sample, but is not relied on.
	hint  bool
	shift int64
}

// covered reports whether a watch is in force that announces a crossing of the limit.
func (l *limit) covered() bool {
	if l.behind != nil {
		l = l.behind
	}
	return l.watched && !l.hint
}

// relied reports whether the kernel will send an event when the limit is crossed, or
// before.
func (l *limit) relied() bool {
	if l.behind != nil {
		l = l.behind
	}
	return l.covered() && !l.ahead && !l.near
}

// follow moves a hint along with the sample. That sets the watches again, so only if it
// matters.
func (l *limit) follow(kernel, sampled, slack int64) {
	if off := kernel - sampled - l.shift; off > slack || off < -slack {
		l.shift += off
	}
}

// filesystem is one of those that a snapshot has.
type filesystem int

const (
	nodeFs filesystem = iota
	imageFs
	numFilesystems = int(iota)
)

func (f filesystem) in(s *probe.Snapshot) *probe.Filesystem {
	if f == imageFs {
		return &s.ImageFs
	}
	return &s.NodeFs
}

// filesystemOf returns the filesystem that a signal is about, and false if it is about
// none.
func filesystemOf(signal probe.Signal) (filesystem, bool) {
	switch signal {
	case probe.NodeFsAvailable, probe.NodeFsInodesFree:
		return nodeFs, true
	case probe.ImageFsAvailable, probe.ImageFsInodesFree:
		return imageFs, true
	}
	return 0, false
}

// figureOf returns the kernel's figure for a signal, 0 if it has none.
func figureOf(signal probe.Signal) bpf.Figure {
	switch signal {
	case probe.MemoryAvailable:
		return bpf.WorkingSet
	case probe.AllocatableMemoryAvailable:
		return bpf.CgroupMemory
	case probe.MemAvailable:
		return bpf.MemAvailable
	case probe.PIDAvailable:
		return bpf.PIDs
	case probe.NodeFsAvailable, probe.ImageFsAvailable:
		return bpf.FreeBytes
	case probe.NodeFsInodesFree, probe.ImageFsInodesFree:
		return bpf.FreeInodes
	}
	return 0
}

// above returns by how much the kernel's figure for the limit exceeds the sampled one.
func (l *limit) above(s *probe.Snapshot) int64 {
	if l.hint {
		return l.shift
	}
	return reserved(s, l.threshold.Signal)
}

// reserved returns by how much that is where the kernel counts what is free, and the
// sample what is available to others than root.
func reserved(s *probe.Snapshot, signal probe.Signal) int64 {
	if fs, ok := filesystemOf(signal); ok && figureOf(signal) == bpf.FreeBytes {
		return fs.in(s).Reserved
	}
	return 0
}

// wanted returns the watch for the threshold, without a descriptor. It is the zero Watch if
// the kernel has no figure for the signal, the signal could not be read, or the limit is
// nothing, which is never crossed.
func (l *limit) wanted(s *probe.Snapshot) bpf.Watch {
	t := l.threshold
	o := s.Signals[t.Signal]
	below := t.Value.Of(o.Capacity)
	figure := figureOf(t.Signal)
	if figure == 0 || !o.OK || below <= 0 {
		return bpf.Watch{}
	}
	offset := l.above(s)
	w := bpf.Watch{
		Figure: figure,
		Below:  plus(below, offset),
		Above:  plus(clearAt(t, below, o.Capacity), offset),
	}
	if figure == bpf.WorkingSet || figure == bpf.PIDs || figure == bpf.CgroupMemory {
		w.Total = o.Capacity
	}
	if s.Capacity.CPUs > 0 {
		w.MaxRate = bpf.MaxRate(figure, int(s.Capacity.CPUs))
	}
	return w
}

// clearAt returns where pressure ends for the kernel: above the limit by a tenth of it,
// but no more than 1 % of the capacity, or by the minimum reclaim if that is more. So a
// figure that hovers at its limit wakes nobody.
func clearAt(t pressure.Threshold, below, capacity int64) int64 {
	return plus(below, max(min(below/10, capacity/100), t.MinReclaim.Of(capacity)))
}

// plus adds two amounts, the first of which is not negative, up to the highest that the
// kernel takes.
func plus(a, b int64) int64 {
	return min(a, bpf.MaxFigure) + min(b, bpf.MaxFigure-min(a, bpf.MaxFigure))
}
