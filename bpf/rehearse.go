package bpf

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Rehearse has ReadEvent do what it does for an event, as far as that goes without one: it
// is woken, finds none and waits on. And it decodes an event of each kind. So a process
// that locks its memory has all that it needs for the first event. It does nothing where
// no attached signal has events.
func (s *Sensor) Rehearse() error {
	if !s.kernel.hasEvents() {
		return nil
	}
	if err := s.kernel.flush(); err != nil {
		return fmt.Errorf("wake reader of events: %w", err)
	}
	for kind := OOMKill; kind <= Stale; kind++ {
		record := make([]byte, edgeSize)
		if kind == OOMKill {
			record = make([]byte, eventSize)
		}
		binary.NativeEndian.PutUint16(record[28:], uint16(kind))
		var e Event
		if _, err := e.decode(record, time.Now(), 0); err != nil {
			return err
		}
	}
	return nil
}
