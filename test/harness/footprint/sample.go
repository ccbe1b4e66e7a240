// Package footprint measures what running processes cost: memory, CPU time and
// wake-ups, over a time in which their metrics are scraped as Prometheus would.
package footprint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Sample is one look at a process.
type Sample struct {
	// RSS is the resident memory in bytes, RSSAnon and RSSFile its parts: what
	// the process allocated, and what the kernel could read again from files
	// (mostly the program itself).
	RSS, RSSAnon, RSSFile int64
	// CPU is the time that all threads of the process have run, also those that
	// have ended.
	CPU time.Duration
	// Switches is how often the threads that now exist have gone to sleep, which
	// is how often they were woken.
	Switches int64
}

// Read looks at a process.
func Read(pid int) (Sample, error) {
	var s Sample
	proc := fmt.Sprintf("/proc/%d", pid)
	if err := scanStatus(proc+"/status", map[string]*int64{"VmRSS": &s.RSS, "RssAnon": &s.RSSAnon, "RssFile": &s.RSSFile}); err != nil {
		return s, err
	}
	// The files give kB.
	s.RSS, s.RSSAnon, s.RSSFile = s.RSS<<10, s.RSSAnon<<10, s.RSSFile<<10

	// The CPU clock of another process, as clock_getcpuclockid(3) makes its ID.
	// In nanoseconds, where /proc/PID/stat counts ticks of 10 ms, as much as may
	// be spent in a minute; /proc/PID/schedstat is about one thread only.
	const cpuClockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockSched), &ts); err != nil {
		return s, fmt.Errorf("read CPU clock of process %d: %w", pid, err)
	}
	s.CPU = time.Duration(ts.Nano())

	threads, err := filepath.Glob(proc + "/task/*/status")
	if err != nil {
		return s, err
	}
	for _, thread := range threads {
		var switches int64
		// A thread may end between the two; then it is none that now exists.
		if err := scanStatus(thread, map[string]*int64{"voluntary_ctxt_switches": &switches}); err == nil {
			s.Switches += switches
		}
	}
	return s, nil
}

// scanStatus reads the named figures from a status file; all have to be there.
func scanStatus(file string, figures map[string]*int64) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read process status: %w", err)
	}
	found := 0
	for line := range bytes.Lines(data) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if figure := figures[string(name)]; figure != nil {
			if _, err := fmt.Sscan(string(value), figure); err != nil {
				return fmt.Errorf("parse %s of %s: %w", name, file, err)
			}
			found++
		}
	}
	if found != len(figures) {
		return fmt.Errorf("read process status: %s lacks figures (has the process ended?)", file)
	}
	return nil
}
