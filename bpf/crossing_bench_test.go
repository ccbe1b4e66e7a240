//go:build linux && (amd64 || arm64)

package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkCrossing is the time from a crossing to Go. For PIDs it counts from
// the fork. For the others a second Sensor is asked after every bit, and its first
// answer under the threshold is what counts: so the time can be negative, if the
// timer was faster than that. Use -benchtime 30x.
func BenchmarkCrossing(b *testing.B) {
	b.Run("pids", func(b *testing.B) {
		benchmarkCrossing(b, Watch{Figure: PIDs, Total: 1 << 22}, 50, func(func()) func() { return threads(100) })
	})
	b.Run("memory", func(b *testing.B) {
		benchmarkCrossing(b, Watch{Figure: WorkingSet, Total: 1 << 50}, 200<<20, func(step func()) func() {
			const bit = 256 << 10
			var all []func()
			for range 400 << 20 / bit {
				all = append(all, hog(b, bit))
				step()
			}
			return func() {
				for _, release := range all {
					release()
				}
			}
		})
	})
	b.Run("disk", func(b *testing.B) {
		d := newDisk(b)
		fd := d.open(unix.O_PATH)
		b.Cleanup(func() { unix.Close(fd) })
		benchmarkCrossing(b, Watch{Figure: FreeBytes, FD: fd}, 15<<20, func(step func()) func() {
			f, err := os.Create(filepath.Join(d.dir, "big"))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			chunk := make([]byte, 64<<10)
			for range 30 << 20 / len(chunk) {
				if _, err := f.Write(chunk); err != nil {
					b.Fatal(err)
				}
				step()
			}
			return func() { d.remove("big") }
		})
	})
}

func benchmarkCrossing(b *testing.B, w Watch, margin int64, down func(step func()) (up func())) {
	s, oracle := open(b, Tasks, Pressure), open(b, Tasks, Pressure)
	var delays, ticks []float64
	for b.Loop() {
		// As often as it takes: the machine does other things too.
		for attempt := 0; ; attempt++ {
			if attempt == 20 {
				b.Fatal("no crossing in 20 attempts")
			}
			if delay, n, ok := measureCrossing(b, s, oracle, w, margin, down); ok {
				delays, ticks = append(delays, float64(delay.Microseconds())), append(ticks, float64(n))
				break
			}
		}
	}
	slices.Sort(delays)
	slices.Sort(ticks)
	at := func(p float64) float64 { return delays[min(int(p*float64(len(delays))), len(delays)-1)] }
	l := levels(s)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(at(0.5), "p50-us")
	b.ReportMetric(at(0.99), "p99-us")
	b.ReportMetric(at(1), "max-us")
	b.ReportMetric(ticks[len(ticks)/2], "ticks/crossing")
	if l.Ticks > 0 {
		b.ReportMetric(float64(l.TickTime.Nanoseconds())/float64(l.Ticks), "ns/tick")
	}
}

// measureCrossing has the figure of w cross once.
func measureCrossing(b *testing.B, s, oracle *Sensor, w Watch, margin int64, down func(func()) func()) (delay time.Duration, ticks uint64, ok bool) {
	b.Helper()
	w.Below, w.Above = never, never
	watch(b, s, w)
	watch(b, oracle, w)
	for event(b, s, 0) != nil {
	}
	at := levels(s).Watches[0].Value
	w.Below, w.Above = at-margin, at-margin/2
	watch(b, s, w)
	before := levels(s).Ticks

	type arrival struct {
		*Event
		at time.Time
	}
	arrived := make(chan arrival, 1)
	go func() {
		e := event(b, s, 2*time.Second)
		arrived <- arrival{e, time.Now()}
	}()
	var crossed time.Time
	up := down(func() {
		if !crossed.IsZero() || oracle.Refresh() != nil {
			return
		}
		if levels(oracle).Watches[0].Value < w.Below {
			crossed = time.Now()
		}
	})
	a := <-arrived
	ticks = levels(s).Ticks - before
	up()
	if a.Event == nil || !a.On {
		return 0, 0, false
	}
	if w.Figure == PIDs {
		crossed = a.Time
	}
	return a.at.Sub(crossed), ticks, !crossed.IsZero()
}

// BenchmarkLevels is what a sample costs.
func BenchmarkLevels(b *testing.B) {
	s := open(b, Tasks, Pressure)
	watch(b, s, Watch{Figure: MemAvailable})
	var l Levels
	b.ReportAllocs()
	for b.Loop() {
		s.Levels(&l)
	}
}
