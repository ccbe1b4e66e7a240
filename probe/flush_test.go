package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

// For these files the kernel adds up what each cgroup has counted since somebody last
// asked, which takes longer the more of them there are. The usage of the root is one
// of them from Linux 5.14 to 6.4.
var flushes = []string{"memory.stat", "memory.numa_stat", "memory.usage_in_bytes", "cpu.stat", "io.stat"}

// Nothing of the kind is read at each sample: a file that is stays open.
func TestSampleKeepsNoFileThatFlushes(t *testing.T) {
	for name, cfg := range map[string]Config{
		"this machine": realConfig(),
		"v2":           fullMachine.without("sys/fs/cgroup/kubepods.slice").boot(t).config(),
		"v1":           fullMachine.v1().without("sys/fs/cgroup/memory/kubepods").boot(t).config(),
	} {
		s, err := New(cfg)
		probetest.Must(t, err)
		for range 2 {
			s.Sample()
		}
		open, err := filepath.Glob("/proc/self/fd/*")
		probetest.Must(t, err)
		meminfo := false
		for _, fd := range open {
			path, _ := os.Readlink(fd) // one may be closed by now
			dir, file := filepath.Split(path)
			meminfo = meminfo || path == filepath.Join(cfg.Procfs, "meminfo")
			for _, f := range flushes {
				if file == f && strings.HasPrefix(dir, cfg.Sysfs+"/") && !strings.Contains(dir, "/kubepods") {
					t.Errorf("%s: %s is kept open", name, path)
				}
			}
		}
		if !meminfo {
			t.Errorf("%s: not even meminfo is open: this test looks in the wrong place", name)
		}
		s.Close()
	}
}

// The pods' memory.stat is read as often as it is cheap, and each second where it is
// not: that takes a hundredth of the time at most, but where one read takes longer.
func TestPodsAreReadWithinBounds(t *testing.T) {
	for _, test := range []struct {
		took, every time.Duration
		want        int // reads of 100 samples
	}{
		{10 * time.Microsecond, 10 * time.Millisecond, 100},
		{2 * time.Millisecond, 100 * time.Millisecond, 50},
		{7 * time.Millisecond, 100 * time.Millisecond, 15},
		{50 * time.Millisecond, 100 * time.Millisecond, 10},
		{50 * time.Millisecond, 10 * time.Second, 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newMemoryReader("/nowhere")
			reads := 0
			r.readPods = func(error) (Observation, error) {
				reads++
				time.Sleep(test.took)
				return observe(int64(reads), 1000), nil
			}
			ticks := time.NewTicker(test.every)
			defer ticks.Stop()
			for range 100 {
				snap := Snapshot{Time: time.Now()}
				r.read(&snap)
				if got := snap.Signals[AllocatableMemoryAvailable]; got != observe(int64(reads), 1000) {
					t.Errorf("got %+v after %d reads", got, reads)
				}
				<-ticks.C
			}
			if reads != test.want {
				t.Errorf("a read that takes %s, samples every %s: %d reads, want %d", test.took, test.every, reads, test.want)
			}
		})
	}
}

// What cannot be read is asked for again by the next sample, and so is what may
// have come.
func TestPodsThatCannotBeReadAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMemoryReader("/nowhere")
		reads := 0
		answers := []Observation{{Err: hotfile.ErrZero}, {}, {OK: true}}
		r.readPods = func(error) (Observation, error) {
			time.Sleep(time.Second)
			reads++
			return answers[reads-1], answers[reads-1].Err
		}
		for i := range answers {
			snap := Snapshot{Time: time.Now()}
			r.read(&snap)
			if reads != i+1 {
				t.Errorf("sample %d: %d reads", i, reads)
			}
			probetest.CheckError(t, snap.Errors[SourcePodsCgroup], answers[i].Err)
		}
	})
}
