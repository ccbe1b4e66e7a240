package deploy

import (
	"fmt"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
)

// criticalByQuota is how GKE, and who follows Kubernetes' page on it, keeps critical
// pods out of namespaces that have no quota for them.
const criticalByQuota = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`

// Where critical pods need a quota, there are ours all the same.
func TestCriticalByQuota(t *testing.T) {
	helm := helm(t)
	s := newStageWith(t, controlplane.Options{Admission: criticalByQuota}, "identity", "base")
	s.pod("a")
	s.run("create", "namespace", "monitoring")
	run(t, nil, helm, "install", "nodeprobe-b", filepath.Join(build.RootForTest(t), "deploy", "helm", "nodeprobe"),
		"--namespace=monitoring", "--kubeconfig="+s.cp.AdminKubeconfig())
	s.eventually("the chart's DaemonSet has its pods", func() error {
		pods, err := s.cp.Client().CoreV1().Pods("monitoring").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(pods.Items) != 2 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
}
