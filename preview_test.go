package nodeprobe

import (
	"path/filepath"
	"testing"

	"github.com/nodeprobe/nodeprobe/internal/testtree"
	"github.com/nodeprobe/nodeprobe/probe/cri/critest"
)

// A preview, and a look at the container runtime, keep no connection.
func TestPreviewGivesBack(t *testing.T) {
	cfg, _ := treeConfig(t, testtree.New(t, nil))
	cfg.RuntimeEndpoint = "unix:///runtime.sock"
	runtime, err := critest.Start(filepath.Join(cfg.Rootfs, "runtime.sock"), critest.Healthy())
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Stop()
	files := openFiles(t)
	p, err := NewPreview(t.Context(), cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Node.Status.NodeInfo.ContainerRuntimeVersion; got != "fake://1.0.0" || p.Node.Name != cfg.NodeName {
		t.Errorf("node %s with %q: %v", p.Node.Name, got, p.NodeErr)
	}
	if s, err := SampleRuntime(t.Context(), cfg); err != nil || s.Version.RuntimeName != "fake" {
		t.Errorf("runtime: %+v, %v", s, err)
	}
	testtree.Eventually(t, "connections are closed", func() bool { return openFiles(t) <= files })
}
