//go:build !(amd64 || arm64 || riscv64 || ppc64le || s390x || loong64)

package probe

import "golang.org/x/sys/unix"

// statfs calls statfs(2). path must end in NUL.
func statfs(path []byte, st *unix.Statfs_t) error {
	return unix.Statfs(string(path[:len(path)-1]), st)
}
