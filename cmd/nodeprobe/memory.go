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

// trimAgain is how long after the last call that failed it is time for that once
// more: errors take other ways through the program, and each new connection is a TLS
// handshake. While the API server is away, calls fail more often than that.
const trimAgain = time.Minute

// trim gives back what only starting up needed. For one, that is garbage on the
// heap, which would stay until the next collection, hours from now. For
// another, it is the program itself: decoding BTF, parsing flags and
// configuration, and the first TLS handshake run through most of its 19 MB,
// and what they mapped would count as ours for ever although a few MB do all
// the work from now on. Those pages stay in the page cache, where the kernel may
// drop them; what is needed again is mapped again, without I/O, at its first
// use.
func trim() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find program file: %w", err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read own mappings: %w", err)
	}
	pristine := pristineMappings(string(smaps), exe)
	debug.FreeOSMemory()
	for _, m := range pristine {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.length, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give back program pages: %w", errno)
		}
	}
	return nil
}

// mapping is a part of the address space.
type mapping struct{ start, length uintptr }

// pristineMappings returns the mappings of the file exe that hold nothing but
// what is in the file: they cannot be written, and have not been. The second is
// not implied by the first. In a position-independent program the dynamic linker
// relocates pointers and then takes the right to write away; without those pages
// the program would crash.
//
// It reads /proc/self/smaps, in which each mapping has lines such as
//
//	00400000-00cf8000 r-xp 00000000 fe:00 9981332      /usr/bin/nodeprobe
//	Size:               9184 kB
//	Anonymous:             0 kB
//	Swap:                  0 kB
//
// Without both of the last two nothing is known about a mapping, and it stays.
func pristineMappings(smaps, exe string) []mapping {
	var found []mapping
	var current mapping
	clean, readOnly := 0, false
	for line := range strings.Lines(smaps) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasSuffix(key, ":") {
			current, readOnly = readOnlyMapping(line, exe)
			clean = 0
			continue
		}
		if (key == "Anonymous:" || key == "Swap:") && strings.TrimSpace(value) == "0 kB" {
			if clean++; clean == 2 && readOnly {
				found = append(found, current)
			}
		}
	}
	return found
}

// readOnlyMapping reads the first line of a mapping. It is ok only for one of
// the file exe that cannot be written.
func readOnlyMapping(line, exe string) (m mapping, ok bool) {
	var fields [5]string
	path := strings.TrimSuffix(line, "\n")
	for i := range fields {
		fields[i], path, _ = strings.Cut(strings.TrimLeft(path, " "), " ")
	}
	if strings.TrimLeft(path, " ") != exe {
		return mapping{}, false
	}
	var end uintptr
	if _, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &end); err != nil || end <= m.start {
		return mapping{}, false
	}
	if perms := fields[1]; len(perms) != 4 || perms[0] != 'r' || perms[1] != '-' || perms[3] != 'p' {
		return mapping{}, false
	}
	m.length = end - m.start
	return m, true
}
