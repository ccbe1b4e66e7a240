package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is the smallest that pays off. Its price is paid where a thread blocks in
// the kernel: the runtime's monitor has to look twice before another thread may run the
// goroutines that wait. With GOMAXPROCS=1, and a system call that blocks, such a
// goroutine waited 0.19 ms (median) without slack, and 4.0 ms (median) to 8.1 ms (most)
// with it.
const timerSlack = 4 * time.Millisecond

// RelaxTimers lets the kernel fire our timers up to 4 ms late. Threads that start later
// inherit that from the thread that starts them. It waits for every thread. A program
// with cgo needs Linux 4.6 and CAP_SYS_NICE for it.
//
// It is for the sake of one thread, the Go runtime's monitor. That sleeps until the next
// timer is due, and then checks every 20 µs whether another thread has taken care of it.
// But the other one waits in epoll_wait(2), which the kernel may prolong by a thousandth:
// by up to 10 ms after the 10 s between two samples. So the monitor checks up to fifty
// times in vain for each of a handful of timers a minute: two thirds of all wake-ups of
// an idle nodeprobe, and a third of its CPU time.
func RelaxTimers() error {
	err := allThreads(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return relaxFromOutside()
	}
	return os.NewSyscallError("set timer slack", err)
}

// relaxFromOutside is for programs with cgo.
func relaxFromOutside() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list own threads: %w", err)
	}
	for _, t := range threads {
		// /proc/self/task/TID lacks the file, but /proc/TID exists as well and has it.
		err := os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", strconv.AppendInt(nil, int64(timerSlack), 10), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the thread may have ended
			return fmt.Errorf("set timer slack: %w", err)
		}
	}
	return nil
}
