//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A field that a kernel lacks costs the watches that need it, and no others.
func TestPartsStandAlone(t *testing.T) {
	open(t, Tasks, Pressure).Close()
	for part, tt := range map[string]struct {
		missing string
		lost    []int
	}{
		"memory":      {"totalreserve_pages", []int{0, 1}},
		"filesystems": {"s_blocksize_bits", []int{3}},
	} {
		t.Run(part, func(t *testing.T) {
			fd, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			dir := generate(t, tt.missing, "nodeprobe_no_such")
			spec, err := ebpf.LoadCollectionSpec(filepath.Join(dir, generated(t, "nodeprobe_*_bpfel.o")[0]))
			if err != nil {
				t.Fatal(err)
			}
			s := newSensor()
			defer closeSensor(t, s)
			s.loadSpec(Options{}, spec)
			if !s.has.Has(Pressure) {
				t.Fatalf("not attached: %+v", s.Hooks())
			}
			err = s.Watch([]Watch{
				{Figure: MemAvailable}, {Figure: WorkingSet, Total: 1}, {Figure: PIDs, Total: 1}, {Figure: FreeBytes, FD: fd},
			})
			var refused WatchErrors
			if !errors.As(err, &refused) {
				t.Fatalf("%v", err)
			}
			lost := map[int]bool{}
			for _, r := range refused {
				lost[r.Watch] = true
				t.Log(r)
			}
			for _, i := range tt.lost {
				if !lost[i] {
					t.Errorf("watch %d is in force", i)
				}
			}
			if lost[2] || lost[0] != (part == "memory") {
				t.Errorf("lost %v", lost)
			}
		})
	}
}

// withoutTimer makes a Sensor one of a kernel before 5.15.
func withoutTimer(s *Sensor) {
	for i := range s.hooks {
		if h := &s.hooks[i]; h.Signal == Pressure {
			h.Attached, h.Err = false, errors.ErrUnsupported
		}
	}
	s.kernel.timer.program = nil
}

// Without a timer PIDs are watched all the same, by forks and exits.
func TestPIDsNeedNoTimer(t *testing.T) {
	s := open(t, Tasks, Pressure)
	withoutTimer(s)
	threads(1)() // so that the number of tasks is known
	on, off := crossings(t, s, Watch{Figure: PIDs, Total: 1 << 22}, 200, func() func() { return threads(400) })
	t.Logf("down by %d too many, up by %d", on.Limit-on.Value, off.Value-off.Limit)
	if v := levels(s).Watches[0].Value; v <= 0 || v >= 1<<22 {
		t.Errorf("%d left", v)
	}

	// Another figure in its place is another watch, and is polled.
	var refused WatchErrors
	err := s.Watch([]Watch{{Figure: MemAvailable}, {Figure: PIDs, Total: 1 << 22, Below: always, Above: always}})
	if !errors.As(err, &refused) || len(refused) != 1 || refused[0].Watch != 0 {
		t.Fatalf("%v", err)
	}
	threads(1)()
	if e := event(t, s, 5*time.Second); e == nil || e.Watch != 1 || !e.On || e.Limit != always {
		t.Errorf("%+v", e)
	}
	watch(t, s)
	threads(10)()
	if e := event(t, s, 50*time.Millisecond); e != nil {
		t.Errorf("unwatched: %+v", e)
	}
}
