package process

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Trim returns memory that only starting needed: garbage on the heap, which would stay
// until the next collection, hours from now, and pages of the program file itself.
//
// Decoding BTF, parsing flags and configuration, and the first TLS handshake run through
// most of the program's 19 MB. These pages would count as ours for ever, although a few
// MB do all the work from now on. They stay in the page cache, where the kernel may drop
// them; those that are needed again are mapped again at their first use, without I/O.
func Trim() error {
	program, err := programMappings()
	if err != nil {
		return err
	}
	return trim(program)
}

func trim(program []mapping) error {
	debug.FreeOSMemory()
	for _, m := range program {
		if err := m.advise(unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("release program pages: %w", err)
		}
	}
	return nil
}

// mapping is a part of the address space.
type mapping struct{ start, length uintptr }

func (m mapping) advise(advice uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.length, advice); errno != 0 {
		return errno
	}
	return nil
}

// programMappings returns the mappings of the program file that can be read again from
// there.
func programMappings() ([]mapping, error) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("find program file: %w", err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil, fmt.Errorf("read own mappings: %w", err)
	}
	return pristineMappings(string(smaps), exe), nil
}

// pristineMappings returns the mappings of the file exe that hold nothing but what is in
// the file: they are read-only and have never been written. The first does not imply the
// second. In a position-independent program, the dynamic linker relocates pointers before
// it makes their pages read-only; without these pages the program would crash.
//
// It reads /proc/self/smaps, in which each mapping has lines such as
//
//	00400000-00cf8000 r-xp 00000000 fe:00 9981332      /usr/bin/nodeprobe
//	Size:               9184 kB
//	Anonymous:             0 kB
//	Swap:                  0 kB
//
// A mapping without both of the last two is left alone.
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

// readOnlyMapping parses the first line of a mapping. It is not ok unless the mapping is
// a read-only one of the file exe.
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
