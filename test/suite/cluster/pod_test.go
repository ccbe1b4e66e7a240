package cluster

import (
	"bufio"
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

// oomKill has a pod take more memory than it may, and wants nodeprobe to say which
// pod it was.
func (s *scene) oomKill(t *testing.T) {
	t.Helper()
	pods := s.client.CoreV1().Pods(metav1.NamespaceDefault)
	no := false
	limit := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("48Mi")}
	var pod *corev1.Pod
	s.eventually(t, "there is a pod", func() (err error) { // its ServiceAccount may have to come first
		pod, err = pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "hungry-"},
			Spec: corev1.PodSpec{
				HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
				Containers: []corev1.Container{{Name: "eater", Image: pauseImage, Args: []string{"512"}, Resources: corev1.ResourceRequirements{Limits: limit}}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	container := ""
	s.eventually(t, "its process is killed", func() error {
		now, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.ContainerStatuses {
			if c.State.Terminated != nil && c.State.Terminated.Reason == "OOMKilled" {
				container = strings.TrimPrefix(c.ContainerID, "containerd://")
				return nil
			}
		}
		return fmt.Errorf("it is %+v", now.Status)
	})
	want := fmt.Sprintf(", pod: default/%s (%s), container: eater (%s)", pod.Name, pod.UID, container)
	s.eventually(t, "an Event says"+want, func() error {
		list, err := s.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + nodeName})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range list.Items {
			if e.Reason == "OOMKilling" && strings.HasSuffix(e.Message, want) {
				t.Log(e.Message)
				return nil
			}
			others = append(others, e.Reason+" "+e.Message)
		}
		return errors.New("there are only " + strings.Join(others, "; "))
	})
	must.OK(t, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
}

// wantHealthy wants the pod never to have been restarted or evicted, and to see as
// much as a process of the host's.
func (s *scene) wantHealthy(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	now := must.Get(s.client.CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}))(t)
	if now.UID != pod.UID || now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("the pod has not lasted: %+v", now.Status)
	}
	for series, value := range must.Get(agent.ReadMetrics(t.Context(), s.metricsAddress()))(t) {
		switch {
		case strings.HasPrefix(series, "nodeprobe_tier_info"):
			t.Log(series)
			if !strings.Contains(series, `tier="bpf"`) {
				t.Errorf("not all of the kernel's help is used: %s", series)
			}
		case strings.HasPrefix(series, "nodeprobe_bpf_hook"):
			t.Log(series, value)
		}
	}
}

func (s *scene) bpfPrograms(t *testing.T, pod *corev1.Pod) (ids []uint32) {
	t.Helper()
	pids := must.Get(processesOf(s.dir, string(pod.UID)))(t)
	for _, pid := range pids {
		for _, name := range must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid)))(t) {
			file, err := os.Open(name)
			if err != nil {
				continue // closed meanwhile
			}
			for lines := bufio.NewScanner(file); lines.Scan(); {
				var id uint32
				if _, err := fmt.Sscanf(lines.Text(), "prog_id: %d", &id); err == nil {
					ids = append(ids, id)
				}
			}
			file.Close()
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids) // one for its link and one for itself
	t.Logf("processes %v hold BPF programs %v", pids, ids)
	if len(ids) == 0 {
		t.Error("the pod has no BPF program")
	}
	return ids
}

func processesOf(dir, uid string) (pids []int, err error) {
	left, err := leftovers(dir)
	for pid, where := range left {
		if strings.Contains(where, uid) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// wantUnloaded wants the kernel to have none of the programs any more.
func (s *scene) wantUnloaded(t *testing.T, programs []uint32) {
	t.Helper()
	const bpfProgGetFDByID = 13
	for _, id := range programs {
		s.eventually(t, "BPF program "+strconv.Itoa(int(id))+" is unloaded", func() error {
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

// wantOnlyOurs reads in the API server's audit log what a user has written since a
// time: conditions of ours and Events, and all of it was allowed.
func wantOnlyOurs(t *testing.T, cp *controlplane.ControlPlane, user, node string, since time.Time) {
	t.Helper()
	all := must.Get(cp.AuditEvents())(t)
	patches, events := 0, 0
	for _, e := range all {
		if e.User.Username != user || e.RequestReceivedTimestamp.Before(since) || e.Reads() {
			continue
		}
		t.Logf("%s %s %s: %d %s", e.RequestReceivedTimestamp.Format("15:04:05.000"), e.Verb, e.RequestURI, e.ResponseStatus.Code, summary(e))
		if e.ResponseStatus.Code/100 != 2 {
			t.Errorf("%s %s: %d", e.Verb, e.RequestURI, e.ResponseStatus.Code)
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
	t.Logf("%s: %d patches of conditions, %d Events", user, patches, events)
	if patches == 0 || events == 0 {
		t.Errorf("the audit log has %d patches and %d Events", patches, events)
	}
}

// wantOwns wants the API server to count nothing of the Node as ours but conditions
// of ours.
func wantOwns(t *testing.T, node *corev1.Node) {
	t.Helper()
	found := false
	for _, m := range node.ManagedFields {
		if m.Manager != "nodeprobe" {
			continue
		}
		found = true
		var fields map[string]map[string]map[string]any
		must.OK(t, json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields))
		conditions := fields["f:status"]["f:conditions"]
		if len(fields) != 1 || len(fields["f:status"]) != 1 {
			t.Errorf("more of the Node than conditions is ours: %s", m.FieldsV1.GetRawString())
		}
		for key := range conditions {
			if !strings.HasPrefix(key, `k:{"type":"nodeprobe.dev/`) {
				t.Errorf("%s is ours", key)
			}
		}
	}
	if !found {
		t.Error("nothing of the Node is ours")
	}
}

func summary(e controlplane.AuditEvent) string {
	var body struct {
		Status struct {
			Conditions []struct {
				Type, Status string
				Patch        string `json:"$patch"`
			}
		}
		Reason, Message string
	}
	if json.Unmarshal(e.RequestObject, &body) != nil {
		return ""
	}
	var words []string
	for _, c := range body.Status.Conditions {
		words = append(words, strings.TrimPrefix(c.Type, "nodeprobe.dev/")+"="+c.Status+c.Patch)
	}
	return strings.Join(words, " ") + body.Reason + " " + body.Message
}
