package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
)

// Deployed as users deploy it, nodeprobe tells of each pressure beside the kubelet
// and before it, names the pod whose process was killed, is what Prometheus alerts
// by, writes nothing but its own, and leaves nothing behind.
func TestCluster(t *testing.T) {
	needPods(t)
	s := newStage(t)
	s.startPrometheus()
	for _, variant := range []struct{ name, kustomization string }{
		{"base", "deploy/base"},
		{"least privilege", "deploy/overlays/least-privilege"},
	} {
		t.Run(variant.name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(s.root, variant.kustomization)); errors.Is(err, fs.ErrNotExist) {
				t.Skip("there is no " + variant.kustomization)
			}
			begin := time.Now()
			overlay := s.overlay(t, variant.kustomization)
			pod := s.install(t, overlay)
			for _, l := range s.loads {
				s.wait(t, ours, begin, nodewatch.Has(ourCondition(l), corev1.ConditionFalse))
			}
			programs := s.bpfPrograms(t, pod)
			s.oomKill(t)
			s.pressAndRelease(t, func() { s.wantAlert(t, "firing") })
			s.wantAlert(t, "inactive")
			s.wantLead(t)
			s.wantHealthy(t, pod)
			node, err := s.node(t)
			s.must(err)
			wantOwns(t, node)
			s.uninstall(t, overlay)
			s.wantUnloaded(t, programs)
			wantOnlyOurs(t, s.cp, identity, nodeName, begin)
			s.wantNothingLeft()
		})
	}
}
