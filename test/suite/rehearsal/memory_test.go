package rehearsal

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// faults are counts of a process since it began.
type faults struct{ minor, major int64 }

func (s *scene) faults() (f faults) {
	s.T.Helper()
	stat := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid)))(s.T))
	_, rest, _ := strings.Cut(stat, ") ")
	fields := strings.Fields(rest)
	must.Get(fmt.Sscan(fields[7]+" "+fields[9], &f.minor, &f.major))(s.T)
	return f
}

// evict does to nodeprobe's program what the kernel does when memory is short: its pages
// are unmapped, unless they are locked, and dropped.
func (s *scene) evict() {
	s.T.Helper()
	process := must.Get(unix.PidfdOpen(s.pid, 0))(s.T)
	defer unix.Close(process)
	maps := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/maps", s.pid)))(s.T))
	for line := range strings.Lines(maps) {
		var start, end uintptr
		if !strings.Contains(line, s.Spec.Binary) {
			continue
		}
		must.Get(fmt.Sscanf(line, "%x-%x", &start, &end))(s.T)
		vec := struct{ base, length uintptr }{start, end - start}
		_, _, err := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(process), uintptr(unsafe.Pointer(&vec)), 1, unix.MADV_PAGEOUT, 0, 0)
		if err != 0 && err != unix.EINVAL { // which it is where memory is locked
			s.T.Fatalf("page out %s: %v", strings.TrimSpace(line), err)
		}
	}
	file := must.Get(os.Open(s.Spec.Binary))(s.T)
	defer file.Close()
	must.OK(s.T, file.Sync())
	must.OK(s.T, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
}
