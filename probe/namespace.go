package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrCgroupNamespace says that what is mounted as the root of the cgroups is not that
// of the node: a container has its own cgroup there (in a cgroup namespace, or by a
// bind mount). What the whole node uses cannot be read there, and cgroups outside of
// the container are not to be seen.
var ErrCgroupNamespace = errors.New("not the root of the node's cgroups, but a container's")

// CheckCgroupRoot returns an error that wraps ErrCgroupNamespace if dir, as
// MemoryCgroupVersion returns it, is not the root of the whole hierarchy. The kernel
// tells it from all others by the files in it.
func CheckCgroupRoot(dir string, version CgroupVersion) error {
	has := func(file string) bool {
		_, err := os.Stat(filepath.Join(dir, file))
		return err == nil
	}
	if version == CgroupV2 && has("memory.current") || version == CgroupV1 && !has("release_agent") {
		return fmt.Errorf("%s: %w", dir, ErrCgroupNamespace)
	}
	return nil
}
