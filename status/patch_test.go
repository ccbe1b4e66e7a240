package status

import (
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeprobe/nodeprobe/status/internal/apitest"
)

// postedNode is a Node as the API server has it after some time.
func postedNode() *v1.Node {
	cond := func(kind v1.NodeConditionType, status v1.ConditionStatus, reason, message string) v1.NodeCondition {
		return v1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: apitest.At(10), LastTransitionTime: apitest.At(0)}
	}
	swap := int64(1 << 30)
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: apitest.NodeName, UID: "uid-1", ResourceVersion: "41", Generation: 3, CreationTimestamp: apitest.At(0),
			Labels:      map[string]string{v1.LabelOSStable: "linux", "team": "<&>"},
			Annotations: map[string]string{"a": "b"}, Finalizers: []string{"example.com/f"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1(`{"f:a":{}}`)}},
		},
		Spec: v1.NodeSpec{PodCIDR: "10.1.0.0/24", Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}},
		Status: v1.NodeStatus{
			Capacity:    apitest.Resources(map[string]string{"cpu": "4", "memory": "16384256Ki", "example.com/x": "1"}),
			Allocatable: apitest.Resources(map[string]string{"cpu": "4", "memory": "16384256Ki"}),
			Conditions: []v1.NodeCondition{
				cond("NetworkUnavailable", "False", "CalicoIsUp", "secret of the network"),
				cond("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				cond("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				cond("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				cond("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
			},
			Addresses:       apitest.Addresses("10.0.0.1", apitest.NodeName),
			NodeInfo:        v1.NodeSystemInfo{BootID: "boot", KernelVersion: "6.12.0", Swap: &v1.NodeSwapStatus{Capacity: &swap}},
			Images:          []v1.ContainerImage{{Names: []string{"a@sha256:1"}, SizeBytes: 9007199254740993}, {Names: []string{"b"}}},
			VolumesInUse:    []v1.UniqueVolumeName{"v1"},
			VolumesAttached: []v1.AttachedVolume{{Name: "v1", DevicePath: "/dev/sda"}},
		},
	}
}

// heartbeat moves what moves in every patch: the heartbeats of our conditions.
func heartbeat(node *v1.Node) {
	for i := range node.Status.Conditions[1:] {
		node.Status.Conditions[i+1].LastHeartbeatTime = apitest.At(20)
	}
}

const (
	orderAll = `"$setElementOrder/conditions":[{"type":"NetworkUnavailable"},{"type":"MemoryPressure"},{"type":"DiskPressure"},{"type":"PIDPressure"},{"type":"Ready"}]`
	diskBeat = `{"lastHeartbeatTime":"2000-01-01T00:00:20Z","type":"DiskPressure"},{"lastHeartbeatTime":"2000-01-01T00:00:20Z","type":"PIDPressure"},{"lastHeartbeatTime":"2000-01-01T00:00:20Z","type":"Ready"}`
)

// The patches are, byte for byte, what the kubelet sends.
func TestPatchGolden(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(node *v1.Node)
		want   string
	}{
		{"nothing", func(*v1.Node) {}, `{}`},
		{
			"heartbeat", heartbeat,
			`{"status":{` + orderAll + `,"conditions":[{"lastHeartbeatTime":"2000-01-01T00:00:20Z","type":"MemoryPressure"},` + diskBeat + `]}}`,
		},
		{
			"transition", func(n *v1.Node) {
				heartbeat(n)
				c := &n.Status.Conditions[1]
				c.Status, c.Reason, c.Message = "True", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"
				c.LastTransitionTime = metav1.NewTime(apitest.At(17).Add(999_999_999)) // whole seconds on the wire
			},
			`{"status":{` + orderAll + `,"conditions":[{"lastHeartbeatTime":"2000-01-01T00:00:20Z","lastTransitionTime":"2000-01-01T00:00:17Z",` +
				`"message":"kubelet has insufficient memory available","reason":"KubeletHasInsufficientMemory","status":"True","type":"MemoryPressure"},` + diskBeat + `]}}`,
		},
		{
			"a condition more", func(n *v1.Node) {
				n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: "nodeprobe.dev/X", Status: "Unknown"})
			},
			`{"status":{` + orderAll[:len(orderAll)-1] + `,{"type":"nodeprobe.dev/X"}],"conditions":[{"lastHeartbeatTime":null,"lastTransitionTime":null,"status":"Unknown","type":"nodeprobe.dev/X"}]}}`,
		},
		{
			"a condition less", func(n *v1.Node) { n.Status.Conditions = n.Status.Conditions[1:] },
			`{"status":{"$setElementOrder/conditions":[{"type":"MemoryPressure"},{"type":"DiskPressure"},{"type":"PIDPressure"},{"type":"Ready"}],"conditions":[{"$patch":"delete","type":"NetworkUnavailable"}]}}`,
		},
		{"all conditions gone", func(n *v1.Node) { n.Status.Conditions = nil }, `{"status":{"conditions":null}}`},
		{"order of conditions alone", func(n *v1.Node) {
			c := n.Status.Conditions
			c[0], c[1] = c[1], c[0]
		}, `{}`},
		{
			"capacity", func(n *v1.Node) {
				delete(n.Status.Capacity, "example.com/x")
				n.Status.Capacity["cpu"], n.Status.Capacity["pods"] = resource.MustParse("8"), resource.MustParse("110")
			},
			`{"status":{"capacity":{"cpu":"8","example.com/x":null,"pods":"110"}}}`,
		},
		{"no capacity", func(n *v1.Node) { n.Status.Capacity = v1.ResourceList{} }, `{"status":{"capacity":null}}`},
		{
			"node info", func(n *v1.Node) { n.Status.NodeInfo = v1.NodeSystemInfo{BootID: "boot 2", KernelVersion: "6.12.0"} },
			`{"status":{"nodeInfo":{"bootID":"boot 2","swap":null}}}`,
		},
		{
			"labels and annotations", func(n *v1.Node) {
				n.Labels["team"], n.Annotations = "<&>", nil
				n.Labels[v1.LabelArchStable] = "arm64"
				delete(n.Labels, v1.LabelOSStable)
			},
			`{"metadata":{"annotations":null,"labels":{"kubernetes.io/arch":"arm64","kubernetes.io/os":null}}}`,
		},
		{"port", func(n *v1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250 }, `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}}}}`},
		{
			"lists are sent whole", func(n *v1.Node) {
				n.Status.Images, n.Status.VolumesInUse = n.Status.Images[:1], nil
				n.Status.RuntimeHandlers = []v1.NodeRuntimeHandler{{Name: "runc"}}
			},
			`{"status":{"images":[{"names":["a@sha256:1"],"sizeBytes":9007199254740993}],"runtimeHandlers":[{"name":"runc"}],"volumesInUse":null}}`,
		},
		{"the spec belongs to others", func(n *v1.Node) { n.Spec = v1.NodeSpec{Unschedulable: true} }, `{}`},
		{
			"and so is the rest of the metadata", func(n *v1.Node) {
				n.ResourceVersion, n.Finalizers, n.ManagedFields = "42", nil, nil
				n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}}
			}, `{}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			old := postedNode()
			next := old.DeepCopy()
			test.change(next)
			oldBefore, nextBefore := old.DeepCopy(), next.DeepCopy()
			patch, err := Patch(old, next)
			if err != nil {
				t.Fatal(err)
			}
			apitest.Diff(t, "patch", test.want, string(patch))
			apitest.Diff(t, "the arguments are left alone", []*v1.Node{oldBefore, nextBefore}, []*v1.Node{old, next}, apitest.SameTimes())
		})
	}
}

func TestPatchOfNewStatus(t *testing.T) {
	old := &v1.Node{}
	next := &v1.Node{Status: v1.NodeStatus{
		Conditions: []v1.NodeCondition{{Type: "Ready", Status: "True", LastHeartbeatTime: apitest.At(0), LastTransitionTime: apitest.At(0)}},
		Addresses:  apitest.Addresses("10.0.0.1", "10.0.0.2", apitest.NodeName),
	}}
	patch, err := Patch(old, next)
	if err != nil {
		t.Fatal(err)
	}
	apitest.Diff(t, "patch", `{"status":{"addresses":[{"address":"10.0.0.1","type":"InternalIP"},{"address":"10.0.0.2","type":"InternalIP"},{"address":"node-1","type":"Hostname"}],`+
		`"conditions":[{"lastHeartbeatTime":"2000-01-01T00:00:00Z","lastTransitionTime":"2000-01-01T00:00:00Z","status":"True","type":"Ready"}]}}`, string(patch))
}

// V14 and the kubelet's TestUpdateNodeAddresses: the API would merge addresses
// of one type into one.
func TestPatchAddresses(t *testing.T) {
	one, two := apitest.Addresses("10.0.0.1", apitest.NodeName), apitest.Addresses("10.0.0.1", "10.0.0.2", apitest.NodeName)
	three := apitest.Addresses("10.0.0.1", "10.0.0.2", "10.0.0.3", apitest.NodeName)
	for _, test := range []struct {
		name      string
		old, next []v1.NodeAddress
		want      string
	}{
		{"nil to populated", nil, one, `[{"address":"10.0.0.1","type":"InternalIP"},{"address":"node-1","type":"Hostname"}]`},
		{"empty to populated", []v1.NodeAddress{}, one, `[{"address":"10.0.0.1","type":"InternalIP"},{"address":"node-1","type":"Hostname"}]`},
		{"populated to nil", one, nil, `[{"$patch":"replace"}]`},
		{"populated to empty", one, []v1.NodeAddress{}, `[{"$patch":"replace"}]`},
		{"several of one type, no change", three, three, ``},
		{
			"V14: one to two", one, two,
			`[{"address":"10.0.0.1","type":"InternalIP"},{"address":"10.0.0.2","type":"InternalIP"},{"address":"node-1","type":"Hostname"},{"$patch":"replace"}]`,
		},
		{"two to one", two, one, `[{"address":"10.0.0.1","type":"InternalIP"},{"address":"node-1","type":"Hostname"},{"$patch":"replace"}]`},
		{
			"two others", two, apitest.Addresses("10.0.0.3", "10.0.0.4", apitest.NodeName),
			`[{"address":"10.0.0.3","type":"InternalIP"},{"address":"10.0.0.4","type":"InternalIP"},{"address":"node-1","type":"Hostname"},{"$patch":"replace"}]`,
		},
		{
			"reversed", two, apitest.Addresses("10.0.0.2", "10.0.0.1", apitest.NodeName),
			`[{"address":"10.0.0.2","type":"InternalIP"},{"address":"10.0.0.1","type":"InternalIP"},{"address":"node-1","type":"Hostname"},{"$patch":"replace"}]`,
		},
		{
			"another type", one,
			[]v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "10.0.0.1"}},
			`[{"address":"10.0.0.1","type":"ExternalIP"},{"$patch":"replace"}]`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			old, next := postedNode(), postedNode()
			old.Status.Addresses, next.Status.Addresses = test.old, test.next
			patch, err := Patch(old, next)
			if err != nil {
				t.Fatal(err)
			}
			want := `{}`
			if test.want != "" {
				want = `{"status":{"addresses":` + test.want + `}}`
			}
			apitest.Diff(t, "patch", want, string(patch))
			patched, err := apitest.ApplyPatch(old, patch)
			if err != nil {
				t.Fatal(err)
			}
			if !apiequality.Semantic.DeepEqual(next, patched) {
				apitest.Diff(t, "patched", next, patched)
			}
		})
	}
}

// There should not be two conditions of a type, but nothing forbids it. What is
// sent is then no more than what changed.
func TestPatchDuplicateConditions(t *testing.T) {
	old := &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{
		{Type: "A", Status: "True", Reason: "1"}, {Type: "A", Status: "True", Reason: "2"},
	}}}
	next := old.DeepCopy()
	next.Status.Conditions[1].Status = "False"
	patch, err := Patch(old, next)
	if err != nil {
		t.Fatal(err)
	}
	apitest.Diff(t, "patch", `{"status":{"$setElementOrder/conditions":[{"type":"A"},{"type":"A"}],"conditions":[{"status":"False","type":"A"}]}}`, string(patch))
}

func BenchmarkPatch(b *testing.B) {
	old := postedNode()
	next := old.DeepCopy()
	heartbeat(next)
	b.ReportAllocs()
	for b.Loop() {
		patch, err := Patch(old, next)
		if err != nil || !json.Valid(patch) {
			b.Fatal(err)
		}
	}
}
