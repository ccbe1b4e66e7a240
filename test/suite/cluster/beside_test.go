package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

const (
	foreign = "example.com/Foreign"
	ourDisk = "nodeprobe.dev/DiskPressure"
)

// A kubelet's conditions flip ten times a second, and ours do as often as they may:
// all of its remain as it wrote them, and so does a third writer's. The API server
// allows nodeprobe every write.
func TestBeside(t *testing.T) {
	disk := pressure.Disk(t, 64)
	n := stage.New(t, controlplane.StartExclusive(t, controlplane.Options{AuditLog: true}), agent.Config{
		"mode": "augment", "rootDirectory": disk.Dir, "evictionHard": agent.Hard(map[string]string{"nodefs.available": "20Mi"}),
		"evictionPressureTransitionPeriod": "0s", "conditionHeartbeat": "10s",
	})
	const user = "beside-nodeprobe"
	n.Spec.Kubeconfig = must.Get(n.CP.Kubeconfig(user, "system:masters"))(t)
	begin := time.Now()
	k := &kubeletWriter{t: t, client: n.AsNode(), wrote: map[string]corev1.ConditionStatus{}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	must.Get(k.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{FieldManager: "kubelet"}))(t)
	third := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":"True","reason":"Foreign"}]}}`, foreign)
	must.Get(n.Client.CoreV1().Nodes().PatchStatus(t.Context(), n.Name, third))(t)
	history := n.Follow()
	a := n.Start()

	// The filesystem fills or empties each time that our condition has followed.
	flips, next := 0, corev1.ConditionTrue
	must.OK(t, disk.Fill(10<<20))
	for end := time.Now().Add(*besideFor); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		k.write(n.Name)
		if !nodewatch.Has(ourDisk, next)(history.Last()) {
			continue
		}
		flips++
		if next == corev1.ConditionTrue {
			must.OK(t, disk.Empty())
			next = corev1.ConditionFalse
		} else {
			must.OK(t, disk.Fill(10<<20))
			next = corev1.ConditionTrue
		}
	}
	a.Stop()
	t.Logf("the kubelet wrote %d times; ours flipped %d times", len(k.wrote), flips)
	if flips < 2 || len(k.wrote) < 10 {
		t.Error("these are too few")
	}
	k.write(n.Name)
	stage.Until(t, "the last version is seen", func() bool { return history.Last().ResourceVersion == k.last })
	k.wantKept(history.All())
	wantOnlyOurs(t, n.CP, user, n.Name, begin)
	if lease, err := n.Lease(); !apierrors.IsNotFound(err) {
		t.Errorf("there is a Lease: %+v, %v", lease, err)
	}
}

// kubeletWriter writes a Node's built-in conditions as a kubelet does.
type kubeletWriter struct {
	t      *testing.T
	client kubernetes.Interface
	// wrote is the status of all of the conditions, by the Node's resource version;
	// last is the latest of those.
	wrote map[string]corev1.ConditionStatus
	last  string
}

func (k *kubeletWriter) write(name string) {
	k.t.Helper()
	status := corev1.ConditionTrue
	if k.wrote[k.last] == status {
		status = corev1.ConditionFalse
	}
	now := metav1.Now()
	var conditions []corev1.NodeCondition
	for _, kind := range stage.BuiltIn {
		conditions = append(conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "Kubelet" + string(status), LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	patch := must.Get(json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}}))(k.t)
	opts := metav1.PatchOptions{FieldManager: "kubelet"}
	node := must.Get(k.client.CoreV1().Nodes().Patch(k.t.Context(), name, types.StrategicMergePatchType, patch, opts, "status"))(k.t)
	k.last = node.ResourceVersion
	k.wrote[k.last] = status
}

// wantKept checks that the conditions of others change only in the versions that the
// kubelet wrote, and are then as it wrote them.
func (k *kubeletWriter) wantKept(all []nodewatch.Sighting) {
	k.t.Helper()
	missing := maps.Clone(k.wrote)
	var before map[corev1.NodeConditionType]corev1.NodeCondition
	for _, s := range all {
		version, now := s.Node.ResourceVersion, map[corev1.NodeConditionType]corev1.NodeCondition{}
		for _, c := range s.Node.Status.Conditions {
			if !strings.HasPrefix(string(c.Type), "nodeprobe.dev/") {
				now[c.Type] = c
			}
		}
		status, byKubelet := k.wrote[version]
		if _, ok := now[foreign]; !ok || !byKubelet && before != nil && !maps.Equal(before, now) {
			k.t.Errorf("version %s: conditions of others have changed; before: %+v; now: %+v", version, before, now)
		}
		for _, kind := range stage.BuiltIn {
			if byKubelet && now[kind].Status != status {
				k.t.Errorf("version %s: %s is not as the kubelet wrote it: %+v", version, kind, now[kind])
			}
		}
		delete(missing, version)
		before = now
	}
	if len(missing) > 0 {
		k.t.Errorf("%d of %d versions were not seen", len(missing), len(k.wrote))
	}
}
