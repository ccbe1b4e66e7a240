//go:build amd64 || arm64 || riscv64 || ppc64le || s390x || loong64

package probe

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// statfs calls statfs(2). Path must end in NUL; unix.Statfs would copy it at each call
// to append that.
func statfs(path []byte, st *unix.Statfs_t) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_STATFS, uintptr(unsafe.Pointer(&path[0])), uintptr(unsafe.Pointer(st)), 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		default:
			return errno
		}
	}
}
