package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is by how much the kernel may put off our timers. The least of what
// is worth having: until the runtime's monitor has looked twice, a thread that
// waits in the kernel keeps the others from running.
const timerSlack = 4 * time.Millisecond

// relax lets the kernel wake our threads up to timerSlack later than they ask to
// be. Threads that are started later have it from those that start them. Like
// privileges.drop, it must come before anything that may hang in the kernel.
//
// This is about one thread, the Go runtime's monitor. It has itself woken when
// the next timer is due, and then looks every 20 µs whether another thread has
// taken care of that one. But the other waits in epoll_wait(2), and the kernel
// takes the liberty of a thousandth of what it is to wait: after the 10 s
// between two samples, up to 10 ms. So the monitor looks up to fifty times in
// vain, for each of a handful of timers a minute, and that was two thirds of all
// wake-ups of an idle nodeprobe and a third of its CPU time.
func relax() error {
	err := allThreads(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return relaxFromOutside()
	}
	return os.NewSyscallError("set timer slack", err)
}

// relaxFromOutside does it for programs with cgo, by Linux 4.6 and CAP_SYS_NICE.
func relaxFromOutside() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list own threads: %w", err)
	}
	for _, t := range threads {
		// The directory of a thread lacks the file, but every thread also has
		// one where the processes have theirs.
		err := os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", strconv.AppendInt(nil, int64(timerSlack), 10), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may have ended
			return fmt.Errorf("set timer slack: %w", err)
		}
	}
	return nil
}
