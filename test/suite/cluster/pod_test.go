package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// oomKill has a pod take more memory than it may; nodeprobe must report which pod.
func (s *scene) oomKill() {
	s.t.Helper()
	pods := s.client.CoreV1().Pods(metav1.NamespaceDefault)
	no := false
	limit := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("48Mi")}
	var pod *corev1.Pod
	stage.Eventually(s.t, "there is a pod", func() (err error) { // its ServiceAccount may have to come first
		pod, err = pods.Create(s.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "hungry-"},
			Spec: corev1.PodSpec{
				HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
				Containers: []corev1.Container{{Name: "eater", Image: pauseImage, Args: []string{"512"}, Resources: corev1.ResourceRequirements{Limits: limit}}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	container := ""
	stage.Until(s.t, "its process is killed", func() bool {
		for _, c := range must.Get(pods.Get(s.t.Context(), pod.Name, metav1.GetOptions{}))(s.t).Status.ContainerStatuses {
			if c.State.Terminated != nil && c.State.Terminated.Reason == "OOMKilled" {
				container = strings.TrimPrefix(c.ContainerID, "containerd://")
			}
		}
		return container != ""
	})
	want := fmt.Sprintf(", pod: default/%s (%s), container: eater (%s)", pod.Name, pod.UID, container)
	opts := metav1.ListOptions{FieldSelector: "reason=OOMKilling,involvedObject.kind=Node,involvedObject.name=" + nodeName}
	stage.Eventually(s.t, "an Event ends with"+want, func() error {
		list := must.Get(s.client.CoreV1().Events("").List(s.t.Context(), opts))(s.t)
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return strings.HasSuffix(e.Message, want) }) {
			return fmt.Errorf("there are only %+v", list.Items)
		}
		return nil
	})
	counted := fmt.Sprintf(`nodeprobe_oom_victims_total{container="eater",namespace="default",pod=%q,uid=%q}`, pod.Name, pod.UID)
	if metrics := must.Get(agent.ReadMetrics(s.t.Context(), s.metricsAddress()))(s.t); metrics[counted] == 0 {
		s.t.Errorf("no %s", counted)
	}
	must.OK(s.t, pods.Delete(s.t.Context(), pod.Name, metav1.DeleteOptions{}))
}

// wantHealthy checks that the pod was never restarted or evicted, and that it uses BPF.
func (s *scene) wantHealthy(pod *corev1.Pod) {
	s.t.Helper()
	now := must.Get(s.client.CoreV1().Pods(namespace).Get(s.t.Context(), pod.Name, metav1.GetOptions{}))(s.t)
	if now.UID != pod.UID || now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount > 0 {
		s.t.Errorf("the pod has not lasted: %+v", now.Status)
	}
	for series, value := range must.Get(agent.ReadMetrics(s.t.Context(), s.metricsAddress()))(s.t) {
		if strings.HasPrefix(series, "nodeprobe_tier_info") && !strings.Contains(series, `tier="bpf"`) {
			s.t.Errorf("BPF is not used: %s, %v", series, value)
		}
	}
}

func (s *scene) bpfPrograms(pod *corev1.Pod) (ids []uint32) {
	s.t.Helper()
	for pid, where := range leftovers(s.t, s.dir) {
		if !strings.Contains(where, string(pod.UID)) {
			continue
		}
		for _, name := range must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid)))(s.t) {
			text, _ := os.ReadFile(name) // fails if closed meanwhile
			for line := range strings.Lines(string(text)) {
				var id uint32
				if _, err := fmt.Sscanf(line, "prog_id: %d", &id); err == nil {
					ids = append(ids, id)
				}
			}
		}
	}
	if len(ids) == 0 {
		s.t.Error("the pod has no BPF program")
	}
	return ids
}

// wantUnloaded wants the kernel to have none of the programs any more.
func (s *scene) wantUnloaded(programs []uint32) {
	s.t.Helper()
	const bpfProgGetFDByID = 13
	for _, id := range programs {
		stage.Eventually(s.t, "BPF program "+strconv.Itoa(int(id))+" is unloaded", func() error {
			attr := [4]uint32{id}
			fd, _, errno := unix.Syscall(unix.SYS_BPF, bpfProgGetFDByID, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			if errno == unix.ENOENT {
				return nil
			}
			if errno != 0 {
				return errno
			}
			return errors.Join(errors.New("it is still there"), unix.Close(int(fd)))
		})
	}
}

const identity = "system:serviceaccount:nodeprobe:nodeprobe"

// wantOnlyOurs checks in the API server's audit log what nodeprobe has written since a
// time: its conditions and Events, as user, and all of it was allowed.
func wantOnlyOurs(t *testing.T, cp *controlplane.ControlPlane, user, node string, since time.Time) {
	t.Helper()
	patches, events := 0, 0
	for _, e := range stage.Writes(t, cp, "nodeprobe", since) {
		// The Event that a rehearsal counts up was never stored.
		rehearsed := e.ResponseStatus.Code == 404 && strings.HasSuffix(e.RequestURI, "?dryRun=All")
		if e.ResponseStatus.Code/100 != 2 && !rehearsed || e.User.Username != user {
			t.Errorf("%s %s by %s: %d", e.Verb, e.RequestURI, e.User.Username, e.ResponseStatus.Code)
		}
		switch e.Request() {
		case "create events", "patch events":
			events++
		case "patch nodes/status":
			patches++
			if err := stage.OnlyConditions(e.RequestObject, "nodeprobe.dev/"); err != nil || e.ObjectRef.Name != node {
				t.Errorf("patch of node %s: %v: %s", e.ObjectRef.Name, err, e.RequestObject)
			}
		default:
			t.Errorf("%s %s", e.Request(), e.RequestURI)
		}
	}
	if patches == 0 || events == 0 {
		t.Errorf("the audit log has %d patches and %d Events", patches, events)
	}
}

// wantOwns checks that nodeprobe owns, of the Node's fields, its conditions and no other.
func (s *scene) wantOwns() {
	s.t.Helper()
	found := false
	for _, m := range s.node().ManagedFields {
		if m.Manager != "nodeprobe" {
			continue
		}
		found = true
		var fields map[string]map[string]map[string]any
		must.OK(s.t, json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields))
		foreign := len(fields) != 1 || len(fields["f:status"]) != 1
		for key := range fields["f:status"]["f:conditions"] {
			foreign = foreign || !strings.HasPrefix(key, `k:{"type":"nodeprobe.dev/`)
		}
		if foreign {
			s.t.Errorf("nodeprobe owns more of the Node than its conditions: %s", m.FieldsV1.GetRawString())
		}
	}
	if !found {
		s.t.Error("nodeprobe owns nothing of the Node")
	}
}
