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

// A heap that is never collected is no reason to go on for ever.
func TestFillHeapWithoutCollector(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(100) })
	debug.SetGCPercent(-1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fillHeap()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got < maxFill || got > 2*maxFill {
		t.Errorf("%d bytes", got)
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
