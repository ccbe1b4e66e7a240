package process

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrOvercommit is wrapped by the error of a process on a kernel that may refuse to give it
// back an address range that it had.
var ErrOvercommit = errors.New("set vm.overcommit_memory to 1, as the kubelet does, and restart nodeprobe," +
	" or set lockedMemoryLimit to \"0\"")

func overcommits() error {
	setting, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if err != nil {
		return fmt.Errorf("not safe to lock memory: %w", err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("not safe to lock memory: uname: %w", err)
	}
	return checkOvercommit(strings.TrimSpace(string(setting)), unix.ByteSliceToString(u.Release[:]))
}

// checkOvercommit returns an error that wraps [ErrOvercommit] if locked memory of a Go
// program may vanish under this setting of vm.overcommit_memory, on this release of Linux.
//
// To return locked memory to the kernel, the Go runtime maps new memory over it, since
// madvise(MADV_DONTNEED) is refused, and ignores whether that fails. Before Linux 6.12, the
// kernel first removes what was there, and then decides whether it may promise as much
// again. If not, the heap has a hole, and who uses that part of it next gets a SIGSEGV.
// With 2 it refuses as soon as all processes together are at the limit, and with 0, before
// Linux 5.2, when there is little free memory and page cache.
func checkOvercommit(setting, release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("not safe to lock memory: Linux %q: %w", release, err)
	}
	before := func(x, y int) bool { return major < x || major == x && minor < y }
	if setting == "2" && before(6, 12) || setting == "0" && before(5, 2) {
		return fmt.Errorf("not safe to lock memory: vm.overcommit_memory is %s, on Linux %d.%d; %w", setting, major, minor, ErrOvercommit)
	}
	return nil
}
