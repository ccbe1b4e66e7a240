//go:build !(amd64 || arm64 || riscv64 || ppc64le || s390x || loong64)

package hotfile

import "golang.org/x/sys/unix"

// Statfs calls statfs(2). Path must end in NUL.
func Statfs(path []byte, st *unix.Statfs_t) error {
	return unix.Statfs(string(path[:len(path)-1]), st)
}
