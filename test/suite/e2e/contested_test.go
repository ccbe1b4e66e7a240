package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeprobe/nodeprobe/probe"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
	statusnode "github.com/nodeprobe/nodeprobe/status/node"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/nodewatch"
	"github.com/nodeprobe/nodeprobe/test/harness/stage"
)

// contested is a Node that others write to all the time: before each of our
// patches arrives, so that each is made from a Node that is out of date.
type contested struct {
	*node
	status.Nodes // the API server

	mu        sync.Mutex // guards the rest
	facts     statusnode.Facts
	unhealthy error
	active    bool
	patches   int
	lost      []string
	patched   chan struct{}
}

// unheld is a content of which no change is held back.
type unheld struct{ *statusnode.Content }

func (u unheld) Draft(ctx context.Context, old *corev1.Node, now time.Time, due bool) status.Draft {
	draft := u.Content.Draft(ctx, old, now, due)
	draft.Urgent = true
	return draft
}

// start runs an updater with the node's identity until the test ends. Nothing is posted
// in the test's time unless it is a change, and no pass is made but after Wake.
func (c *contested) start() (*status.Updater, unheld) {
	c.T.Helper()
	ip := net.IPv4(192, 0, 2, 1)
	content := unheld{statusnode.New(statusnode.Config{
		NodeName: c.Name, KubeletVersion: "v1.36.3",
		Addresses: statusnode.Addresses{
			NodeName: c.Name, Hostname: c.Name, NodeIPs: []net.IP{ip}, ExternalCloudProvider: true,
			Interfaces: func() ([]net.Addr, error) { return []net.Addr{&net.IPAddr{IP: ip}}, nil },
		},
		Resources: statusnode.Resources{MaxPods: 110, LocalStorageCapacityIsolation: true},
		Healthy:   func() error { c.mu.Lock(); defer c.mu.Unlock(); return c.unhealthy },
	})}
	content.Observe(c.facts)
	updater := must.Get(status.New(status.Config{
		NodeName: c.Name, Nodes: c, Content: content, Registrar: content,
		Timeout: 30 * time.Second, UpdateFrequency: time.Hour, ReportFrequency: time.Hour, RetryRefused: true,
	}))(c.T)
	ctx, stop := context.WithCancel(c.T.Context())
	ended := make(chan error, 1)
	go func() { ended <- updater.Run(ctx) }()
	c.T.Cleanup(func() { stop(); <-ended })
	stage.Eventually(c.T, "the node is registered", updater.Ready)
	return updater, content
}

// A thousand patches, each of another of our fields, and each overtaken by a
// write of somebody else: no byte of what is theirs changes.
func TestThousandContestedPatches(t *testing.T) {
	t.Parallel()
	n := newNode(t, controlplane.StartForTest(t), nil)
	c := &contested{node: n, Nodes: status.NewNodes(n.AsNode().CoreV1().RESTClient()), patched: make(chan struct{}, 1)}
	c.facts.Snapshot = probe.Snapshot{
		Time: time.Now(), Machine: probe.Machine{MachineID: "machine", BootID: "boot"},
		Capacity: probe.Capacity{CPUs: 4, Memory: 8 << 30, MemoryOK: true, EphemeralStorage: 64 << 30},
	}
	for i := range c.facts.Verdicts {
		c.facts.Verdicts[i] = pressure.Verdict{Condition: pressure.Condition(i), Status: pressure.False, Since: time.Now()}
	}
	updater, content := c.start()
	c.settle()
	for i := 0; c.count() < 1000; i++ {
		c.mu.Lock()
		c.active = true
		c.change(i)
		content.Observe(c.facts)
		c.mu.Unlock()
		updater.Wake()
		select {
		case <-c.patched:
		case <-time.After(stage.Patience):
			t.Fatalf("no patch after %d: %v", c.count(), updater.Ready())
		}
	}
	c.mu.Lock()
	c.active = false
	lost, facts, unhealthy := c.lost, c.facts, c.unhealthy
	c.mu.Unlock()
	for _, l := range lost[:min(len(lost), 5)] {
		t.Error(l)
	}
	if len(lost) > 0 {
		t.Fatalf("%d of the patches changed what is not ours", len(lost))
	}
	stage.Eventually(t, "what is ours follows what others have said last", func() error { return checkOurs(n, &facts, unhealthy) })
}

// settle puts the foreign content onto the Node, and waits until nothing of it
// makes a difference any more.
func (c *contested) settle() {
	c.T.Helper()
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	c.patch(map[string]any{
		"metadata": map[string]any{
			"labels":      map[string]string{"example.com/rack": "r7", "example.com/empty": ""},
			"annotations": map[string]string{"example.com/note": "\"quoted\" <&> \u2028 ü\n", "example.com/long": strings.Repeat("x", 4<<10)},
		},
		"spec": map[string]any{
			"taints":  []corev1.Taint{{Key: "example.com/taint", Value: "v", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now}},
			"podCIDR": "198.51.100.0/24", "podCIDRs": []string{"198.51.100.0/24", "2001:db8:1::/64"}, "providerID": "example:///7",
		},
	})
	c.rewrite(func(s *corev1.NodeStatus) {
		s.Capacity["example.com/dongle"] = resource.MustParse("3")
		s.Capacity["example.com/milli"] = resource.MustParse("1")
		s.Capacity["hugepages-2Mi"] = resource.MustParse("4Mi")
		s.Conditions = slices.Concat([]corev1.NodeCondition{
			{Type: "NetworkUnavailable", Status: corev1.ConditionFalse, Reason: "RouteCreated", LastHeartbeatTime: now, LastTransitionTime: now},
		}, s.Conditions, []corev1.NodeCondition{
			{Type: "example.com/Bare", Status: corev1.ConditionUnknown}, // no reason, no times
			{Type: "example.com/Problem", Status: corev1.ConditionTrue, Reason: "Example", Message: strings.Repeat("long ", 1000), LastTransitionTime: now},
			{Type: "readY", Status: "Maybe", Message: "looks like ours"},
			{Type: "example.com/Counter", Status: corev1.ConditionFalse, Message: "-1"},
		})
		s.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeExternalDNS, Address: "seven.example.com"},
		}
		s.VolumesAttached = []corev1.AttachedVolume{{Name: "example.com/v1", DevicePath: "/dev/v1"}, {Name: "example.com/v2"}}
		s.Images = []corev1.ContainerImage{{Names: []string{"example.com/image:1"}, SizeBytes: 1 << 40}}
		s.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "example"}}
	})
	stage.Until(c.T, "the foreign resources can be allocated", func() bool {
		q := c.MustGet().Status.Allocatable["example.com/dongle"]
		return q.Value() == 3
	})
	got := c.MustGet().Status
	if count := []int{len(got.Conditions), len(got.Addresses), len(got.VolumesAttached), len(got.Images), len(got.RuntimeHandlers)}; !slices.Equal(count, []int{9, 3, 2, 1, 1}) {
		c.T.Errorf("some of the foreign content is not there to begin with: %v: %+v", count, got)
	}
}

func (c *contested) rewrite(change func(*corev1.NodeStatus)) *corev1.Node {
	for {
		got, err := c.node.Get()
		if err == nil {
			change(&got.Status)
			got, err = c.Client.CoreV1().Nodes().UpdateStatus(context.Background(), got, metav1.UpdateOptions{})
		}
		if err == nil {
			return got
		}
		if !apierrors.IsConflict(err) {
			c.T.Errorf("foreign write: %v", err)
			return &corev1.Node{}
		}
	}
}

// change makes the facts differ from the last; c.mu is held.
func (c *contested) change(i int) {
	f := &c.facts
	switch v := &f.Verdicts[i%len(f.Verdicts)]; i % 5 {
	case 0, 1, 2:
		v.Status, v.Since = pressure.True+pressure.False-v.Status, time.Now()
	case 3:
		f.Snapshot.Capacity.Memory += 1 << 20
	case 4:
		if c.unhealthy == nil {
			c.unhealthy = errors.New("for example")
		} else {
			c.unhealthy = nil
		}
	}
}

func (c *contested) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patches
}

// PatchStatus lets somebody else write first, and looks at what is left of that.
func (c *contested) PatchStatus(ctx context.Context, name string, patch []byte) (*corev1.Node, error) {
	c.mu.Lock()
	active, i := c.active, c.patches
	c.mu.Unlock()
	if !active {
		return c.Nodes.PatchStatus(ctx, name, patch)
	}
	theirs := c.write(i)
	ours, err := c.Nodes.PatchStatus(ctx, name, patch)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.lost = append(c.lost, fmt.Sprintf("patch %d: %v: %s", i, err, patch))
	} else if want, got := foreignOf(theirs), foreignOf(ours); !slices.Equal(want, got) {
		c.lost = append(c.lost, fmt.Sprintf("patch %d, %s: (-before +after)\n%s", i, patch, cmp.Diff(want, got)))
	}
	c.patches++
	select {
	case c.patched <- struct{}{}:
	default:
	}
	return ours, err
}

// foreignOf is everything of a Node that nodeprobe does not write in this test, as
// text.
func foreignOf(node *corev1.Node) []string {
	node = node.DeepCopy()
	node.ResourceVersion, node.ManagedFields = "", nil
	s := &node.Status
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		delete(s.Capacity, name)
		delete(s.Allocatable, name)
	}
	s.NodeInfo = corev1.NodeSystemInfo{}
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.NodeCondition) bool { return slices.Contains(stage.BuiltIn, c.Type) })
	// Conditions are found by their type. A patch in the kubelet's form brings them
	// into an order.
	slices.SortFunc(s.Conditions, func(a, b corev1.NodeCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	text, err := json.MarshalIndent(node, "", " ")
	if err != nil {
		return []string{err.Error()}
	}
	return strings.Split(string(text), "\n")
}

func (c *contested) write(i int) *corev1.Node {
	now := metav1.Now()
	counted := corev1.NodeCondition{Type: "example.com/Counter", Status: corev1.ConditionTrue, Reason: "Counted", Message: fmt.Sprint(i), LastHeartbeatTime: now}
	if i%2 == 0 {
		counted = corev1.NodeCondition{Type: counted.Type, Status: corev1.ConditionFalse, Message: fmt.Sprint(i)}
	}
	conditions := func(c ...any) map[string]any { return map[string]any{"status": map[string]any{"conditions": c}} }
	extra := func(s *corev1.NodeStatus) int {
		return slices.IndexFunc(s.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "example.com/Extra" })
	}
	switch i % 9 {
	case 0: // comes, in front of all others
		return c.rewrite(func(s *corev1.NodeStatus) {
			if extra(s) < 0 {
				s.Conditions = slices.Insert(s.Conditions, 0, corev1.NodeCondition{Type: "example.com/Extra", Status: corev1.ConditionTrue})
			}
		})
	case 1: // changes, with what has just come
		return c.foreignPatch(conditions(counted, map[string]any{"type": "example.com/Extra", "status": "False"}), "status")
	case 2: // goes
		return c.rewrite(func(s *corev1.NodeStatus) {
			if at := extra(s); at >= 0 {
				s.Conditions = slices.Delete(s.Conditions, at, at+1)
			}
		})
	case 3, 4: // comes, and goes
		at := map[string]any{"example.com/at": []any{fmt.Sprint(i), nil}[i%9-3]}
		return c.foreignPatch(map[string]any{"metadata": map[string]any{"labels": map[string]any{"example.com/rack": fmt.Sprint(i)}, "annotations": at}})
	case 5:
		return c.foreignPatch(map[string]any{"spec": map[string]any{
			"unschedulable": i%2 == 0, "taints": []corev1.Taint{{Key: "example.com/taint", Value: fmt.Sprint(i), Effect: corev1.TaintEffectNoExecute}},
		}})
	case 6: // one of them is broken
		return c.foreignPatch(map[string]any{"status": map[string]any{
			"capacity":    map[string]any{"example.com/dongle": fmt.Sprint(i + 1)},
			"allocatable": map[string]any{"example.com/dongle": fmt.Sprint(i)},
		}}, "status")
	case 7:
		return c.rewrite(func(s *corev1.NodeStatus) {
			s.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(fmt.Sprint("example.com/", i))}}
			s.Addresses[0].Address = fmt.Sprintf("192.0.2.%d", i%200+20)
		})
	default:
		return c.foreignPatch(conditions(counted), "status")
	}
}

// foreignPatch is not to end the test: it is called by the updater.
func (c *contested) foreignPatch(patch map[string]any, subresources ...string) *corev1.Node {
	data, err := json.Marshal(patch)
	must.Note(c.T, err)
	node, err := c.Client.CoreV1().Nodes().Patch(context.Background(), c.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, subresources...)
	must.Note(c.T, err)
	return node
}

func checkOurs(n *node, facts *statusnode.Facts, unhealthy error) error {
	got := n.MustGet()
	for _, v := range facts.Verdicts {
		if c := nodewatch.Condition(got, corev1.NodeConditionType(v.Condition.String())); string(c.Status) != v.Status.String() {
			return fmt.Errorf("%+v, want %s", c, v.Status)
		}
	}
	ready := corev1.ConditionTrue
	if unhealthy != nil {
		ready = corev1.ConditionFalse
	}
	if !nodewatch.Has(corev1.NodeReady, ready)(got) {
		return fmt.Errorf("Ready is not %s", ready)
	}
	memory := resource.NewQuantity(facts.Snapshot.Capacity.Memory-4<<20, resource.BinarySI) // less the foreign huge pages
	for name, want := range map[corev1.ResourceName]resource.Quantity{
		"example.com/milli": got.Status.Capacity["example.com/milli"], "hugepages-2Mi": resource.MustParse("4Mi"), corev1.ResourceMemory: *memory,
	} {
		if has := got.Status.Allocatable[name]; has.Cmp(want) != 0 {
			return fmt.Errorf("allocatable %s is %s, want %s", name, has.String(), want.String())
		}
	}
	return nil
}
