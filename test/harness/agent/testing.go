package agent

import (
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// StartForTest is Start, and stops the agent when the test ends. If the test
// has failed, the last lines of the agent's log are shown.
func StartForTest(t testing.TB, spec Spec) *Agent {
	t.Helper()
	a := must.Get(Start(t.Context(), spec))(t)
	t.Cleanup(func() {
		a.Stop()
		if t.Failed() {
			t.Logf("the last lines of %s's nodeprobe:\n%s", spec.NodeName, process.LogTail(a.LogFile, 40))
		}
	})
	return a
}
