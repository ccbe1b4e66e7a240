package main

import (
	"runtime"
	"sync"
)

// spareThreads is more than are ever blocked in the kernel at a time: the notifier,
// the ring buffer, two statfs workers, whoever reads files or writes logs. There
// are nine threads in all under load; each costs about 15 KiB.
const spareThreads = 10

// makeThreads has the runtime start n threads and keep them. Go starts a thread
// when all it has are blocked, and the program dies if the kernel refuses: as it
// does on a node that has run out of PIDs, where we are needed most.
func makeThreads(n int) {
	var held, ended sync.WaitGroup
	release := make(chan struct{})
	held.Add(n)
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // else the thread ends too
			held.Done()
			<-release
		})
	}
	held.Wait()
	close(release)
	ended.Wait()
}
