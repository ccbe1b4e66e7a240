package probe

import (
	"path/filepath"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"

	"github.com/prometheus/client_golang/prometheus"
)

// AllocsPerRun counts what all goroutines allocate, and so the statfs workers,
// too.
func TestSampleAllocatesNothing(t *testing.T) {
	check := func(name string, cfg Config) {
		t.Helper()
		cfg.Registerer = prometheus.NewRegistry()
		s, err := New(cfg)
		probetest.Must(t, err)
		defer s.Close()
		s.Sample()
		for i, err := range s.current.Errors {
			if err != nil {
				t.Logf("%s: %s: %v", name, Source(i), err) // and an error costs memory
				if cfg.Procfs != "/proc" {
					t.Error("the fixture is broken")
				}
				return
			}
		}
		if n := testing.AllocsPerRun(500, func() { s.Sample() }); n != 0 {
			t.Errorf("%s: %v allocations per sample, want 0", name, n)
		}
	}
	real := realConfig()
	check("this machine", real)
	real.ImageDirectories = []string{"/no/such", "/var/lib"}
	check("this machine, an image directory is absent", real)
	for name, m := range map[string]machine{
		"v2": fullMachine, "v1": fullMachine.v1(), "without PSI": fullMachine.without("proc/pressure"),
	} {
		n := m.boot(t)
		cfg := n.config() // the real statfs(2), below a root that is not /
		cfg.ImageDirectories = []string{"/var/lib/containerd", "/" + filepath.Base(n.Path("etc"))}
		check(name, cfg)
	}
}
