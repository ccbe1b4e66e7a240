package pressure

import (
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// DiskForTest is Disk, and closes the filesystem when the test ends: call it before
// what uses the filesystem is started. The test is skipped where none can be made.
func DiskForTest(t testing.TB, mebibytes int) *Filesystem {
	t.Helper()
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	need.Command(t, "mount", "mount")
	fs := must.Get(Disk(mebibytes))(t)
	t.Cleanup(func() {
		must.Note(t, fs.Close())
	})
	return fs
}
