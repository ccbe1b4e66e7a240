package pressure

import (
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/need"
)

// DiskForTest is Disk, and closes the filesystem when the test ends: call it before
// what uses the filesystem is started. The test is skipped where none can be made.
func DiskForTest(t testing.TB, mebibytes int) *Filesystem {
	t.Helper()
	need.Root(t)
	need.Command(t, "mkfs.ext4", "e2fsprogs")
	need.Command(t, "mount", "mount")
	fs, err := Disk(mebibytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return fs
}
