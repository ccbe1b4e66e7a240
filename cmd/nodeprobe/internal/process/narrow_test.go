package process

import (
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A page of the program that is used is mapped alone while faults are narrow, and with its
// neighbours after that.
func TestNarrowFaults(t *testing.T) {
	if !alone(t) {
		return
	}
	program, err := programMappings()
	if err != nil || len(program) == 0 {
		t.Fatalf("%d mappings, %v", len(program), err)
	}
	count := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(maps), "\n")
	}
	before, pages := count(), 0
	// The kernel refuses to go on, as it does at vm.max_map_count.
	gone := mapping{unmapped(t), uintptr(os.Getpagesize())}
	if err := narrowFaults(append(slices.Clone(program), gone)); err == nil {
		t.Error("divided what is not there")
	}
	if got := count(); got > before+10 {
		t.Errorf("%d mappings are left, %d before: there is no room for others", got, before)
	}
	page := uintptr(os.Getpagesize())
	for _, m := range program {
		pages += int(m.length / page)
	}
	if err := narrowFaults(program); err != nil {
		t.Fatal(err)
	}
	if got := count(); got < pages {
		t.Errorf("%d mappings for %d pages of the program", got, pages)
	}
	if err := trim(program); err != nil {
		t.Fatal(err)
	}
	if got := touch(t, program, page); got != 1 {
		t.Errorf("a page mapped %d", got)
	}
	if err := widenFaults(program); err != nil {
		t.Fatal(err)
	}
	if got := count(); got > before+10 { // the runtime may have added some
		t.Errorf("%d mappings, %d before", got, before)
	}
	if got := touch(t, program, page); got == 1 {
		t.Error("a page is still mapped alone")
	}
}

// unmapped returns the address of a page that is not mapped.
func unmapped(t *testing.T) uintptr {
	t.Helper()
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	address := uintptr(unsafe.Pointer(unsafe.SliceData(page)))
	if err := unix.Munmap(page); err != nil {
		t.Fatal(err)
	}
	return address
}

// touch reads from 16 pages that nothing else uses, and returns how many were mapped by
// that.
func touch(t *testing.T, program []mapping, page uintptr) (mapped int) {
	t.Helper()
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	window := 16 * page // as far as the kernel looks, for pages of 4 KiB
	present := func(start uintptr) (n int) {
		entries := make([]byte, 8*window/page)
		if _, err := pagemap.ReadAt(entries, int64(start/page*8)); err != nil {
			t.Fatal(err)
		}
		for i := 7; i < len(entries); i += 8 {
			n += int(entries[i] >> 7)
		}
		return n
	}
	for _, m := range program {
		// From the end: what is used last is not what the runtime uses all the time.
		for start := (m.start + m.length - window) &^ (window - 1); start >= m.start; start -= window {
			if start+window > m.start+m.length || present(start) > 0 {
				continue
			}
			if err := read(start + window/2); err != nil {
				t.Fatal(err)
			}
			return present(start)
		}
	}
	t.Fatal("all of the program is in use")
	return 0
}

// read has the kernel read a byte from an address of this process.
func read(address uintptr) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if _, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(pipe[1]), address, 1); errno != 0 {
		return errno
	}
	return nil
}
