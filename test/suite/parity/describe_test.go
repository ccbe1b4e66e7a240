package parity

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
)

// describe shows both nodes as people see them.
func (s *stage) describe() {
	s.t.Helper()
	if !testing.Verbose() && *describeDir == "" {
		return
	}
	kubectl := controlplane.KubectlForTest(s.t)
	for _, name := range []string{kubeletNode, ourNode} {
		text, err := exec.CommandContext(s.t.Context(), kubectl, "--kubeconfig", s.cp.AdminKubeconfig(), "describe", "node", name).CombinedOutput()
		if err != nil {
			s.t.Errorf("describe node %s: %v: %s", name, err, text)
			continue
		}
		s.t.Logf("kubectl describe node %s\n%s", name, text)
		if *describeDir != "" {
			s.check(os.WriteFile(filepath.Join(*describeDir, name+".txt"), text, 0o600))
		}
	}
}
