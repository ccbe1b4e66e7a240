package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loop is something to do again and again.
type loop struct {
	name string
	// chunk is how often to do it between two looks at the clock: for about a
	// millisecond.
	chunk int
	once  func() error
}

// run does it for a time and returns how long once took, in nanoseconds: the
// lower quartile of the chunks. The rest is longer for what else the machine had
// to do, and the probes would lengthen each.
func (l *loop) run(length time.Duration) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var chunks []float64
	for begin := time.Now(); time.Since(begin) < length; {
		start := time.Now()
		for range l.chunk {
			if err := l.once(); err != nil {
				return 0, err
			}
		}
		chunks = append(chunks, float64(time.Since(start))/float64(l.chunk))
	}
	slices.Sort(chunks)
	return at(chunks, 0.25), nil
}

const blockSize, blocks = 4096, 256

// newLoops makes the loops, and files in dir for those that write. A filesystem
// without O_DIRECT costs that loop, and a line in log.
func newLoops(dir string, log io.Writer) (loops []*loop, closeAll func(), err error) {
	loops = []*loop{{"fork", 4, fork}, {"thread", 16, thread}}
	var files []int
	closeAll = func() {
		for _, fd := range files {
			unix.Close(fd)
		}
	}
	// O_DIRECT takes memory that is aligned, as a mapping is.
	block, err := unix.Mmap(-1, 0, blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, closeAll, fmt.Errorf("map a block: %w", err)
	}
	for _, w := range []struct {
		name         string
		chunk, flags int
	}{{"write", 1024, 0}, {"direct_write", 32, unix.O_DIRECT}} {
		fd, err := unix.Open(filepath.Join(dir, w.name), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|w.flags, 0o600)
		if w.flags != 0 && errors.Is(err, unix.EINVAL) {
			fmt.Fprintf(log, "no loop %s: the filesystem of %s has no O_DIRECT\n", w.name, dir)
			continue
		}
		if err != nil {
			closeAll()
			return nil, func() {}, &os.PathError{Op: "open", Path: w.name, Err: err}
		}
		files = append(files, fd)
		l := &loop{w.name, w.chunk, overwrite(fd, block)}
		// From here on no write has to find room.
		for range blocks {
			if err := l.once(); err != nil {
				closeAll()
				return nil, func() {}, err
			}
		}
		loops = append(loops, l)
	}
	return loops, closeAll, nil
}

// overwrite returns what writes the next block of a file.
func overwrite(fd int, block []byte) func() error {
	next := 0
	return func() error {
		_, err := unix.Pwrite(fd, block, int64(next%blocks*blockSize))
		next++
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	}
}

// fork makes a process that ends at once, and waits for it. No signal tells of
// its end: the Go runtime would catch it.
//
// The child has only this thread, so it must not come to anything that the
// runtime has a say in.
//
//go:norace
func fork() error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, 0, 0, 0, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("fork: %w", errno)
	}
	if pid == 0 {
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	if _, err := unix.Wait4(int(pid), nil, unix.WALL, nil); err != nil {
		return fmt.Errorf("wait for child: %w", err)
	}
	return nil
}

// thread makes a thread that ends at once, and waits for it.
func thread() error {
	var wg sync.WaitGroup
	wg.Go(runtime.LockOSThread) // and never unlocks it
	wg.Wait()
	return nil
}
