package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// trimAfter is when starting up is over: programs are attached, the Node is
// registered, and everything has been done once.
const trimAfter = 5 * time.Second

// trim gives back what only starting up needed. For one, that is garbage on the
// heap, which would stay until the next collection, hours from now. For
// another, it is the program itself: decoding BTF, parsing flags and
// configuration, and the first TLS handshake run through most of its 19 MB,
// and what they mapped would count as ours for ever although a few MB do all
// the work from now on. Those pages stay in the page cache, where the kernel may
// drop them; what is needed again is mapped again, without I/O, at its first
// use.
func trim() error {
	debug.FreeOSMemory()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find program file: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("read own mappings: %w", err)
	}
	for line := range strings.SplitSeq(string(maps), "\n") {
		start, length, ok := readOnlyMapping(line, exe)
		if !ok {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, length, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give back program pages: %w", errno)
		}
	}
	return nil
}

// readOnlyMapping reads a line of /proc/self/maps such as
//
//	00400000-00cf8000 r-xp 00000000 fe:00 9981332      /usr/bin/nodeprobe
//
// It is ok only for a mapping of the file exe that cannot be written: one that
// can holds data that is not in the file.
func readOnlyMapping(line, exe string) (start, length uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || strings.Join(fields[5:], " ") != exe {
		return 0, 0, false
	}
	var end uintptr
	if _, err := fmt.Sscanf(fields[0], "%x-%x", &start, &end); err != nil || end <= start {
		return 0, 0, false
	}
	if perms := fields[1]; len(perms) != 4 || perms[0] != 'r' || perms[1] != '-' || perms[3] != 'p' {
		return 0, 0, false
	}
	return start, end - start, true
}
