package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// Kind says what an Event is about.
type Kind uint8

// OOMKill is the kind of an event about a victim of the OOM killer.
const OOMKill Kind = 1

// String returns the name used in logs and metrics.
func (k Kind) String() string {
	if k == OOMKill {
		return "oom_kill"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Scope is which memory ran out.
type Scope uint8

const (
	// ScopeUnknown means that the task which called the OOM killer had not
	// tried to reclaim memory while we watched, or that the signal Reclaim is
	// missing.
	ScopeUnknown Scope = iota
	// ScopeNode is the memory of the node: the victim was the worst of all.
	ScopeNode
	// ScopeCgroup is the limit of a memory cgroup that the victim is in. Not
	// necessarily that of Event.CgroupID: it may be one above.
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

// Event is something that the kernel reported by itself.
type Event struct {
	Kind Kind
	// Time is when it happened.
	Time time.Time
	// Seq numbers the events of a Sensor from 1. A gap is a loss, see
	// Counters.Lost.
	Seq uint64
	// PID is the victim's process ID in the initial PID namespace. Where the
	// kernel only tells a thread ID (before 6.9, and not in newer releases of
	// the long-term series), it is that of the main thread in all likelihood,
	// and CgroupID and Comm are empty.
	PID uint32
	// CgroupID identifies the victim's memory cgroup: it is the inode number of
	// its directory, in the memory hierarchy if there is one (cgroup v1). 0 if
	// the kernel does not tell.
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

// eventSize is the size of struct event in totals.h, whose layout decode knows.
const eventSize = 48

// decode fills e from a record of the ring buffer. The record's time is what
// CLOCK_MONOTONIC read then, in nanoseconds; now and monotonic are one moment
// by both clocks. e is not touched if there is an error.
func (e *Event) decode(record []byte, now time.Time, monotonic int64) error {
	if len(record) != eventSize {
		return fmt.Errorf("decode event: %d bytes instead of %d", len(record), eventSize)
	}
	order := binary.NativeEndian
	kind, scope := order.Uint16(record[28:]), order.Uint16(record[30:])
	if kind != uint16(OOMKill) {
		return fmt.Errorf("decode event: unknown kind %d", kind)
	}
	if scope > uint16(ScopeCgroup) {
		return fmt.Errorf("decode event: unknown scope %d", scope)
	}
	*e = Event{
		Kind:     Kind(kind),
		Time:     now.Add(time.Duration(int64(order.Uint64(record[0:])) - monotonic)),
		Seq:      order.Uint64(record[8:]),
		CgroupID: order.Uint64(record[16:]),
		PID:      order.Uint32(record[24:]),
		Comm:     [16]byte(record[32:48]),
		Scope:    Scope(scope),
	}
	return nil
}
