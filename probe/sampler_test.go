package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeprobe/nodeprobe/bpf"
)

func TestNewRejects(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`Procfs: "proc"`:             func(c *Config) { c.Procfs = "proc" },
		`Sysfs: ""`:                  func(c *Config) { c.Sysfs = "" },
		`Rootfs: "."`:                func(c *Config) { c.Rootfs = "." },
		`RootDirectory: "var/lib"`:   func(c *Config) { c.RootDirectory = "var/lib" },
		`ImageDirectories: "images"`: func(c *Config) { c.ImageDirectories = []string{"/a", "images"} },
		"Interval: 0s":               func(c *Config) { c.Interval = 0 },
		"Interval: -1s":              func(c *Config) { c.Interval = -time.Second },
		"StatfsTimeout: -1ns":        func(c *Config) { c.StatfsTimeout = -1 },
	} {
		cfg := realConfig()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %s", err, want)
		}
	}
}

// realConfig is for the machine that the test runs on.
func realConfig() Config {
	return Config{Procfs: "/proc", Sysfs: "/sys", Rootfs: "/", RootDirectory: "/var/lib/kubelet", Interval: 10 * time.Second}
}

// runTest runs a Sampler in a bubble. It gives test a function that returns how
// many samples there have been by now.
func runTest(t *testing.T, test func(s *Sampler, samples func() int64), change ...func(*Config)) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t, change...)
		defer s.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		var samples atomic.Int64
		done := make(chan error)
		go func() { done <- s.Run(ctx, func(*Snapshot) time.Duration { samples.Add(1); return 0 }) }()
		test(s, func() int64 { synctest.Wait(); return samples.Load() })
		cancel(io.EOF)
		if err := <-done; !errors.Is(err, io.EOF) {
			t.Errorf("Run: %v, want the cause", err)
		}
	})
}

func TestRunSamplesAtOnceAndAtEachInterval(t *testing.T) {
	runTest(t, func(s *Sampler, samples func() int64) {
		for want := range int64(5) {
			if got := samples(); got != want+1 {
				t.Errorf("after %d intervals: %d samples", want, got)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

func TestWake(t *testing.T) {
	runTest(t, func(s *Sampler, samples func() int64) {
		before := samples()
		s.Wake(CauseEvent)
		if got := samples() - before; got != 1 {
			t.Errorf("%d samples after one Wake, want 1", got)
		}
		before = samples()
		s.Wake(CauseView)
		time.Sleep(10 * time.Second)
		if got := samples() - before; got != 2 {
			t.Errorf("%d samples after one Wake and one interval, want 2", got)
		}
	})
}

// What happens during a sample may be after what it has read: it needs another.
// However many events there are, it is one.
func TestWakeDuringSample(t *testing.T) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var samples int
		err := s.Run(ctx, func(*Snapshot) time.Duration {
			samples++
			if samples == 1 {
				for range 1000 {
					s.Wake(CauseEvent) // must not block: nobody receives now
				}
				time.AfterFunc(time.Second, cancel)
			}
			return 0
		})
		if samples != 2 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d samples, %v; want 2", samples, err)
		}
	})
}

// A limit that is near may not wait for the interval, and one that is far does
// not make it longer.
func TestRunSamplesWhenWished(t *testing.T) {
	n := fullMachine.boot(t)
	reg := prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t, func(c *Config) { c.Registerer = reg })
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		wishes := []time.Duration{100 * time.Millisecond, time.Second, 0, -1, time.Hour, 10 * time.Second}
		var begun time.Time
		var waited []time.Duration
		err := s.Run(ctx, func(*Snapshot) time.Duration {
			if !begun.IsZero() {
				waited = append(waited, time.Since(begun))
			}
			if begun = time.Now(); len(waited) == len(wishes) {
				cancel()
				return 0
			}
			return wishes[len(waited)]
		})
		const interval = 10 * time.Second
		want := []time.Duration{100 * time.Millisecond, time.Second, interval, interval, interval, interval}
		if d := cmp.Diff(want, waited); d != "" || !errors.Is(err, context.Canceled) {
			t.Errorf("%v; waited (-want +got):\n%s", err, d)
		}
	})
	want := []string{`nodeprobe_sampler_wakeups_total{cause="near"} 2`, `nodeprobe_sampler_wakeups_total{cause="tick"} 5`}
	if d := cmp.Diff(want, counted(t, reg)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// counted returns the causes that there have been wake-ups for.
func counted(t *testing.T, reg *prometheus.Registry) []string {
	t.Helper()
	return slices.DeleteFunc(scrape(t, reg, "nodeprobe_sampler_wakeups_total"), func(line string) bool {
		return strings.HasSuffix(line, " 0")
	})
}

func TestRunCountsWakeups(t *testing.T) {
	reg := prometheus.NewRegistry()
	runTest(t, func(s *Sampler, samples func() int64) {
		for range 3 {
			s.Wake(CauseEvent)
			samples()
		}
		s.Wake(CauseView)
		time.Sleep(20 * time.Second)
		samples()
	}, func(c *Config) { c.Registerer = reg })
	want := []string{
		`nodeprobe_sampler_wakeups_total{cause="event"} 3`,
		`nodeprobe_sampler_wakeups_total{cause="tick"} 3`,
		`nodeprobe_sampler_wakeups_total{cause="view"} 1`,
	}
	if d := cmp.Diff(want, counted(t, reg)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestHealthy(t *testing.T) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t)
		defer s.Close()
		const most = 3*10*time.Second + 2*defaultStatfsTimeout
		probetest.CheckError(t, s.Healthy(), errNoSample)
		s.Sample()
		probetest.CheckError(t, s.Healthy(), nil)
		time.Sleep(most)
		probetest.CheckError(t, s.Healthy(), nil)
		time.Sleep(time.Second)
		probetest.CheckError(t, s.Healthy(), nil) // or has the machine stood still?
		time.Sleep(defaultStatfsTimeout - 1)
		probetest.CheckError(t, s.Healthy(), nil)
		time.Sleep(time.Nanosecond)
		if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), "37s old") {
			t.Errorf("error %v", err)
		}
		s.Sample()
		probetest.CheckError(t, s.Healthy(), nil)
	})
}

// A machine that stood still, now and then, was not ill; whoever asks before the
// sampler has had its turn is not told so. A sampler that is stuck is still found
// out the next time.
func TestHealthyAfterPause(t *testing.T) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t)
		defer s.Close()
		for range 3 {
			s.Sample()
			time.Sleep(8 * time.Hour)
			probetest.CheckError(t, s.Healthy(), nil)
		}
		time.Sleep(defaultStatfsTimeout)
		if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), "8h0m2s old") {
			t.Errorf("error %v", err)
		}
	})
}

// A first sample that does not end must not look as if it were about to.
func TestHealthyBeforeFirstSample(t *testing.T) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		kernel := stuckKernel(make(chan struct{}))
		s := n.sampler(t, func(c *Config) { c.Kernel = kernel })
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx, func(*Snapshot) time.Duration { return 0 }) }()
		time.Sleep(time.Second)
		if err := s.Healthy(); !errors.Is(err, errNoSample) {
			t.Errorf("after 1 s: %v", err)
		}
		time.Sleep(time.Minute)
		if err := s.Healthy(); !errors.Is(err, errNoSample) || !strings.Contains(err.Error(), "after 34s") {
			t.Errorf("after 1 min: %v", err)
		}
		close(kernel)
		time.Sleep(minPause)
		synctest.Wait()
		probetest.CheckError(t, s.Healthy(), nil)
		cancel()
		<-done
	})
}

// stuckKernel answers when it is closed.
type stuckKernel chan struct{}

func (k stuckKernel) Counters() bpf.Counters { <-k; return bpf.Counters{Forks: 7} }

func TestKernelCounters(t *testing.T) {
	kernel := make(stuckKernel)
	close(kernel)
	s := fullMachine.boot(t).sampler(t, func(c *Config) { c.Kernel = kernel })
	if got := s.Sample().Kernel.Forks; got != 7 {
		t.Errorf("%d forks, want 7", got)
	}
}

// Last hands out a copy: what has it must not see the next sample.
func TestLastIsACopy(t *testing.T) {
	n := fullMachine.boot(t)
	s := n.sampler(t)
	if snap, ok := s.Last(); ok {
		t.Errorf("before the first sample: %+v", snap)
	}
	s.Sample()
	before, ok := s.Last()
	if !ok {
		t.Fatal("no snapshot after a sample")
	}
	n.Write(t, "proc/loadavg", "0 0 0 5/6 7\n")
	s.Sample()
	if d := diff(fullSnapshot(), before); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if after, _ := s.Last(); after.Tasks.Total != 6 {
		t.Errorf("%+v", after.Tasks)
	}
}

// What rarely changes is read once a minute, and is there in between.
func TestFactsAreReadOnceAMinute(t *testing.T) {
	n := fullMachine.boot(t)
	synctest.Test(t, func(t *testing.T) {
		s := n.sampler(t)
		defer s.Close()
		s.Sample()
		n.Write(t, "sys/devices/system/cpu/online", "0-7\n")
		n.Write(t, "etc/os-release", "PRETTY_NAME=new\n")
		time.Sleep(machineInterval - time.Nanosecond)
		if d := diff(fullSnapshot(), *s.Sample()); d != "" {
			t.Errorf("within a minute (-want +got):\n%s", d)
		}
		time.Sleep(time.Nanosecond)
		want := fullSnapshot()
		want.Capacity.CPUs, want.Machine.OSImage = 8, "new"
		if d := diff(want, *s.Sample()); d != "" {
			t.Errorf("after a minute (-want +got):\n%s", d)
		}
	})
}

// For the race detector: everything that is said to be safe, at once.
func TestConcurrentUse(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := fullMachine.boot(t).sampler(t, func(c *Config) { c.Registerer, c.Interval = reg, time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx, func(*Snapshot) time.Duration { return 0 }) }()
	for range 100 {
		s.Wake(CauseEvent)
		s.Last()
		s.Healthy()
		if _, err := reg.Gather(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	<-done
}

func TestNames(t *testing.T) {
	for i := range NumSignals {
		if back, ok := ParseSignal(Signal(i).String()); !ok || back != Signal(i) {
			t.Errorf("%s is parsed as %s, %t", Signal(i), back, ok)
		}
	}
	for _, name := range []string{"", "memory", "Memory.available", "memory.available ", Signal(200).String()} {
		if sig, ok := ParseSignal(name); ok {
			t.Errorf("%q is %s", name, sig)
		}
	}
	seen := map[string]bool{}
	for i := range NumSources {
		name := Source(i).String()
		if name == "" || seen[name] {
			t.Errorf("source %d is called %q", i, name)
		}
		seen[name] = true
	}
	for i := range NumResources {
		if src := SourcePressureCPU + Source(i); src.String() != "pressure_"+Resource(i).String() {
			t.Errorf("the source of %s is %s", Resource(i), src)
		}
	}
}

func TestSamplerLeaksNoDescriptor(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(entries)
	}
	n := fullMachine.boot(t)
	before := open()
	for range 3 {
		s := n.sampler(t)
		for i := range 5 {
			n.Write(t, "proc/meminfo", fmt.Sprintf("broken %d\n", i))
			resample(s)
		}
		s.Close()
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
