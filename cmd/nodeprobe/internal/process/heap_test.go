package process

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// The heap has been at its goal once, and is collected.
func TestFillHeap(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(100) })
	debug.SetGCPercent(gcPercent)
	debug.FreeOSMemory()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fillHeap()
	runtime.ReadMemStats(&after)
	if after.NumGC < before.NumGC+2 {
		t.Errorf("%d collections", after.NumGC-before.NumGC)
	}
	if used := after.HeapSys - after.HeapReleased; used < before.NextGC {
		t.Errorf("%d bytes are in memory, and the goal was %d", used, before.NextGC)
	}
}

// What is filled would stay locked in a heap that is hardly ever collected, or never.
func TestFillHeapOfAnotherGOGC(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(100) })
	for percent, want := range map[int]uint64{-1: 0, 100_000: 8 << 20} {
		debug.SetGCPercent(percent)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		fillHeap()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got < want || got > want+1<<20 {
			t.Errorf("GOGC=%d: %d bytes", percent, got)
		}
	}
}

// GOGC wins.
func TestBoundHeap(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(100) })
	for value, want := range map[string]int{"": gcPercent, "70": 100, "off": 100} {
		debug.SetGCPercent(100)
		t.Setenv("GOGC", value)
		boundHeap()
		if got := debug.SetGCPercent(100); got != want {
			t.Errorf("GOGC=%q: %d, want %d", value, got, want)
		}
	}
}
