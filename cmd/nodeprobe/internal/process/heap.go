package process

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcPercent is how much the heap grows between two collections. With Go's 100, and
	// its smallest heap of 4 MiB, it takes minutes of scrapes until the heap has grown to
	// its goal for the first time, and then has 1.2 MB more. With 50, a collection of 1
	// to 2 ms is due every 50 s instead of every 105 s at 4 scrapes a minute.
	gcPercent = 50
	// maxFill bounds what fillHeap allocates, in bytes: more than twice what it takes with
	// gcPercent. All of it is locked until the next collection.
	maxFill = 8 << 20
)

// boundHeap sets the growth of the heap, unless the environment variable GOGC does.
// GOMEMLIMIT is a soft limit as always.
func boundHeap() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// fillHeap uses the heap once up to its goal, at which it is collected, so that what is
// allocated later is memory that was used before. On a node that is short of memory, a
// new page is paid for with a search for one that can be taken from somebody else.
//
// What the runtime then hands back to the kernel is what exceeds that by a tenth.
//
// With GOGC=off the heap has no goal, and is left as it is.
func fillHeap() {
	gogc := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	cycles := []metrics.Sample{{Name: "/gc/cycles/automatic:gc-cycles"}}
	metrics.Read(gogc)
	metrics.Read(cycles)
	if gogc[0].Value.Uint64() == math.MaxUint64 {
		return
	}
	page := os.Getpagesize()
	// The collection that ends the second cycle frees what the first one left.
	end, size := cycles[0].Value.Uint64()+2, 2*page
	for filled := 0; filled < maxFill && cycles[0].Value.Uint64() < end; filled += size {
		block := make([]byte, size)
		for i := 0; i < size; i += page {
			block[i] = 1
		}
		runtime.KeepAlive(block)
		metrics.Read(cycles)
	}
}
