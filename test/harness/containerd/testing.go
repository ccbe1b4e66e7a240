package containerd

import (
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// StartForTest is Start, and stops containerd when the test ends. The test is skipped
// where none can be run; if it has failed, the last lines of the log are shown.
func StartForTest(t testing.TB, opts Options) *Containerd {
	t.Helper()
	need.Root(t)
	need.Command(t, "containerd", "containerd")
	c := must.Get(Start(t.Context(), opts))(t)
	t.Cleanup(func() {
		must.Note(t, c.Stop())
		if t.Failed() {
			t.Logf("containerd's last lines:\n%s", process.LogTail(c.LogFile, 20))
		}
	})
	return c
}
