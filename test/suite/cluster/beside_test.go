package cluster

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

const (
	besideNode = "beside"
	besideUser = "beside-nodeprobe"
	foreign    = "example.com/Foreign"
	ourDisk    = "nodeprobe.dev/DiskPressure"
)

var builtIn = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// A kubelet's conditions flip ten times a second, and ours do as often as they may:
// none of its is ever other than it wrote, and a third writer's stays. Here nodeprobe
// may write whatever it likes, so that nothing but itself keeps it from doing so.
func TestBeside(t *testing.T) {
	disk := pressure.Disk(t, 64)
	cp := controlplane.StartExclusive(t, controlplane.Options{AuditLog: true})
	begin := time.Now()
	k := newKubeletWriter(t, cp)
	history := nodewatch.FollowForTest(t, cp.Client(), besideNode)
	kubeconfig := must.Get(cp.Kubeconfig(besideUser, "system:masters"))(t)
	a := agent.StartForTest(t, agent.Spec{
		Binary: build.ProductForTest(t), Dir: t.TempDir(), NodeName: besideNode, Kubeconfig: kubeconfig,
		Config: agent.Own().With(agent.Config{
			"mode": "augment", "rootDirectory": disk.Dir,
			"evictionHard":                     agent.Hard(map[string]string{"nodefs.available": "20Mi"}),
			"evictionPressureTransitionPeriod": "0s", "conditionHeartbeat": "10s",
		}),
	})

	ctx, cancel := context.WithTimeout(t.Context(), *besideFor)
	defer cancel()
	flips := make(chan int)
	go func() { flips <- flip(ctx, disk, history) }()
	k.run(ctx)
	flipped := <-flips
	a.Stop()
	t.Logf("the kubelet wrote %d times; ours flipped %d times", len(k.wrote), flipped)
	if flipped < 2 || len(k.wrote) < 10 {
		t.Error("that is no dance")
	}
	// What was the kubelet's last word still is, once the watch has told.
	k.write(t.Context())
	must.Get(history.Wait(within(t, ours), begin, func(n *corev1.Node) bool { return n.ResourceVersion == k.last }))(t)
	k.wantKept(history.All())
	wantOnlyOurs(t, cp, besideUser, besideNode, begin)
	if lease, err := cp.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), besideNode, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("there is a Lease: %+v, %v", lease, err)
	}
}

// flip fills and empties the filesystem until ctx ends, each time when our condition
// has followed, and returns how often it has.
func flip(ctx context.Context, disk *pressure.Filesystem, history *nodewatch.History) (n int) {
	for ; ; n++ {
		status, do := corev1.ConditionTrue, func() error { return disk.Fill(10 << 20) }
		if n%2 == 1 {
			status, do = corev1.ConditionFalse, disk.Empty
		}
		since := time.Now()
		if err := do(); err != nil {
			return n
		}
		if _, err := history.Wait(ctx, since, nodewatch.Has(ourDisk, status)); err != nil {
			return n
		}
	}
}

// kubeletWriter writes a Node's built-in conditions as a kubelet does.
type kubeletWriter struct {
	t      *testing.T
	client kubernetes.Interface
	// wrote is the status that all of the conditions were given, by the Node's
	// resource version; last is the latest of those.
	wrote map[string]corev1.ConditionStatus
	last  string
}

func newKubeletWriter(t *testing.T, cp *controlplane.ControlPlane) *kubeletWriter {
	t.Helper()
	user, groups := controlplane.NodeUser(besideNode)
	config := cp.ConfigFor(user, groups...)
	client := must.Get(kubernetes.NewForConfig(config))(t)
	k := &kubeletWriter{t: t, client: client, wrote: map[string]corev1.ConditionStatus{}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: besideNode, Labels: map[string]string{"a": "b"}}}
	must.Get(client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{FieldManager: "kubelet"}))(t)
	k.write(t.Context())
	third := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":"True","reason":"Foreign"}]}}`, foreign)
	must.Get(cp.Client().CoreV1().Nodes().PatchStatus(t.Context(), besideNode, third))(t)
	return k
}

func (k *kubeletWriter) run(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.write(k.t.Context()) // to the end, so that what came of it is known
		}
	}
}

func (k *kubeletWriter) write(ctx context.Context) {
	k.t.Helper()
	status := corev1.ConditionTrue
	if k.wrote[k.last] == status {
		status = corev1.ConditionFalse
	}
	now := metav1.Now()
	var conditions []corev1.NodeCondition
	for _, kind := range builtIn {
		conditions = append(conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "Kubelet" + string(status), LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	patch := must.Get(json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}}))(k.t)
	node := must.Get(k.client.CoreV1().Nodes().Patch(ctx, besideNode, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: "kubelet"}, "status"))(k.t)
	k.last = node.ResourceVersion
	k.wrote[k.last] = status
}

func (k *kubeletWriter) wantKept(all []nodewatch.Sighting) {
	k.t.Helper()
	seen := maps.Clone(k.wrote)
	var before map[corev1.NodeConditionType]corev1.NodeCondition
	for _, s := range all {
		now := map[corev1.NodeConditionType]corev1.NodeCondition{}
		for _, c := range s.Node.Status.Conditions {
			if !strings.HasPrefix(string(c.Type), "nodeprobe.dev/") {
				now[c.Type] = c
			}
		}
		if err := k.kept(s.Node.ResourceVersion, before, now); err != nil {
			k.t.Errorf("version %s: %v; before: %+v; now: %+v", s.Node.ResourceVersion, err, before, now)
		}
		delete(seen, s.Node.ResourceVersion)
		before = now
	}
	// The first was written before anybody looked.
	if len(seen) > 1 {
		k.t.Errorf("%d of %d versions were not seen", len(seen), len(k.wrote))
	}
}

// kept returns what is wrong with the conditions of others in a version of the Node.
func (k *kubeletWriter) kept(version string, before, now map[corev1.NodeConditionType]corev1.NodeCondition) error {
	status, byKubelet := k.wrote[version]
	if !byKubelet && before != nil && !maps.Equal(before, now) {
		return errors.New("conditions have changed that nobody wrote")
	}
	if byKubelet {
		for _, kind := range builtIn {
			if now[kind].Status != status {
				return fmt.Errorf("%s is not what the kubelet wrote", kind)
			}
		}
	}
	if _, ok := now[foreign]; !ok {
		return errors.New("the third writer's condition is lost")
	}
	return nil
}
