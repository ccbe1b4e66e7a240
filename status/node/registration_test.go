package node

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

func TestInitialNode(t *testing.T) {
	cfg := newScene(t).config()
	cfg.Registration = Registration{
		Labels:     map[string]string{"team": "a", v1.LabelHostname: "other", v1.LabelInstanceTypeStable: "m1"},
		Taints:     []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectNoExecute}},
		ProviderID: "cloud:///i-1", ControllerAttachDetach: true,
	}
	cfg.Addresses.ExternalCloudProvider = true
	facts := machineFacts(apitest.Epoch)
	got := initial(t, cfg, &facts)
	capacity := map[string]string{
		"cpu": "4", "memory": "16384256Ki", "pods": "110", "ephemeral-storage": "129900528Ki", "hugepages-2Mi": "0", "hugepages-1Gi": "0",
	}
	cond := func(kind v1.NodeConditionType, status v1.ConditionStatus, reason, message string) v1.NodeCondition {
		return v1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: apitest.At(0), LastTransitionTime: apitest.At(0)}
	}
	want := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: apitest.NodeName,
			Labels: map[string]string{
				"kubernetes.io/hostname": "other", "team": "a", "node.kubernetes.io/instance-type": "m1",
				"kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH,
				"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
			},
			Annotations: map[string]string{
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				"alpha.kubernetes.io/provided-node-ip":                   "10.0.0.1",
			},
		},
		Spec: v1.NodeSpec{
			ProviderID: "cloud:///i-1",
			Taints: []v1.Taint{
				{Key: "k", Value: "v", Effect: v1.TaintEffectNoExecute},
				{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: v1.TaintEffectNoSchedule},
			},
		},
		Status: v1.NodeStatus{
			Capacity: apitest.Resources(capacity), Allocatable: apitest.Resources(capacity),
			Conditions: []v1.NodeCondition{
				cond("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				cond("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				cond("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				cond("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
			},
			Addresses:       apitest.Addresses("10.0.0.1", apitest.NodeName),
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 10250}},
			NodeInfo: v1.NodeSystemInfo{
				MachineID: "machine", SystemUUID: "uuid", BootID: "boot", KernelVersion: "6.12.0",
				OSImage: "Debian GNU/Linux 13 (trixie)", KubeletVersion: "v1.36.3",
				OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
			},
		},
	}
	apitest.Diff(t, "node", want, got, apitest.SameTimes())
	if len(cfg.Registration.Labels) != 3 || len(cfg.Registration.Taints) != 1 {
		t.Error("the configuration was changed")
	}
}

// adopted is a Node that registration finds nothing to mend on.
func adopted(n *v1.Node) {
	n.Labels = map[string]string{
		"kubernetes.io/hostname": apitest.NodeName, "kubernetes.io/os": runtime.GOOS, "kubernetes.io/arch": runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH, "node.kubernetes.io/instance-type": "m1",
	}
	n.Status.Capacity = apitest.Resources(map[string]string{"hugepages-2Mi": "0", "hugepages-1Gi": "0"})
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
}

// What a kubelet finds missing on a Node that is there already it adds with the
// patch that registers the Node.
func TestRegisterPatch(t *testing.T) {
	const (
		capacity = `{"cpu":"4","ephemeral-storage":"129900528Ki","hugepages-1Gi":"0","hugepages-2Mi":"0","memory":"16384256Ki","pods":"110"}`
		pages    = `{"hugepages-1Gi":"0","hugepages-2Mi":"0"}`
	)
	declares := func(features ...string) func(*v1.Node) {
		return func(n *v1.Node) { adopted(n); n.Status.DeclaredFeatures = features }
	}
	for _, test := range []struct {
		name   string
		exists func(*v1.Node)
		set    func(*v1.Node) // by a user's setter
		want   string
	}{
		{name: "nothing of resources", exists: func(n *v1.Node) { adopted(n); n.Status = v1.NodeStatus{} }, want: `{"status":{"allocatable":` + capacity + `,"capacity":` + capacity + `}}`},
		{name: "no allocatable", exists: func(n *v1.Node) { adopted(n); n.Status.Allocatable = nil }, want: `{"status":{"allocatable":` + capacity + `}}`},
		{name: "no capacity", exists: func(n *v1.Node) { adopted(n); n.Status.Capacity = nil }, want: `{"status":{"capacity":` + capacity + `}}`},
		{
			name: "something of resources", want: `{"status":{"allocatable":` + pages + `,"capacity":` + pages + `}}`,
			exists: func(n *v1.Node) {
				adopted(n)
				n.Status.Capacity = apitest.Resources(map[string]string{"example.com/device": "4"})
				n.Status.Allocatable = apitest.Resources(map[string]string{"example.com/device": "3"})
			},
		},
		{name: "features that nobody declares any more", exists: declares("A", "B"), want: `{"status":{"declaredFeatures":null}}`},
		{
			name: "features that a user's setter declares", exists: declares("A", "B"), want: `{"status":{"declaredFeatures":["B"]}}`,
			set: func(n *v1.Node) { n.Status.DeclaredFeatures = []string{"B"} },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.api.Put(test.exists)
				cfg := s.config()
				cfg.Registration.Labels = map[string]string{v1.LabelInstanceTypeStable: "m1"} // as adopted has it
				if test.set != nil {
					cfg.Setters = []Setter{func(_ context.Context, n *v1.Node) error { test.set(n); return nil }}
				}
				s.play(cfg, func() {
					s.sleep(time.Second)
					calls := s.api.Take()
					if got := apitest.Verbs(calls); got != "POST GET ADOPT PATCH PATCH" {
						t.Fatalf("calls %q", got)
					}
					apitest.Diff(t, "patch", test.want, calls[3].Body)
				})
			})
		})
	}
}

// An unreadable page size is not a page size that is gone.
func TestReconcileUnreadHugePages(t *testing.T) {
	existing := &v1.Node{}
	existing.Status.Capacity = apitest.Resources(map[string]string{"hugepages-2Mi": "1Gi"})
	facts := machineFacts(apitest.Epoch)
	c := New(newScene(t).config())
	mend := func() bool {
		c.Observe(facts)
		if node, _, err := c.Initial(t.Context(), apitest.Epoch); node == nil {
			t.Fatal(err)
		}
		_, changed := c.Mend(existing, &v1.Node{})
		return changed
	}
	if !mend() {
		t.Error("a page size that is gone is kept")
	}
	facts.Snapshot.Errors[probe.SourceHugePages] = errors.New("permission denied")
	if mend() {
		t.Error("something changed")
	}
}
