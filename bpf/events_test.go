package bpf

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// record returns a record as the program mark_victim writes it.
func record(kind, scope uint16) []byte {
	order := binary.NativeEndian
	b := make([]byte, eventSize)
	order.PutUint64(b[0:], 1_000)
	order.PutUint64(b[8:], 7)
	order.PutUint64(b[16:], 4711)
	order.PutUint32(b[24:], 1234)
	order.PutUint16(b[28:], kind)
	order.PutUint16(b[30:], scope)
	copy(b[32:], "victim")
	return b
}

func TestDecodeEvent(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var got Event
	if _, err := got.decode(record(1, 2), now, 1_500); err != nil {
		t.Fatal(err)
	}
	want := Event{
		Kind:     OOMKill,
		Time:     now.Add(-500),
		Seq:      7,
		PID:      1234,
		CgroupID: 4711,
		Comm:     [16]byte{'v', 'i', 'c', 't', 'i', 'm'},
		Scope:    ScopeCgroup,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.Name() != "victim" {
		t.Errorf("Name() = %q", got.Name())
	}
	got.Comm = [16]byte([]byte("sixteen letters!"))
	if got.Name() != "sixteen letters!" {
		t.Errorf("Name() = %q", got.Name())
	}
}

func TestDecodeEventAllocatesNothing(t *testing.T) {
	b, now := record(1, 0), time.Now()
	var e Event
	if n := testing.AllocsPerRun(100, func() { _, _ = e.decode(b, now, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever is in the ring buffer, decode does not panic; and it either fills the
// event or returns an error and leaves it alone.
func FuzzDecodeEvent(f *testing.F) {
	f.Add(record(1, 0), int64(0))
	f.Add(record(1, 2), int64(1)<<62)
	f.Add(record(0, 0), int64(0))
	f.Add(record(1, 3), int64(-1))
	f.Add(record(1, 1)[:47], int64(0))
	f.Add([]byte(nil), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, monotonic int64) {
		var e Event
		_, err := e.decode(b, time.Unix(1_800_000_000, 0), monotonic)
		if (err == nil) == (e == Event{}) {
			t.Errorf("error %v with %+v", err, e)
		}
		if err != nil {
			return
		}
		if e.Kind != OOMKill || e.Scope > ScopeCgroup || len(e.Name()) > len(e.Comm) {
			t.Errorf("%+v", e)
		}
	})
}

func TestStrings(t *testing.T) {
	got := []string{
		OOMKill.String(), Kind(9).String(),
		ScopeUnknown.String(), ScopeNode.String(), ScopeCgroup.String(), Scope(9).String(),
	}
	want := []string{"oom_kill", "kind(9)", "unknown", "node", "cgroup", "scope(9)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
