//go:build linux && (amd64 || arm64)

package bpf

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A figure that is between the thresholds causes no event, however it moves.
func TestDanceIsSilent(t *testing.T) {
	s := open(t, Tasks, Pressure)
	watch(t, s, Watch{Figure: MemAvailable, Below: never, Above: always, MaxRate: maxRate})
	before := s.kernel.timer.get().Watch[0].Value
	changes := 0
	for range 20 {
		release := hogBlocks(t, 8<<20)
		if err := s.Refresh(); err != nil {
			t.Fatal(err)
		}
		release()
		if v := levels(s).Watches[0].Value; v != before {
			changes, before = changes+1, v
		}
	}
	if changes == 0 {
		t.Error("the figure never changed")
	}
	if e := event(t, s, 0); e != nil {
		t.Errorf("%+v", e)
	}
}

// hog takes memory, until release is called.
func hog(t testing.TB, size int) (release func()) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return sync.OnceFunc(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
}

// hogBlocks takes memory in blocks of 4 MiB, as the ring buffer of a packet socket.
// Pages that go through the CPUs' own lists of free pages are no good for the test
// of MemAvailable: that does not count what is in there, and it can be hundreds of
// MiB that a process frees and takes.
func hogBlocks(t testing.TB, size int) (release func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		lacking(t, "packet socket: %v", err)
	}
	const block, frame = 4 << 20, 64 << 10
	ring := unix.TpacketReq{
		Block_size: block, Block_nr: uint32(size / block),
		Frame_size: frame, Frame_nr: uint32(size / frame),
	}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &ring); err != nil {
		unix.Close(fd)
		lacking(t, "ring buffer of %d MiB: %v", size>>20, err)
	}
	return sync.OnceFunc(func() { unix.Close(fd) })
}

// threads starts n threads, which end when release is called.
func threads(n int) (release func()) {
	var started, ended sync.WaitGroup
	end := make(chan struct{})
	for range n {
		started.Add(1)
		ended.Go(func() {
			runtime.LockOSThread() // and never unlocks it
			started.Done()
			<-end
		})
	}
	started.Wait()
	return sync.OnceFunc(func() {
		close(end)
		ended.Wait()
	})
}

// crossings moves a figure down by more than margin and back, and checks both
// events. A machine that does other things may undo the one or the other: then it
// is tried again.
func crossings(t testing.TB, s *Sensor, w Watch, margin int64, down func() (up func())) (on, off *Event) {
	t.Helper()
	for range 10 {
		w.Below, w.Above = never, never
		watch(t, s, w)
		for event(t, s, 0) != nil {
		}
		at, seq := levels(s).Watches[0].Value, uint64(levels(s).Watches[0].Pressure)
		w.Below, w.Above = at-margin, at-margin/2
		watch(t, s, w)
		up := down()
		on = event(t, s, 5*time.Second)
		up()
		if on == nil {
			continue
		}
		if off = event(t, s, 5*time.Second); off == nil {
			continue
		}
		if on.Kind != Crossing || !on.On || on.Seq != seq+1 || on.Limit != w.Below || on.Value >= w.Below {
			t.Errorf("%+v after %+v", on, w)
		}
		if off.Kind != Crossing || off.On || off.Seq != seq+2 || off.Limit != w.Above || off.Value < w.Above {
			t.Errorf("%+v after %+v", off, w)
		}
		return on, off
	}
	t.Fatalf("no crossing in 10 attempts; %+v", levels(s).Watches[0])
	return nil, nil
}

func TestPIDsCross(t *testing.T) {
	s := open(t, Tasks, Pressure)
	w := Watch{Figure: PIDs, Total: 1 << 22}
	on, off := crossings(t, s, w, 150, func() func() { return threads(300) })
	// The fork itself noticed: the timer would have come too late or too early.
	// A few others may have allocated their PIDs in the meantime.
	if on.Value < on.Limit-16 {
		t.Errorf("noticed at %d, threshold %d", on.Value, on.Limit)
	}
	t.Logf("down %d under %d, up %d over %d", on.Value, on.Limit, off.Value, off.Limit)

	total := int64(loadavgTotal(t))
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d PIDs, /proc/loadavg %d", w.Total-levels(s).Watches[0].Value, total)
}

func TestMemoryCrosses(t *testing.T) {
	for _, tt := range []struct {
		Watch
		hog func(testing.TB, int) func()
	}{
		{Watch{Figure: WorkingSet, Total: 1 << 50}, hog},
		{Watch{Figure: MemAvailable}, hogBlocks},
	} {
		t.Run(tt.Figure.String(), func(t *testing.T) {
			s := open(t, Tasks, Pressure)
			on, off := crossings(t, s, tt.Watch, 100<<20, func() func() { return tt.hog(t, 300<<20) })
			t.Logf("down by %d KiB too many, up by %d KiB", (on.Limit-on.Value)/1024, (off.Value-off.Limit)/1024)
		})
	}
}
