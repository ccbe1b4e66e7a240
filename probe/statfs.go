//go:build amd64 || arm64 || riscv64 || ppc64le || s390x || loong64

package probe

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// statfs calls statfs(2) without copying the path, as unix.Statfs does at each
// call: path must end in NUL.
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
