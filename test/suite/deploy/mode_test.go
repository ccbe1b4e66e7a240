package deploy

import (
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// Who goes from augment to observe loses the identity: a DaemonSet that still named it
// could make no pod once it is removed. What was applied before stays in fields that
// the API server has filled in, so leaving a name out is not enough.
func TestModeChanges(t *testing.T) {
	helm := helm(t)
	s := newStage(t, "identity", "base")
	wantAccount := func(name, when, want string) {
		t.Helper()
		ds := must.Get(s.cp.Client().AppsV1().DaemonSets("nodeprobe").Get(t.Context(), name, metav1.GetOptions{}))(t)
		if spec := ds.Spec.Template.Spec; spec.ServiceAccountName != want || *spec.AutomountServiceAccountToken != (want == name) {
			t.Errorf("%s: service account %q, token %t", when, spec.ServiceAccountName, *spec.AutomountServiceAccountToken)
		}
	}
	wantAccount("nodeprobe", "kustomize, augment", "nodeprobe")
	s.run("apply", "--validate=strict", "-k", filepath.Join(build.RootForTest(t), "deploy", "overlays", "observe"))
	wantAccount("nodeprobe", "kustomize, observe", "default")

	release := []string{"nodeprobe-b", filepath.Join(build.RootForTest(t), "deploy", "helm", "nodeprobe"), "--namespace=nodeprobe", "--kubeconfig=" + s.cp.AdminKubeconfig()}
	run(t, nil, helm, append([]string{"install"}, release...)...)
	wantAccount("nodeprobe-b", "Helm, augment", "nodeprobe-b")
	run(t, nil, helm, append([]string{"upgrade", "--set=mode=observe"}, release...)...)
	wantAccount("nodeprobe-b", "Helm, observe", "default")
}
