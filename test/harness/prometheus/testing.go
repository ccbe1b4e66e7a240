package prometheus

import (
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/need"
	"github.com/nodeprobe/nodeprobe/test/harness/process"
)

// StartForTest is Start with a configuration as in WriteConfig, and stops Prometheus
// when the test ends. If the test has failed, the last lines of the log are shown.
func StartForTest(t testing.TB, dir string, config any) *Server {
	t.Helper()
	need.Command(t, "prometheus", "prometheus")
	file := must.Get(WriteConfig(dir, config))(t)
	s := must.Get(Start(t.Context(), dir, file))(t)
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("Prometheus' last lines:\n%s", process.LogTail(s.LogFile, 20))
		}
	})
	return s
}
