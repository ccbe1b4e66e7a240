package arm

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeprobe/nodeprobe/bpf"
	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
)

// scene is a node whose kernel keeps a record of what it is asked to watch.
type scene struct {
	*Limits
	calls     [][]bpf.Watch
	refuse    error
	drift     int64 // of the kernel's figures
	settled   [64]bool
	logs      strings.Builder
	snapshot  probe.Snapshot
	estimates []pressure.Estimate
}

func newScene(t *testing.T, config pressure.Config) *scene {
	t.Helper()
	s := &scene{snapshot: snapshot()}
	s.Limits = New(Config{
		Logger: slog.New(slog.NewTextHandler(&s.logs, nil)),
		Levels: func(l *bpf.Levels) {
			if len(s.calls) > 0 {
				measure(l, s.calls[len(s.calls)-1], &s.snapshot, s.drift)
			}
		},
		Watch: func(ws []bpf.Watch) error {
			s.calls = append(s.calls, slices.Clone(ws))
			return s.refuse
		},
	})
	s.snapshot.NodeFs.Path = t.TempDir()
	s.estimates = estimates(t, config, &s.snapshot)
	return s
}

func (s *scene) after(d time.Duration) []bool {
	s.snapshot.Time = s.snapshot.Time.Add(d)
	relied, _ := s.Update(&s.snapshot, s.estimates, s.settled[:len(s.estimates)])
	return relied
}

// Each limit that can be watched is, and the next sample is due as the plan has it.
func TestUpdate(t *testing.T) {
	s := newScene(t, pressure.Config{
		Hard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "pid.available": "50%",
			"imagefs.available": "15%", // could not be read
		},
		MinimumReclaim: map[string]string{"nodefs.inodesFree": "100"},
	})
	if got, want := s.after(0), []bool{true, true, true, false, true}; !slices.Equal(got, want) {
		t.Errorf("relied on %v, want %v", got, want)
	}
	nodefs := pressure.Value{Percentage: 0.1}.Of(100 * gi)
	want := []bpf.Watch{
		{Figure: bpf.WorkingSet, Total: 8 * gi, Below: 100 << 20, Above: 110 << 20},
		// What only root may fill is free, and not available.
		{Figure: bpf.FreeBytes, Below: nodefs + 5*gi, Above: nodefs + gi + 5*gi},
		{Figure: bpf.FreeInodes, Below: 50, Above: 150},
		{Figure: bpf.PIDs, Total: 32768, Below: 16384, Above: 16384 + 327},
	}
	if len(s.calls) != 1 {
		t.Fatalf("%d calls", len(s.calls))
	}
	for i := range s.calls[0] {
		w := &s.calls[0][i]
		if disk := w.Figure == bpf.FreeBytes || w.Figure == bpf.FreeInodes; disk != (w.FD > 0) {
			t.Errorf("%v has descriptor %d", w.Figure, w.FD)
		}
		w.FD = 0
	}
	if diff := cmp.Diff(want, s.calls[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.Invalidate()
	if s.after(time.Second); len(s.calls) != 2 {
		t.Errorf("%d calls after Invalidate, want 2", len(s.calls))
	}
	if s.after(time.Second); len(s.calls) != 2 {
		t.Errorf("%d calls after that, want 2", len(s.calls))
	}
	s.cfg.Levels = func(l *bpf.Levels) { l.Watches[0].Pressure = 1 }
	if relied, again := s.Update(&s.snapshot, s.estimates, s.settled[:len(s.estimates)]); relied[0] || again != minAgain {
		t.Errorf("ahead of the sample: relied on %v, again after %s", relied, again)
	}
}

// The pods' limit is watched by the directory of their cgroup, and polled without one.
func TestPodsCgroup(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "100Mi"}, EnforceNodeAllocatable: []string{"pods"}})
	for _, step := range []struct {
		dir string
		ok  bool // the signal is
		fd  bool
	}{{"", false, false}, {s.snapshot.NodeFs.Path, true, true}, {"/no/such/directory", true, false}} {
		s.snapshot.PodsCgroup = step.dir
		s.snapshot.Signals[probe.AllocatableMemoryAvailable] = probe.Observation{Available: gi, Capacity: 6 * gi, OK: step.ok}
		s.Invalidate()
		if got, want := s.after(time.Second), []bool{true, step.fd}; !slices.Equal(got, want) {
			t.Errorf("%q: relied on %v, want %v", step.dir, got, want)
		}
		last := s.calls[len(s.calls)-1]
		if i := slices.IndexFunc(last, func(w bpf.Watch) bool { return w.Figure == bpf.CgroupMemory }); (i >= 0) != step.fd || step.fd && last[i].FD <= 0 {
			t.Errorf("%q: the kernel watches %+v", step.dir, last)
		}
	}
}

// A limit whose figures disagree is polled, and the log has the reason.
func TestDriftIsLogged(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%"}})
	s.drift = 2 * gi
	s.after(0)
	if got := s.after(time.Second); slices.Contains(got, true) {
		t.Errorf("relied on %v", got)
	}
	if want := "memory.available: the kernel's figure is off by 2147483648 bytes"; !strings.Contains(s.logs.String(), want) {
		t.Errorf("not logged: %s", s.logs.String())
	}
}

// What the kernel cannot watch is polled, and logged once.
func TestRefusedWatchesArePolled(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%", "pid.available": "5%"}})
	notExt4 := errors.New("not ext4")
	s.refuse = bpf.WatchErrors{{Watch: 1, Figure: bpf.FreeBytes, Err: notExt4}}
	for range 3 {
		if got, want := s.after(rearmInterval), []bool{true, false, true}; !slices.Equal(got, want) {
			t.Errorf("relied on %v, want %v", got, want)
		}
	}
	if n := strings.Count(s.logs.String(), "limits in the kernel"); n != 1 || !strings.Contains(s.logs.String(), "not ext4") {
		t.Errorf("logged %d times: %s", n, s.logs.String())
	}
	s.refuse = errors.New("sensor is closed")
	if got := s.after(rearmInterval); slices.Contains(got, true) {
		t.Errorf("relied on %v although nothing is in force", got)
	}
	s.refuse = nil
	if got := s.after(time.Second); slices.Contains(got, false) {
		t.Errorf("relied on %v after the kernel took them", got)
	}
}

// A sample that changes nothing about the limits allocates nothing, be the kernel ahead of
// it or not.
func TestUpdateAllocatesNothing(t *testing.T) {
	for name, edges := range map[string]bpf.Edges{"calm": 0, "ahead": 1} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%", "nodefs.available": "10%", "pid.available": "5%"}})
			s.after(0)
			s.cfg.Levels = func(l *bpf.Levels) { l.Watches[0].Pressure = edges }
			s.after(time.Second)
			calls := len(s.calls)
			if n := testing.AllocsPerRun(100, func() { s.Update(&s.snapshot, s.estimates, s.settled[:len(s.estimates)]) }); n > 0 || len(s.calls) != calls {
				t.Errorf("%v allocations, %d more calls", n, len(s.calls)-calls)
			}
		})
	}
}

// Other limits are logged, even if none of them is watched either.
func TestChangedLimitsAreLogged(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%"}})
	s.refuse = errors.New("sensor is closed")
	s.after(0)
	s.estimates = estimates(t, pressure.Config{Hard: map[string]string{"memory.available": "7%"}}, &s.snapshot)
	s.after(time.Second)
	s.after(time.Second)
	for _, want := range []string{"<5%", "<7%"} {
		if n := strings.Count(s.logs.String(), "memory.available"+want); n != 1 {
			t.Errorf("%s: logged %d times: %s", want, n, s.logs.String())
		}
	}
}

// A filesystem that cannot be opened any more costs its own watches. Descriptors are closed
// once the watches are set.
func TestUnopenableFilesystem(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"nodefs.available": "10%", "nodefs.inodesFree": "5%", "pid.available": "5%"}})
	var files []*os.File
	s.cfg.Open = func(path string) (*os.File, error) {
		file, err := openDirectory(path)
		files = append(files, file)
		return file, err
	}
	for _, step := range []struct {
		path string
		want []bool
	}{
		{s.snapshot.NodeFs.Path, []bool{true, true, true}},
		{"/no/such/directory", []bool{false, false, true}},
	} {
		s.snapshot.NodeFs.Path = step.path
		if got := s.after(time.Second); !slices.Equal(got, step.want) {
			t.Errorf("%s: relied on %v, want %v", step.path, got, step.want)
		}
	}
	if len(files) != 2 || files[0] == nil || files[0].Close() == nil {
		t.Errorf("opened %v, want one file, closed", files)
	}
}

// A filesystem that hangs when it is opened costs its own watches: the others are set, it
// is opened once, waited for once, and watched again when it is back.
func TestHungFilesystemIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}})
		var opens atomic.Int32
		gate := make(chan struct{})
		s.cfg.Open = func(path string) (*os.File, error) {
			opens.Add(1)
			<-gate
			return openDirectory(path)
		}
		start := time.Now()
		for range 5 {
			watched := s.after(10 * time.Second)
			for i, e := range s.estimates {
				if want := e.Signal == probe.MemoryAvailable || e.Signal == probe.PIDAvailable; watched[i] != want {
					t.Errorf("%s: watched %t, want %t", e.Threshold, watched[i], want)
				}
			}
		}
		if took := time.Since(start); took != openTimeout || opens.Load() != 1 {
			t.Errorf("took %s for %d calls, want %s for 1", took, opens.Load(), openTimeout)
		}
		close(gate)
		synctest.Wait()
		s.after(10 * time.Second)
		if last := s.calls[len(s.calls)-1]; !slices.ContainsFunc(last, func(w bpf.Watch) bool { return w.Figure == bpf.FreeBytes }) {
			t.Errorf("not watched when it is back: %+v", last)
		}
	})
}

// Whether a filesystem gave up is known without a limit on it, and is forgotten at once
// when another one takes its place.
func TestGaveUp(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"memory.available": "5%"}})
	s.after(0)
	path, slot := s.snapshot.NodeFs.Path, len(s.calls[0])-1
	if w := s.calls[0][slot]; w.Figure != bpf.FreeBytes || w.FD <= 0 || w.Below != -bpf.MaxFigure {
		t.Fatalf("watches %+v", s.calls[0])
	}
	var level bpf.Level
	s.cfg.Levels = func(l *bpf.Levels) { *l = bpf.Levels{}; l.Watches[slot] = level }
	for _, test := range []struct {
		level       bpf.Level
		path        string
		want, known bool
	}{
		{bpf.Level{}, path, false, true},
		{bpf.Level{ReadOnly: 1}, path, true, true},
		{bpf.Level{ReadOnly: 1}, "/elsewhere", false, false},
		{bpf.Level{ReadOnly: 1}, "", false, false},
		{bpf.Level{ReadOnly: 2}, path, false, true},
		{bpf.Level{ReadOnly: 1, Stale: 1}, path, false, true},
	} {
		level = test.level
		if got, known := s.GaveUp(test.path); got != test.want || known != test.known {
			t.Errorf("%q, %+v: %t, known %t", test.path, level, got, known)
		}
	}
	level = bpf.Level{ReadOnly: 2}
	s.snapshot.NodeFs.GaveUp = true // the one before did
	s.Invalidate()
	if _, again := s.Update(&s.snapshot, s.estimates, s.settled[:len(s.estimates)]); again != minAgain {
		t.Errorf("another filesystem is in its place: again after %s", again)
	}
	// What is not in force says nothing.
	for name, refuse := range map[string]error{
		"refused": bpf.WatchErrors{{Watch: slot, Figure: bpf.FreeBytes, Err: errors.New("no types")}},
		"failed":  errors.New("sensor is closed"),
	} {
		s.refuse, level = refuse, bpf.Level{ReadOnly: 1}
		s.Invalidate()
		s.after(time.Second)
		if is, known := s.GaveUp(path); is || known {
			t.Errorf("%s: gave up %t, known %t", name, is, known)
		}
	}
}

// A limit on inodes that the kernel does not watch there hides nothing.
func TestGaveUpWithInodes(t *testing.T) {
	s := newScene(t, pressure.Config{Hard: map[string]string{"nodefs.available": "5%", "nodefs.inodesFree": "5%"}})
	s.refuse = bpf.WatchErrors{{Watch: 1, Figure: bpf.FreeInodes, Err: errors.ErrUnsupported}}
	s.after(0)
	if s.calls[0][0].Figure != bpf.FreeBytes || s.calls[0][1].Figure != bpf.FreeInodes {
		t.Fatalf("watches %+v", s.calls[0])
	}
	s.cfg.Levels = func(l *bpf.Levels) { *l = bpf.Levels{}; l.Watches[0].ReadOnly = 1 }
	if is, known := s.GaveUp(s.snapshot.NodeFs.Path); !is || !known {
		t.Errorf("gave up %t, known %t", is, known)
	}
}
