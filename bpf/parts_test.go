//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"os/exec"
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

// What is put to the programs where there is no timer: the lowest number of tasks that
// brings pressure about, the highest that ends one, and no state of another watch.
func TestAdoptTasks(t *testing.T) {
	pids := func(below, above int64) Watch { return Watch{Figure: PIDs, Total: 1000, Below: below, Above: above} }
	for name, tt := range map[string]struct {
		before         []Watch
		pressure       []uint64 // edges
		ws             []Watch
		limit, release uint64
		after          []uint64
		epochs         []uint64
	}{
		"nothing":              {nil, nil, nil, 0, 0, nil, nil},
		"first":                {nil, nil, []Watch{pids(100, 200)}, 900, 0, []uint64{0}, []uint64{1}},
		"the lowest":           {nil, nil, []Watch{pids(100, 200), pids(300, 400)}, 700, 0, nil, nil},
		"under pressure":       {[]Watch{pids(100, 200)}, []uint64{1}, []Watch{pids(100, 200)}, 0, 800, []uint64{1}, []uint64{0}},
		"one of two":           {[]Watch{pids(100, 200), pids(300, 400)}, []uint64{0, 3}, []Watch{pids(100, 200), pids(300, 400)}, 900, 600, nil, nil},
		"the first to end":     {[]Watch{pids(100, 200), pids(300, 400)}, []uint64{1, 3}, []Watch{pids(100, 200), pids(300, 400)}, 0, 800, nil, nil},
		"no longer watched":    {[]Watch{pids(100, 200)}, []uint64{1}, nil, 0, 0, []uint64{2}, []uint64{1}},
		"another index":        {[]Watch{pids(100, 200)}, []uint64{1}, []Watch{{}, pids(100, 200)}, 900, 0, []uint64{2, 0}, []uint64{1, 1}},
		"more than there are":  {nil, nil, []Watch{pids(2000, 3000)}, 1, 0, nil, nil},
		"and never over again": {[]Watch{pids(2000, 3000)}, []uint64{1}, []Watch{pids(2000, 3000)}, 0, 0, nil, nil},
	} {
		var before [MaxWatches]nodeprobeWant
		var levels nodeprobeWatchLevels
		for i := range tt.before {
			before[i] = tt.before[i].want()
		}
		for i, n := range tt.pressure {
			levels.Watch[i].Pressure = n
		}
		wants, limit, release := adoptTasks(tt.ws, &before, &levels)
		if limit != tt.limit || release != tt.release {
			t.Errorf("%s: limit %d, release %d, want %d, %d", name, limit, release, tt.limit, tt.release)
		}
		for i, n := range tt.after {
			if got := levels.Watch[i].Pressure; got != n {
				t.Errorf("%s: %d edges of %d, want %d", name, got, i, n)
			}
		}
		for i, n := range tt.epochs {
			if got := levels.Watch[i].Epoch; got != n {
				t.Errorf("%s: epoch %d of %d, want %d", name, got, i, n)
			}
		}
		for i := range wants {
			if watched := i < len(tt.ws) && tt.ws[i].Figure != 0; watched != (wants[i].Figure != 0) {
				t.Errorf("%s: watch %d is %+v", name, i, wants[i])
			}
		}
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
	s := open(t, Tasks)
	withoutTimer(s)
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
	// Any fork tells. A thread need not be a new one.
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	if e := event(t, s, 5*time.Second); e == nil || e.Watch != 1 || !e.On || e.Limit != always {
		t.Errorf("%+v", e)
	}
	watch(t, s)
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	if e := event(t, s, 50*time.Millisecond); e != nil {
		t.Errorf("unwatched: %+v", e)
	}
}
