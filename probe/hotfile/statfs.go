//go:build amd64 || arm64 || riscv64 || ppc64le || s390x || loong64

package hotfile

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Statfs calls statfs(2). Path must end in NUL; unix.Statfs would copy it at each call
// to append that.
func Statfs(path []byte, st *unix.Statfs_t) error {
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
