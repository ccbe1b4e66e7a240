package process

import (
	"fmt"
	"os"
	"runtime"
	"sync"
)

// SpareThreads is more than are ever blocked in the kernel at once, when every disk hangs:
//
//   - 4 of the runtime and of what waits for the kernel: monitor, poller, notifier, ring
//     buffer
//   - 5 of a sample: statfs of two filesystems, the mount table, machine ID, os-release
//   - 3 that open filesystems to be watched, and look up the name of an OOM victim
//   - 3 of credentials: token, client certificate, CA
//   - 3 of names: /etc/hosts or /etc/resolv.conf for the API server, a proxy, the node
//   - 5 of volumes, users' namespaces, the configuration, its directory, the web's
//   - 1 of log lines
//
// Under load there are nine threads in all; each costs about 15 KiB.
const SpareThreads = 24

// KeepThreads makes the Go runtime start threads until there are at least n, while the
// kernel still grants them.
//
// Go starts a thread when a goroutine has to run and all threads are blocked in the
// kernel. If clone(2) fails then, as on a node that has run out of PIDs, the runtime ends
// the program with "failed to create new OS thread"; there is no error to handle. That
// may happen in here too, but then the program has only just started.
//
// It relies on the runtime keeping idle threads for the rest of the program: it parks
// them, and only ends one whose goroutine exits while locked to it. This is how Go 1.26
// behaves, but it is not documented. KeepThreads therefore counts the threads in
// /proc/self/task at the end, and returns an error if they are gone or cannot be counted.
func KeepThreads(n int) error {
	var held, ended sync.WaitGroup
	release := make(chan struct{})
	held.Add(n)
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // or the thread ends too
			held.Done()
			<-release
		})
	}
	held.Wait()
	close(release)
	ended.Wait()
	return checkThreads("/proc/self/task", n)
}

// checkThreads returns an error unless there are at least n threads.
func checkThreads(dir string, n int) error {
	threads, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("count threads: %w", err)
	}
	if len(threads) < n {
		return fmt.Errorf("keep threads: %d of %d left; the Go runtime has ended idle ones", len(threads), n)
	}
	return nil
}
