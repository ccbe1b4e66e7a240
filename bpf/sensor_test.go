//go:build linux && (amd64 || arm64)

package bpf

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
)

var allSignals = SignalSet(0).With(Tasks).With(OOM).With(Reclaim).With(BlockIO).With(Pressure)

func TestTasksAreCounted(t *testing.T) {
	s := open(t, Tasks)
	const n = 20
	before := s.Counters()
	if total := loadavgTotal(t); !before.Has.Has(Tasks) || before.Tasks < total/2 {
		t.Errorf("%+v before a fork, /proc/loadavg %d", before, total)
	}
	for range n {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	c := s.Counters()
	if got := c.Forks - before.Forks; got < n {
		t.Errorf("%d forks counted after %d", got, n)
	}
	// RCU has the say in when.
	eventually(t, "the exits", func() bool { return s.Counters().Exits-before.Exits >= n })

	// The kernel's own count of tasks leaves out those of CPU 0's idle loop and
	// the like; and this machine is not idle.
	const bound = 8
	var tasks, total uint64
	eventually(t, "Tasks near the total of /proc/loadavg", func() bool {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
		tasks, total = s.Counters().Tasks, loadavgTotal(t)
		return max(tasks, total)-min(tasks, total) <= bound
	})
	t.Logf("Tasks %d, /proc/loadavg %d", tasks, total)
}

// loadavgTotal returns the number of tasks in the 4th field of /proc/loadavg.
func loadavgTotal(t *testing.T) uint64 {
	t.Helper()
	_, rest, _ := strings.Cut(strings.Fields(readAll(t, "/proc/loadavg"))[3], "/")
	total, err := strconv.ParseUint(rest, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return total
}

func TestHooksNameEachProgram(t *testing.T) {
	s := open(t, Tasks, OOM, Reclaim, BlockIO, Pressure)
	var got []string
	for _, h := range s.Hooks() {
		got = append(got, h.Signal.String()+" "+h.Name)
		if h.Err != nil || h.Remedy != "" {
			t.Errorf("%s is attached, with error %v and remedy %q", h.Name, h.Err, h.Remedy)
		}
	}
	blockIO := "blockio tp_btf/block_rq_error"
	if got[len(got)-2] == "blockio tp_btf/block_rq_complete" { // before Linux 5.18
		blockIO = got[len(got)-2]
	}
	want := []string{
		"tasks tp_btf/task_newtask",
		"tasks tp_btf/sched_process_free",
		"oom tp_btf/mark_victim",
		"reclaim tp_btf/mm_vmscan_direct_reclaim_begin",
		"reclaim tp_btf/mm_vmscan_direct_reclaim_end",
		"reclaim tp_btf/mm_vmscan_memcg_reclaim_begin",
		"reclaim tp_btf/mm_vmscan_memcg_reclaim_end",
		blockIO,
		"pressure bpf_timer/tick",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCountersAllocateNothing(t *testing.T) {
	s := open(t, Tasks)
	if n := testing.AllocsPerRun(100, func() { s.Counters() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestDisabled(t *testing.T) {
	s := Open(Options{Disabled: true})
	defer closeSensor(t, s)
	if got, want := len(s.Hooks()), len(programs()); got != want {
		t.Errorf("%d hooks, want %d", got, want)
	}
	for _, h := range s.Hooks() {
		if h.Attached || !errors.Is(h.Err, ErrDisabled) || h.Remedy == "" {
			t.Errorf("%+v", h)
		}
	}
	if diff := cmp.Diff(Counters{}, s.Counters()); diff != "" {
		t.Error(diff)
	}
	if st := s.Stats(); st != nil {
		t.Errorf("Stats: %v", st)
	}
}

// A Sensor without events keeps its reader waiting, like one whose events do not
// come, so that the caller needs no case for it.
func TestCloseEndsReadEvent(t *testing.T) {
	for name, opts := range map[string]Options{"attached": {}, "disabled": {Disabled: true}} {
		t.Run(name, func(t *testing.T) {
			s := Open(opts)
			done := make(chan error)
			go func() {
				for {
					var e Event
					if err := s.ReadEvent(&e); err != nil {
						done <- err
						return
					}
				}
			}()
			closeSensor(t, s)
			if err := <-done; !errors.Is(err, os.ErrClosed) {
				t.Errorf("ReadEvent: %v", err)
			}
			closeSensor(t, s)
			if err := s.ReadEvent(new(Event)); !errors.Is(err, os.ErrClosed) {
				t.Errorf("ReadEvent after Close: %v", err)
			}
			s.Counters()
			if st := s.Stats(); st != nil {
				t.Errorf("Stats after Close: %v", st)
			}
		})
	}
}

// tampered opens a Sensor with other programs than those that are built in.
func tampered(t *testing.T, change func(*ebpf.CollectionSpec)) *Sensor {
	t.Helper()
	open(t, Tasks, OOM, Reclaim, BlockIO, Pressure).Close()
	spec, err := loadNodeprobe()
	if err != nil {
		t.Fatal(err)
	}
	change(spec)
	s := newSensor()
	s.loadSpec(Options{}, spec)
	t.Cleanup(func() { closeSensor(t, s) })
	return s
}

func TestMissingTracepointCostsItsSignal(t *testing.T) {
	for _, p := range programs() {
		if p.timer != "" {
			continue // TestHasTimers
		}
		t.Run(p.name, func(t *testing.T) {
			s := tampered(t, func(spec *ebpf.CollectionSpec) {
				for _, name := range []string{p.name, p.instead} {
					if prog := spec.Programs[name]; prog != nil {
						prog.AttachTo = "nodeprobe_no_such_tracepoint"
					}
				}
			})
			if want := allSignals &^ (1 << p.signal); s.has != want {
				t.Errorf("has signals %b, want %b", s.has, want)
			}
			for _, h := range s.Hooks() {
				if h.Signal != p.signal {
					continue
				}
				if h.Attached || !errors.Is(h.Err, errors.ErrUnsupported) ||
					!strings.Contains(h.Err.Error(), p.name) || !strings.Contains(h.Remedy, "Linux 5.") {
					t.Errorf("%+v", h)
				}
				t.Logf("%s: %v\n%s", h.Name, h.Err, h.Remedy)
			}
		})
	}
}

func TestBlockErrorFallsBack(t *testing.T) {
	s := tampered(t, func(spec *ebpf.CollectionSpec) {
		spec.Programs[nodeprobeProgBlockRqError].AttachTo = "nodeprobe_no_such_tracepoint"
		// On a kernel that has block_rq_error the flag may mean something else.
		if err := spec.Variables[nodeprobeVarRqfQuiet].Set(uint32(0)); err != nil {
			t.Fatal(err)
		}
	})
	hooks := s.Hooks()
	if !slices.ContainsFunc(hooks, func(h Hook) bool { return h.Name == "tp_btf/block_rq_complete" && h.Attached }) {
		t.Errorf("%+v", hooks)
	}
	before := s.Counters().BlockErrors
	failBlockIO(t)
	if s.Counters().BlockErrors == before {
		t.Error("no block error counted")
	}
}

func TestRefusedProgramCostsItsSignal(t *testing.T) {
	for signal, name := range map[Signal]string{OOM: nodeprobeProgMarkVictim, Pressure: nodeprobeProgPressure} {
		t.Run(signal.String(), func(t *testing.T) {
			s := tampered(t, func(spec *ebpf.CollectionSpec) {
				// Returns what was never set.
				spec.Programs[name].Instructions = asm.Instructions{asm.Return()}
			})
			if want := allSignals &^ (1 << signal); s.has != want {
				t.Errorf("has signals %b, want %b", s.has, want)
			}
			for _, h := range s.Hooks() {
				var refused *ebpf.VerifierError
				if h.Signal == signal && (h.Attached || !errors.As(h.Err, &refused) || !strings.Contains(h.Remedy, "log")) {
					t.Errorf("%+v", h)
				}
			}
			if err := s.Watch([]Watch{{Figure: MemAvailable}}); (err != nil) != (signal == Pressure) {
				t.Errorf("Watch: %v", err)
			}
		})
	}
}

func TestUnreadableTypes(t *testing.T) {
	needRoot(t)
	types, err := os.ReadFile(kernelBTF)
	if err != nil {
		lacking(t, "%v", err)
	}
	for name, content := range map[string][]byte{
		"empty":     {},
		"garbage":   []byte(strings.Repeat("garbage ", 1000)),
		"header":    types[:24],
		"truncated": types[:len(types)/2],
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "btf")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			checkNoTypes(t, path)
		})
	}
	t.Run("missing", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "btf")
		if s := checkNoTypes(t, path); !errors.Is(s.Hooks()[0].Err, os.ErrNotExist) {
			t.Errorf("%v", s.Hooks()[0].Err)
		}
	})
}

func checkNoTypes(t *testing.T, path string) *Sensor {
	t.Helper()
	s := Open(Options{BTF: path})
	defer closeSensor(t, s)
	if s.Counters().Has != 0 {
		t.Error("has signals")
	}
	for _, h := range s.Hooks() {
		if h.Attached || !strings.Contains(h.Err.Error(), path) || !strings.Contains(h.Remedy, path) {
			t.Errorf("%+v", h)
		}
	}
	t.Logf("%v\n%s", s.Hooks()[0].Err, s.Hooks()[0].Remedy)
	return s
}

func TestTypesFromFile(t *testing.T) {
	open(t, Tasks, OOM, Reclaim, BlockIO, Pressure).Close()
	s := Open(Options{BTF: kernelBTF})
	defer closeSensor(t, s)
	if s.has != allSignals {
		t.Errorf("has signals %b", s.has)
	}
}

func TestNothingLeaks(t *testing.T) {
	fds := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	cycle := func() {
		open(t, Tasks, OOM, Reclaim, BlockIO, Pressure).Close()
		Open(Options{BTF: "/dev/null"}).Close()
		tampered(t, func(spec *ebpf.CollectionSpec) {
			spec.Programs[nodeprobeProgMmVmscanMemcgReclaimEnd].Instructions = asm.Instructions{asm.Return()}
		}).Close()
	}
	cycle() // What the runtime and the library keep for good.
	wantFDs, wantGoroutines := fds(), runtime.NumGoroutine()
	for range 3 {
		cycle()
	}
	if got := fds(); got > wantFDs { // fewer, if what an earlier test has left was collected
		t.Errorf("%d file descriptors, %d before", got, wantFDs)
	}
	eventually(t, "as few goroutines as before", func() bool { return runtime.NumGoroutine() <= wantGoroutines })
}

// For the race detector.
func TestConcurrentUse(t *testing.T) {
	s := open(t, Tasks)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 100 {
				s.Counters()
				s.Stats()
				s.Hooks()
				s.Levels(new(Levels))
				_ = s.Refresh()
				_ = s.Watch([]Watch{{Figure: MemAvailable, Below: always, Above: always}})
			}
		})
	}
	wg.Go(func() {
		for s.ReadEvent(new(Event)) == nil {
		}
	})
	wg.Go(func() { _ = s.Close() })
	wg.Wait()
}

func TestStats(t *testing.T) {
	s := open(t, Tasks)
	accounting, err := ebpf.EnableStats(0)
	if err != nil {
		lacking(t, "%v", err)
	}
	defer accounting.Close()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	stats := s.Stats()
	if len(stats) == 0 {
		t.Fatal("no stats")
	}
	got := stats[0]
	if got.Signal != Tasks || got.Name != "tp_btf/task_newtask" || got.Runs == 0 || got.RunTime <= time.Duration(0) {
		t.Errorf("%+v", got)
	}
}
