package kubelet

import (
	"os"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// StartForTest is Start, and stops the kubelet when the test ends. If the test has
// failed, the last lines of the kubelet's log are shown.
func StartForTest(t testing.TB, cp *controlplane.ControlPlane, opts Options) *Kubelet {
	t.Helper()
	opts.Log = os.Stderr
	k := must.Get(Start(t.Context(), cp, opts))(t)
	t.Cleanup(func() {
		must.Note(t, k.Stop())
		if t.Failed() {
			t.Logf("the kubelet's last lines:\n%s", process.LogTail(k.LogFile, 20))
		}
	})
	return k
}
