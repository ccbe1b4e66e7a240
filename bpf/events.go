package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// Kind is the kind of an Event.
type Kind uint8

// The kinds. All but OOMKill are about a Watch.
const (
	// OOMKill is a victim of the OOM killer.
	OOMKill Kind = iota + 1
	// Crossing is the beginning or the end of pressure.
	Crossing
	// ReadOnly is a filesystem that became read-only, or writable again.
	ReadOnly
	// Stale is a filesystem that is no longer there: its Watch has ended.
	Stale
)

// String returns the name used in logs and metrics.
func (k Kind) String() string {
	switch k {
	case OOMKill:
		return "oom_kill"
	case Crossing:
		return "crossing"
	case ReadOnly:
		return "read_only"
	case Stale:
		return "stale"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Scope is the memory that ran out.
type Scope uint8

const (
	// ScopeUnknown means that the task which invoked the OOM killer had not tried
	// to reclaim memory since Open, or that the signal Reclaim is not attached.
	ScopeUnknown Scope = iota
	// ScopeNode is the memory of the node: the victim had the worst score of all.
	ScopeNode
	// ScopeCgroup is the limit of a memory cgroup that the victim is in:
	// Event.CgroupID or one above.
	ScopeCgroup
)

// String returns the name used in logs and metrics.
func (s Scope) String() string {
	switch s {
	case ScopeUnknown:
		return "unknown"
	case ScopeNode:
		return "node"
	case ScopeCgroup:
		return "cgroup"
	}
	return fmt.Sprintf("scope(%d)", uint8(s))
}

// Event is reported by a program in the kernel.
type Event struct {
	Kind Kind
	// Time is when it happened.
	Time time.Time
	// Seq numbers the OOM kills from 1, and the edges of each kind of each watch as
	// Edges does. A gap means lost events, see Counters.Lost.
	Seq uint64

	// Watch is the index of the Watch. It, On and Value are for all kinds but
	// OOMKill.
	Watch int
	// On reports whether the condition began; else it ended.
	On bool
	// Value is the figure at that moment.
	Value int64
	// Limit is the threshold that it crossed, for Crossing.
	Limit int64

	// PID is the victim's process ID in the initial PID namespace. It and the
	// following fields are for OOMKill. If the kernel only passes a thread ID (before
	// 6.9, except in later long-term releases), it is most likely that of the main
	// thread, and CgroupID and Comm are empty.
	PID uint32
	// CgroupID is the inode number of the directory of the victim's memory cgroup, in
	// the memory hierarchy on cgroup v1. 0 if it is not known.
	CgroupID uint64
	// Comm is the name of the victim's main thread, padded with zeros.
	Comm  [16]byte
	Scope Scope
}

// Name returns Comm as a string.
func (e *Event) Name() string {
	name, _, _ := bytes.Cut(e.Comm[:], []byte{0})
	return string(name)
}

// The sizes of struct event and struct edge in totals.h. Both have the kind at the same
// offset.
const (
	eventSize = 48
	edgeSize  = 40
)

// decode fills e from a record of the ring buffer, and returns the epoch of the watches.
// The record's time is by CLOCK_MONOTONIC, in nanoseconds; now and monotonic are one
// moment by both clocks. After an error e is unchanged.
func (e *Event) decode(record []byte, now time.Time, monotonic int64) (epoch uint16, err error) {
	if len(record) < edgeSize {
		return 0, fmt.Errorf("decode event: only %d bytes", len(record))
	}
	order := binary.NativeEndian
	kind := order.Uint16(record[28:])
	size := edgeSize
	if kind == uint16(OOMKill) {
		size = eventSize
	}
	if kind < uint16(OOMKill) || kind > uint16(Stale) {
		return 0, fmt.Errorf("decode event: unknown kind %d", kind)
	}
	if len(record) != size {
		return 0, fmt.Errorf("decode event: %d bytes instead of %d", len(record), size)
	}
	decoded := Event{
		Kind: Kind(kind),
		Time: now.Add(time.Duration(int64(order.Uint64(record[0:])) - monotonic)),
		Seq:  order.Uint64(record[8:]),
	}
	if decoded.Kind == OOMKill {
		scope := order.Uint16(record[30:])
		if scope > uint16(ScopeCgroup) {
			return 0, fmt.Errorf("decode event: unknown scope %d", scope)
		}
		decoded.CgroupID = order.Uint64(record[16:])
		decoded.PID = order.Uint32(record[24:])
		decoded.Comm = [16]byte(record[32:48])
		decoded.Scope = Scope(scope)
	} else {
		watch := order.Uint32(record[24:])
		if watch >= MaxWatches {
			return 0, fmt.Errorf("decode event: unknown watch %d", watch)
		}
		epoch = order.Uint16(record[30:])
		decoded.Watch = int(watch)
		decoded.On = Edges(decoded.Seq).On()
		decoded.Value = int64(order.Uint64(record[16:]))
		decoded.Limit = int64(order.Uint64(record[32:]))
	}
	*e = decoded
	return epoch, nil
}
