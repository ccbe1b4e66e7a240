package deploy

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// On nodes of other systems, and on those that are no machines, the pods of a
// DaemonSet never run; one that tolerates every taint has to say so.
func TestPlaces(t *testing.T) {
	s := newStage(t, "identity")
	for name, labels := range map[string]map[string]string{
		"windows":         {"kubernetes.io/os": "windows"},
		"fargate":         {"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"},
		"virtual-kubelet": {"kubernetes.io/os": "linux", "type": "virtual-kubelet"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		must.Get(s.cp.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
	}
	s.run("apply", "--validate=strict", "-k", filepath.Join(build.RootForTest(t), "deploy", "base"))
	s.run("apply", "--validate=strict", "-k", filepath.Join(build.RootForTest(t), "deploy", "overlays", "own"))
	desired := func(name string, want int32) {
		t.Helper()
		s.eventually("the controller has counted nodes for "+name, func() error {
			ds, err := s.cp.Client().AppsV1().DaemonSets("nodeprobe").Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (ds.Status.ObservedGeneration == 0 || ds.Status.DesiredNumberScheduled != want) {
				err = fmt.Errorf("they are %d, want %d", ds.Status.DesiredNumberScheduled, want)
			}
			return err
		})
	}
	desired("nodeprobe", 2)
	// Mode own is for them, if somebody says so.
	s.run("label", "node", "virtual-kubelet", "nodeprobe.dev/own=true")
	desired("nodeprobe-own", 1)
}
