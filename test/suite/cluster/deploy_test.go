package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const namespace = "nodeprobe"

// ourPods are those of the DaemonSet.
const ourPods = "app.kubernetes.io/name=nodeprobe"

// overlay writes a kustomization over one of the repository's, with what only
// holds for this machine: where the API server is without a kube-proxy, a free
// port, the image that was built, and the limits and directories of this kubelet.
func (s *scene) overlay(t *testing.T, of string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(s.root, of))
	s.must(err)
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s.cp.Config().Host, "https://"))
	s.must(err)

	file, err := os.ReadFile(filepath.Join(s.root, "deploy", "base", "config.yaml"))
	s.must(err)
	var config map[string]any
	s.must(yaml.Unmarshal(file, &config))
	listen, _ := config["webListenAddress"].(string)
	listenHost, _, err := net.SplitHostPort(listen)
	s.must(err)
	config["webListenAddress"] = net.JoinHostPort(listenHost, fmt.Sprint(s.port))
	config["evictionHard"] = pressure.Thresholds(s.loads)
	config["evictionPressureTransitionPeriod"] = transition.String()
	config["rootDirectory"] = s.rootDir()
	config["imageDirectories"] = []string{filepath.Join(s.dir, "root")}

	for name, content := range map[string]any{
		"config.yaml": config,
		"kustomization.yaml": map[string]any{
			"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": namespace,
			"resources":          []string{base},
			"images":             []any{map[string]string{"name": "nodeprobe", "newTag": imageTag}},
			"configMapGenerator": []any{map[string]any{"name": "nodeprobe", "behavior": "merge", "files": []string{"config.yaml"}}},
			"patches":            []any{map[string]string{"path": "patch.yaml"}},
		},
		"patch.yaml": map[string]any{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]string{"name": "nodeprobe"},
			"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
				"hostNetwork": true,
				"containers": []any{map[string]any{
					"name": "nodeprobe",
					"env": []any{
						map[string]string{"name": "KUBERNETES_SERVICE_HOST", "value": host},
						map[string]string{"name": "KUBERNETES_SERVICE_PORT", "value": port},
					},
					"ports": []any{
						map[string]any{"containerPort": s.port, "name": "metrics"},
						map[string]any{"containerPort": 9732, "$patch": "delete"},
					},
				}},
			}}},
		},
	} {
		text, err := yaml.Marshal(content)
		s.must(err)
		s.must(os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// install deploys nodeprobe, and returns its pod when that is ready.
func (s *scene) install(t *testing.T, overlay string) *corev1.Pod {
	t.Helper()
	s.kubectlDo(t, "apply", "-k", filepath.Join(s.root, "deploy", "identity"))
	s.kubectlDo(t, "apply", "-k", overlay)
	var pod *corev1.Pod
	t.Cleanup(func() {
		if t.Failed() && pod != nil {
			s.logPod(t, pod)
		}
	})
	s.eventually(t, "the pod is ready", func() error {
		list, err := s.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: ourPods})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d pods", len(list.Items))
		}
		pod = &list.Items[0]
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("it is %+v", pod.Status)
	})
	t.Logf("pod %s is ready %s after it was created", pod.Name, readySince(pod).Sub(pod.CreationTimestamp.Time))
	return pod
}

func readySince(pod *corev1.Pod) metav1.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime
		}
	}
	return metav1.Time{}
}

// logPod shows what the pod has logged, from the kubelet's files.
func (s *scene) logPod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(podLogs, "*_"+pod.Name+"_*", "*", "*.log"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		t.Logf("%s: %v\n%s", file, err, text[max(0, len(text)-4000):])
	}
}

// uninstall removes nodeprobe as deploy/identity says: first the pods, with the
// rights to remove their conditions, and then those rights.
func (s *scene) uninstall(t *testing.T, overlay string) {
	t.Helper()
	s.kubectlDo(t, "delete", "-k", overlay)
	s.kubectlDo(t, "wait", "-n", namespace, "--for=delete", "pod", "-l", ourPods, "--timeout="+patience.String())
	node, err := s.node(t)
	s.must(err)
	for _, c := range node.Status.Conditions {
		if strings.Contains(string(c.Type), "/") {
			t.Errorf("left on the Node: %+v", c)
		}
	}
	for _, m := range node.ManagedFields {
		if strings.HasPrefix(m.Manager, "nodeprobe") {
			t.Errorf("%s still owns fields of the Node: %s", m.Manager, m.FieldsV1)
		}
	}
	s.kubectlDo(t, "delete", "-k", filepath.Join(s.root, "deploy", "identity"))
}

func (s *scene) node(t *testing.T) (*corev1.Node, error) {
	return s.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
}
