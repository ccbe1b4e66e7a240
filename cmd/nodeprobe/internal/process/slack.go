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

// timerSlack is the largest that the way from a crossing to the API server can afford.
// Where a thread blocks in the kernel, the runtime's monitor has to look twice before
// another thread may run the goroutines that wait; with a second P, a thread that looks
// for work sleeps for 3 µs, which becomes the slack. Measured on 2 CPUs, by GOMAXPROCS and
// slack: how long a goroutine waits while another is in a system call (90 % and most),
// and wake-ups a second in modes observe and own, scraped, with eleven others beside it:
//
//	1, 4 ms:  3.7, 5.1 ms; 2.3, 4.5    2, 4 ms:  1.9, 3.9 ms; 4.6, 7.4
//	1, 1 ms:  1.1, 2.1 ms; 3.0, 4.9    2, 1 ms:  1.1, 1.7 ms; 8.2, 11.6
//	1, 50 µs: 0.8, 27 ms;  3.4, 10.0   2, 50 µs: 0.07, 0.1 ms; 12.8, 20.5
//
// A second P costs 0.5 to 2 MiB of memory as well. What it would be good for is a page
// fault that waits for a disk, which stops everything on a single P: that is what memory
// is locked for.
const timerSlack = time.Millisecond

// RelaxTimers lets the kernel fire our timers up to 1 ms late. Threads that start later
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
